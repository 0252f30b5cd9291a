"""Answers as text, JSON, tables, pages and drawings; nothing is computed here."""
