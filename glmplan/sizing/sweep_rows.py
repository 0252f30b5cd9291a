"""Columns of a sweep that many rows share, and its rows as CSV: neither looks at each row by itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Shared", "csv_parts", "csv_text", "rows_of", "taken"]

#: bytes and rows that are written at once [B] [-]
_BYTES, _ROWS = 1 << 22, 65_536
#: powers of ten that the first digit of a usual number stands for; bytes of a number and of half of it [B]
_POWERS, _WIDTH, _HALF = range(-6, 11), 16, 8
#: what numbers of these powers are multiplied with, and divided by, to be six digits
_TIMES = np.array([10.0 ** max(5 - power, 0) for power in _POWERS])
_OVER = np.array([10.0 ** max(power - 5, 0) for power in _POWERS])
#: fills what a field does not use: no byte of a text in UTF-8
_UNUSED = b"\xff"
#: how near a number may be to the middle between two of six digits before it is written by itself [-]
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A column of a few values that many rows share.

    Attributes
    ----------
    values : sequence or array
        The values.
    places : (n,) array of int
        Value of each row, [-]
    """

    values: Sequence[Any] | np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)


def taken(values: Sequence[Any] | np.ndarray, places: np.ndarray) -> Any:
    """A column of a few values that many rows share, made without looking at each row.

    Parameters
    ----------
    values : sequence
        The values; those of an array keep its dtype.
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

    if isinstance(values, np.ndarray) and values.dtype != object:
        return values[places]
    each = np.empty(len(values), dtype=object)
    each[:] = list(values)
    return pd.Series(each).array.take(places)


def rows_of(column: Any, rows: np.ndarray | None = None) -> Any:
    """A column as a frame takes it.

    Parameters
    ----------
    column : Shared, or values themselves
        The column.
    rows : (n,) array of bool or (m,) array of int, optional
        Rows that are wanted; all by default.

    Returns
    -------
    pandas column
        What of it stands in these rows.

    Examples
    --------
    >>> rows_of(Shared(("a", "b"), np.array([0, 1, 1])), np.array([True, False, True])).tolist()
    ['a', 'b']
    """
    if isinstance(column, Shared):
        return taken(column.values, column.places if rows is None else column.places[rows])
    return column if rows is None else column[rows]


def csv_text(columns: pd.DataFrame | Mapping[str, Any]) -> str:
    """Several columns as CSV with six digits of each number, as pandas writes a frame of them.

    Parameters
    ----------
    columns : pandas.DataFrame, or mapping of str to array or Shared
        Column → its rows.

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
    return b"".join(csv_parts(columns)).decode()


