"""Lets the tests of this folder import the servers they share and those of tools/ (importlib mode adds no path)."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]
