"""Lets the tests of this folder import the servers they share (pytest's importlib mode adds no path)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
