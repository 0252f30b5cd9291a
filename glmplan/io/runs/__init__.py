"""Measured runs: tables, ledgers, campaigns, protocols, and other tools' results."""
