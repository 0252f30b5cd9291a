"""Machines: from a name, dumps of tools, or the machine this runs on."""
