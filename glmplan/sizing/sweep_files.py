"""Files of a sweep: the table, and what is kept of one that was stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.facts.files import read_text, write_atomically
from glmplan.sizing.axes import Sweep
from glmplan.sizing.sweep import Block

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Kept", "check_table", "write_table"]

#: endings of files that a table is written to
TABLES: tuple[str, ...] = (".csv", ".parquet", ".json")
_FILE = "question.json"


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table.

    Parameters
    ----------
    frame : pandas.DataFrame
        The rows.
    path : path
        A CSV, Parquet or JSON file.

    Raises
    ------
    SpecError
        If the ending is none of these, or Parquet needs its extra.
    """
    path = Path(path)
    check_table(path)
    if path.suffix == ".csv":
        write_atomically(path, frame.to_csv(index=False, float_format="%.6g"))
    elif path.suffix == ".json":
        write_atomically(path, frame.to_json(orient="records", double_precision=6, indent=1))
    else:
        import io

        stream = io.BytesIO()
        frame.to_parquet(stream, index=False)
        write_atomically(path, stream.getvalue())


def check_table(path: Path) -> None:
    """Refuse a file that no table is written to, before anything is computed.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    SpecError
        If the ending is none of `TABLES`, or Parquet needs its extra.
    """
    if path.suffix not in TABLES:
        raise SpecError("is no kind of table", field="--out", value=path.suffix or path.name, choices=TABLES)
    if path.suffix == ".parquet":
        check_extra("pyarrow", field="--out")


class Kept:
    """A folder beside the table in which each combination is kept until all are there.

    Parameters
    ----------
    path : path
        The table.
    sweep : Sweep
        The question.
    words : mapping
        What else decides the answer: prices and terms as they were given.
    """

    def __init__(self, path: str | Path, sweep: Sweep, words: dict[str, Any]) -> None:
        self.folder = Path(f"{path}.parts")
        axes = {name: list(values) for name, values in sweep.axes.items()}
        loads = hashlib.sha256(np.stack([sweep.users, sweep.inputs, sweep.outputs]).tobytes()).hexdigest()
        self._question = json.dumps({"axes": axes, "loads": loads, **words}, sort_keys=True, default=str)

    def read(self) -> list[Block]:
        """Combinations of an earlier run of the same question.

        Returns
        -------
        list of Block
            Empty without one.

        Raises
        ------
        SpecError
            If the folder holds another question.
        """
        file = self.folder / _FILE
        if not file.exists():
            return []
        if read_text(file) != self._question:
            message = "holds parts of another sweep: delete it, or write to another file"
            raise SpecError(message, file=self.folder, field="--resume")
        return [_read(one) for one in sorted(self.folder.glob("*.npz"))]

    def start(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        write_atomically(self.folder / _FILE, self._question)

    def keep(self, block: Block) -> None:
        """Keep a combination.

        Parameters
        ----------
        block : Block
            The combination.
        """
        import io

        said = json.dumps({"number": block.number, "said": block.said, "facts": block.facts, "reason": block.reason})
        stream = io.BytesIO()
        arrays: Any = {"said": np.array(said), "verdict": block.verdict, "held": block.held, **block.figures}
        np.savez(stream, **arrays)
        write_atomically(self.folder / f"{block.number:08d}.npz", stream.getvalue())

    def close(self) -> None:
        """Delete the folder: the table holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> Block:
    with np.load(path) as stored:
        said = json.loads(str(stored["said"]))
        arrays = {name: stored[name] for name in stored.files if name not in ("said", "verdict", "held")}
        return Block(said["number"], said["said"], said["facts"], stored["verdict"], stored["held"], arrays,
                     said["reason"])  # fmt: skip
