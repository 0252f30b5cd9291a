"""Files of a sweep: the table, and what is kept of one that was stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.facts.files import parse_json, read_bytes, read_text, understood, write_atomically
from glmplan.facts.tables import frame_of_columns
from glmplan.sizing.axes import Sweep
from glmplan.sizing.simulated import Arriving
from glmplan.sizing.sweep import Block
from glmplan.sizing.sweep_rows import csv_parts, rows_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Kept", "check_table", "read_part", "write_table"]

#: endings of files that a table is written to
TABLES: tuple[str, ...] = (".csv", ".parquet", ".json")
_FILE = "question.json"


def write_table(columns: pd.DataFrame | Mapping[str, Any], path: str | Path) -> None:
    """Write a table.

    Parameters
    ----------
    columns : pandas.DataFrame, or mapping of str to array or Shared
        The rows, also as `Swept.columns` has them.
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
        write_atomically(path, csv_parts(columns))
        return
    frame = frame_of_columns({name: rows_of(columns[name]) for name in columns})
    if path.suffix == ".json":
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
        how: dict[str, Any] = {}
        if sweep.simulation is not None:
            files = sweep.simulation.files(Arriving(*one) for one in sweep.axes["load"])
            read = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            how = {"simulation": asdict(sweep.simulation), "files": read}
        self._question = json.dumps({"axes": axes, "loads": loads, **how, **words}, sort_keys=True, default=str)

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
        return [read_part(one) for one in sorted(self.folder.glob("*.npz"))]

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


def read_part(path: str | Path) -> Block:
    """Read one combination that was kept.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Block
        The combination.

    Raises
    ------
    SpecError
        If it is broken.
    """
    import io
    import zipfile

    with understood(path, "part of a sweep"):
        data = read_bytes(path)
        try:
            # what `Kept.keep` writes is not packed: nothing can unpack to more than the file
            if any(one.compress_type or one.flag_bits & 1 for one in zipfile.ZipFile(io.BytesIO(data)).infolist()):
                raise SpecError("is no part of a sweep: delete the folder and begin anew", file=path)
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise ValueError(str(error)) from error
        said = parse_json(str(arrays.pop("said")), file=path)
        verdict, held = arrays.pop("verdict"), arrays.pop("held")
        if not isinstance(said["number"], int) or any(one.shape != verdict.shape for one in (held, *arrays.values())):
            raise ValueError("its columns differ in length")
        return Block(said["number"], said["said"], said["facts"], verdict, held, arrays, said["reason"])
