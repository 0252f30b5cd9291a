"""Columns of a sweep that many rows share, and its rows as CSV: neither looks at each row by itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["csv_text", "taken"]

#: rows that are written at once [-]
_ROWS = 65_536
#: different texts of a column up to which it is joined with its neighbour [-]
_FEW = 10_000


def taken(values: Sequence[Any], places: np.ndarray) -> Any:
    """A column of a few values that many rows share, made without looking at each row.

    Parameters
    ----------
    values : sequence
        The values.
    places : (n,) array of int
        Value of each row, [-]

    Returns
    -------
    pandas column
        With the dtype that a frame gives to the values themselves.

    Examples
    --------
    >>> list(taken(["fits", "tight"], np.array([0, 1, 1])))
    ['fits', 'tight', 'tight']
    """
    import pandas as pd

    each = np.empty(len(values), dtype=object)
    each[:] = list(values)
    return pd.Series(each).array.take(places)


def csv_text(frame: pd.DataFrame) -> str:
    """A frame of several columns as CSV with six digits of each number, as pandas writes it.

    Parameters
    ----------
    frame : pandas.DataFrame
        The rows.

    Returns
    -------
    str
        A line of names, then one for each row.

    Examples
    --------
    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"name": ["a,b", None], "value": [2 / 3, float("nan")]}))
    'name,value\\n"a,b",0.666667\\n,\\n'
    """
    columns = _columns(frame)
    parts = [_line(frame.columns) + "\n"]
    for start in range(0, len(frame), _ROWS):
        some = [(kind, values[start : start + _ROWS], texts) for kind, values, texts in columns]
        numbers = [values for kind, values, _ in some if kind == "%.6g"]
        rows = len(some[0][1])
        # a row that lacks a number has nothing in its place
        lacks = np.stack([np.isnan(one) for one in numbers], axis=1) if numbers else np.zeros((rows, 0), dtype=bool)
        kinds, of = np.unique(np.packbits(lacks, axis=1), axis=0, return_inverse=True)
        lines = np.empty(rows, dtype=object)
        for number in range(len(kinds)):
            here = np.flatnonzero(of.ravel() == number)
            lacking = iter(lacks[here[0]].tolist())
            written = [kind != "%.6g" or not next(lacking) for kind, _, _ in some]
            words = [kind if one else "" for (kind, _, _), one in zip(some, written, strict=True)]
            lists = [values[here].tolist() if texts is None else texts[values[here]].tolist()
                     for (_, values, texts), one in zip(some, written, strict=True) if one]  # fmt: skip
            lines[here] = list(map(",".join(words).__mod__, zip(*lists, strict=True))) if lists else ",".join(words)
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _columns(frame: pd.DataFrame) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """How each column is written, its values, and for texts, of which values are the places, each different one.

    Neighbours of few different texts are one column.
    """
    import pandas as pd

    found: list[tuple[str, np.ndarray, np.ndarray | None]] = []
    for name in frame.columns:
        column = frame[name]
        if column.dtype.kind in "fiu" and isinstance(column.dtype, np.dtype):
            found.append(("%.6g" if column.dtype.kind == "f" else "%d", column.to_numpy(), None))
            continue
        places, values = pd.factorize(column, use_na_sentinel=True)
        # the last one is what is missing
        texts = np.array([*(_line([one]) for one in values), ""], dtype=object)
        places = np.where(places < 0, len(texts) - 1, places)
        before = found[-1][2] if found else None
        if before is not None and max(len(before), len(texts)) < _FEW:
            both, pairs = pd.factorize(found[-1][1] * len(texts) + places)
            joined = [f"{before[pair // len(texts)]},{texts[pair % len(texts)]}" for pair in pairs]
            found[-1] = ("%s", both, np.array(joined, dtype=object))
        else:
            found.append(("%s", places, texts))
    return found


def _line(values: Iterable[Any]) -> str:
    """Values between commas, quoted where they have to be."""
    stream = io.StringIO()
    # an empty field behind them: a single one that is empty would be quoted
    csv.writer(stream, lineterminator="\n").writerow([*values, ""])
    return stream.getvalue()[:-2]
