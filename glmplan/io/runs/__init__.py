"""Measured runs: tables, ledger, campaigns, protocols, other tools."""
