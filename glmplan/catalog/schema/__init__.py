"""The form of data files: frozen records that are checked when they are read."""
