"""Predict metrics with intervals from a deployment and a load.

Single questions, rows of tables, own sites.
"""
