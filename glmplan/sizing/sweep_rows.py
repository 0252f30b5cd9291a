"""Columns of a sweep that many rows share, and its rows as CSV: neither looks at each row by itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["csv_text", "taken"]

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
    columns = [_column(frame[name]) for name in frame.columns]
    widths = [_WIDTH if texts is None else texts.itemsize for _, texts in columns]
    ends = np.cumsum([width + 1 for width in widths])
    rows = max(min(_ROWS, _BYTES // int(ends[-1])), 1)
    parts = [(_line(frame.columns) + "\n").encode()]
    for start in range(0, len(frame), rows):
        count = min(rows, len(frame) - start)
        # every field has the width of the longest one: what is not used of it is taken out at the end
        page = np.full((count, int(ends[-1])), ord(","), dtype=np.uint8)
        for (values, texts), end, width in zip(columns, ends, widths, strict=True):
            some = values[start : start + count]
            written = _numbers(some) if texts is None else texts[some]
            page[:, end - 1 - width : end - 1] = written.view(np.uint8).reshape(count, width)
        page[:, -1] = ord("\n")
        parts.append(page.tobytes().translate(None, _UNUSED))
    return b"".join(parts).decode()


def _column(column: pd.Series) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of a column; of others the places of their values, and each different one as bytes."""
    import pandas as pd

    if column.dtype.kind == "f" and isinstance(column.dtype, np.dtype):
        return column.to_numpy(dtype=float), None
    places, values = pd.factorize(column, use_na_sentinel=True)
    # the last one is what is missing
    return np.where(places < 0, len(values), places), _padded([*(_line([one]).encode() for one in values), b""])


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
