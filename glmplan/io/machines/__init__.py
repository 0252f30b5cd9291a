"""Readers of machine tools, and the machine that their dumps describe.

The content identifies the tool.
"""
