"""Measured runs: tables, ledger, campaigns, protocols, and results of other tools."""
