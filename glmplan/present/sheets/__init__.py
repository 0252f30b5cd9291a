"""Workbooks: the plan as a sheet that a buyer changes, and quote sheets that get the plan's figures in new columns."""
