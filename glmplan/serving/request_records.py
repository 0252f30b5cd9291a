"""One flat record for each request, streamed to CSV or Parquet; what was written is kept when a run is interrupted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.serving.traffic.request import Request

__all__ = ["COLUMNS", "RecordWriter", "RequestRows", "record_columns", "request_columns"]

#: Columns of a record: name in the file → name inside; times in seconds after the start.
COLUMNS = {
    "request": "number",
    "session": "session",
    "turn": "turn",
    "priority": "priority",
    "replica": "replica",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_tokens": "cached",
    "preemptions": "preemptions",
    "arrival_s": "arrival",
    "queue_wait_s": "",
    "prefill_start_s": "started",
    "first_token_s": "first",
    "finish_s": "finish",
}

#: Columns inside, whole numbers before times.
_WHOLE = (
    *("number", "session", "turn", "priority", "replica"),
    *("input_tokens", "output_tokens", "cached", "preemptions"),
)
_NAMES = (*_WHOLE, "arrival", "started", "first", "finish")


def request_columns(requests: list[Request]) -> dict[str, np.ndarray]:
    """Columns of finished requests.

    Parameters
    ----------
    requests : list of Request
        Requests that an engine has finished.

    Returns
    -------
    dict of ndarray
        Columns by name; times in [s], lengths in [token]

    Examples
    --------
    >>> request_columns([Request(3, 0.5, 10, 2)])["arrival"].tolist()
    [0.5]
    """
    rows = RequestRows()
    rows.add(requests)
    return rows.take()


def record_columns(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of finished requests under the names that a file or a frame has.

    Parameters
    ----------
    columns : dict of ndarray
        As `request_columns` makes them, [s] or [token]

    Returns
    -------
    dict of ndarray
        Columns `COLUMNS`; the wait is what lies between arrival and prefill, [s] or [token]

    Examples
    --------
    >>> record_columns(request_columns([Request(3, 0.5, 10, 2)]))["request"].tolist()
    [3]
    """
    return {
        name: columns[inside] if inside else np.maximum(columns["started"] - columns["arrival"], 0.0)
        for name, inside in COLUMNS.items()
    }


class RequestRows:
    """Records of finished requests as flat rows of numbers, so that the requests themselves need not be kept.

    Examples
    --------
    >>> rows = RequestRows()
    >>> rows.add([Request(3, 0.5, 10, 2)])
    >>> len(rows), rows.take()["input_tokens"].tolist(), len(rows)
    (1, [10], 0)
    """

    def __init__(self) -> None:
        self._rows: list[float] = []

    def __len__(self) -> int:
        return len(self._rows) // len(_NAMES)

    def add(self, requests: Iterable[Request]) -> None:
        """Append records one by one; what was appended before an interrupt stays.

        Parameters
        ----------
        requests : iterable of Request
            Requests as an engine finishes them.
        """
        rows = self._rows
        for one in requests:  # in the order of `_NAMES`
            rows += (
                one.number, one.session, one.turn, one.priority, one.replica, one.input, one.output, one.cached,
                one.preemptions, one.arrival, one.started, one.first, one.finish,
            )  # fmt: skip

    def take(self) -> dict[str, np.ndarray]:
        """Hand the records out and begin anew.

        Returns
        -------
        dict of ndarray
            Columns by name; times in [s], lengths in [token]
        """
        columns = np.fromiter(self._rows, float, len(self._rows)).reshape(-1, len(_NAMES)).T.copy()
        self._rows = []
        return {
            name: column.astype(np.int64) if name in _WHOLE else column
            for name, column in zip(_NAMES, columns, strict=True)
        }


class RecordWriter:
    """A file of records that grows piece by piece and appears under its name when closed, also after an interrupt.

    Parameters
    ----------
    path : path
        Ends in `.csv` or `.parquet`; the latter needs the extra `parquet`.

    Raises
    ------
    SpecError
        If the ending is not known, pyarrow is missing or the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "out.csv"
    >>> with RecordWriter(file) as writer:
    ...     writer.write(request_columns([Request(3, 0.5, 10, 2)]))
    >>> file.read_text().splitlines()[1]
    '3,-1,0,0,0,10,2,0,0,0.5,0,-1,-1,-1'
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._parquet: Any = None
        if self._path.suffix not in (".csv", ".parquet"):
            raise SpecError("must end in .csv or .parquet", field="--records", value=str(path))
        if self._path.suffix == ".parquet":
            check_extra("pyarrow", field="--records")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.", suffix=".tmp")
        except OSError as error:
            raise SpecError(f"cannot be written: {error.strerror}", file=path, field="--records") from None
        self._temporary = Path(name)
        self._stream = os.fdopen(handle, "wb")
        if self._path.suffix == ".csv":
            self._stream.write((",".join(COLUMNS) + "\n").encode())

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, columns: dict[str, np.ndarray]) -> None:
        """Append records.

        Parameters
        ----------
        columns : dict of ndarray
            Columns as `request_columns` makes them, [s] or [token]
        """
        table = record_columns(columns)
        if self._path.suffix == ".csv":
            texts = [
                (f"{x:.9f}".rstrip("0").rstrip(".") for x in column.tolist())
                if column.dtype.kind == "f"
                else map(str, column.tolist())
                for column in table.values()
            ]
            self._stream.write("".join(",".join(row) + "\n" for row in zip(*texts, strict=True)).encode())
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrow = pa.table(table)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._stream, arrow.schema)
        self._parquet.write_table(arrow)

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._stream.closed:
            return
        if self._path.suffix == ".parquet":
            if self._parquet is None:
                self.write(request_columns([]))
            self._parquet.close()
        self._stream.close()
        os.chmod(self._temporary, 0o644)
        os.replace(self._temporary, self._path)
