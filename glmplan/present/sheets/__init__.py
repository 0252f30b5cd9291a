"""Write plans as workbooks, and predictions into quote sheets."""
