"""The folder of a campaign: tables and a log that are there at once, so that a stopped run goes on where it stopped."""

from __future__ import annotations

import csv
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from glmplan.catalog.files import write_atomically


def installed(name: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a wheel for another CUDA fails in many ways while it is imported
        said = (str(error).splitlines() or [""])[0]
        return f"{name} cannot be imported ({type(error).__name__}: {said[:80]})"
    return ""


class Campaign:
    """The folder of a campaign: what was measured is there at once, and is not measured again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        """Print a line and keep it in the log."""
        print(text, file=sys.stderr, flush=True)
        with (self.folder / "log.txt").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")

    def rows(self, name: str) -> list[dict[str, str]]:
        """Rows of a table so far; a line that was cut off by a stop is left out."""
        path = self.folder / name
        if not path.exists():
            return []
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            write_atomically(path, whole)
        return list(csv.DictReader(whole.splitlines()))

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Add a row to a table."""
        path = self.folder / name
        new = not path.exists()
        with path.open("a", newline="") as file:
            table = csv.DictWriter(file, list(row), lineterminator="\n")
            if new:
                table.writeheader()
            table.writerow(row)
