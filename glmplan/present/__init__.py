"""Write answers as text, JSON, tables, pages and drawings."""
