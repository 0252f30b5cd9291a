"""Measure servers with a live client.

Importers of other tools' results are in `glmplan.io`.
"""