def csv_parts(columns: pd.DataFrame | Mapping[str, Any]) -> Iterator[bytes]:
    """What `csv_text` says, some rows after the other.

    Parameters
    ----------
    columns : pandas.DataFrame, or mapping of str to array or Shared
        Column → its rows.

    Yields
    ------
    bytes
        Whole lines, in UTF-8.
    """
    yield (_line(columns) + "\n").encode()
    length = max(len(columns[name]) for name in columns)
    fields = _fields([columns[name] for name in columns])
    widths = [_WIDTH if texts is None else texts.itemsize for _, texts in fields]
    ends = np.cumsum([width + 1 for width in widths])
    rows = max(min(_ROWS, _BYTES // int(ends[-1])), 1)
    for start in range(0, length, rows):
        count = min(rows, length - start)
        # every field has the width of the longest one: what is not used of it is taken out at the end
        page = np.full((count, int(ends[-1])), ord(","), dtype=np.uint8)
        for (values, texts), end, width in zip(fields, ends, widths, strict=True):
            some = values[start : start + count]
            written = _numbers(some) if texts is None else texts[some]
            page[:, end - 1 - width : end - 1] = written.view(np.uint8).reshape(count, width)
        page[:, -1] = ord("\n")
        yield page.tobytes().translate(None, _UNUSED)


def _fields(columns: Iterable[Any]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Numbers of columns; of others the places of their values, and each of these as bytes.

    Columns beside each other whose rows share values in the same way are written together.
    """
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    together: list[bytes] = []
    for column in columns:
        places, texts = _column(column)
        if texts is None:
            found.append((places, None))
            continue
        if found and found[-1][1] is not None and found[-1][0] is places:
            together = [b",".join(both) for both in zip(together, texts, strict=True)]
            found.pop()
        else:
            together = texts
        found.append((places, _padded(together)))
    return found


def _column(column: Any) -> tuple[np.ndarray, list[bytes] | None]:
    """The numbers of a column; of others the places of their values, and each different one as bytes."""
    import pandas as pd

    if isinstance(column, Shared):
        values = column.values
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            return values[column.places], None
        return column.places, [_text(one) for one in values]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        return np.asarray(column, dtype=float), None
    places, values = pd.factorize(column, use_na_sentinel=True)
    # the last one is what is missing
    return np.where(places < 0, len(values), places), [*(_text(one) for one in values), b""]


def _text(value: Any) -> bytes:
    return b"" if value is None or value != value else _line([value]).encode()


def _padded(texts: Sequence[bytes]) -> np.ndarray:
    """Texts as an array of bytes of one width."""
    width = max(map(len, texts), default=1) or 1
    return np.array([one.ljust(width, _UNUSED) for one in texts], dtype=f"S{width}")


def _numbers(values: np.ndarray) -> np.ndarray:
    """Numbers as ``%.6g`` writes them, and nothing for what is none.

    Six digits are a whole number times a power of ten, of which both halves are looked up.
    """
    usual = (values >= 10.0 ** _POWERS[0]) & (values < 10.0 ** _POWERS[-1])
    size = np.where(usual, values, 1.0)
    power = np.maximum(np.floor(np.log10(size)).astype(np.int64), _POWERS[0])
    row = power - _POWERS[0]
    # powers of ten are exact, so that a product or quotient is right but for its last bit
    digits = size * _TIMES[row] / _OVER[row]
    whole = np.rint(digits).astype(np.int64)
    usual &= (np.abs(np.abs(digits - whole) - 0.5) > _NEAR) & (whole >= 100_000)
    # what is rounded up to a power of ten, or whose logarithm came out a little low
    beyond = whole >= 1_000_000
    whole, power = np.where(beyond, 100_000, whole), power + beyond
    high = whole // 1000
    low = whole - 1000 * high
    left, right = _halves()
    row = np.minimum(power - _POWERS[0], len(_POWERS) - 1)
    found = np.empty(len(values), dtype=f"S{_WIDTH}")
    halves = found.view(f"S{_HALF}").reshape(-1, 2)
    halves[:, 0] = left[(row * 2 + (low == 0)) * 1000 + high]
    halves[:, 1] = right[row * 1000 + low]
    odd = np.flatnonzero(~usual)
    # by their bits: zero has a sign
    bits, places = np.unique(values[odd].view(np.int64), return_inverse=True)
    texts = ["" if np.isnan(one) else f"{one:.6g}" for one in bits.view(float).tolist()]
    found[odd] = np.array([one.encode().ljust(_WIDTH, _UNUSED) for one in texts], dtype=found.dtype)[places]
    return found


@lru_cache(maxsize=1)
def _halves() -> tuple[np.ndarray, np.ndarray]:
    """Both halves of six digits for each power of ten: three digits with and without others behind them, the others."""
    left, right = [], []
    for power in _POWERS:
        point = power + 1
        exponent = "" if -4 <= power < 6 else f"e{power:+03d}"
        point = 1 if exponent else point
        for alone in (False, True):
            for high in range(1000):
                digits = f"{high:03d}"
                text = f"0.{'0' * -point}{digits}" if point < 1 else f"{digits[:point]}.{digits[point:]}"
                text = text.removesuffix(".") if point > 2 else text
                left.append(text.rstrip("0").rstrip(".") if alone and point < 3 else text)
        for low in range(1000):
            before, after = f"{low:03d}"[: max(point - 3, 0)], f"{low:03d}"[max(point - 3, 0) :].rstrip("0")
            right.append(before + ("." if point > 2 and after else "") + after + exponent)
    one, other = (_padded([text.encode().ljust(_HALF, _UNUSED) for text in texts]) for texts in (left, right))
    return one, other


def _line(values: Iterable[Any]) -> str:
    """Values between commas, quoted where they have to be."""
    stream = io.StringIO()
    # an empty field behind them: a single one that is empty would be quoted
    csv.writer(stream, lineterminator="\n").writerow([*values, ""])
    return stream.getvalue()[:-2]
