"""Readers of what machine tools print: one file for each family of tools, told apart by content."""
