"""Read published facts as published, one reader for each data folder.

Nothing is computed here.
"""
