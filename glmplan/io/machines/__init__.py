"""Readers of machine tools, recognised by content, and the machine that they describe."""
