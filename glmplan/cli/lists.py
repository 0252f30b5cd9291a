"""Options that are lists: with commas, and said again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["joined"]


def joined(said: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of what was said once or several times, as one text with commas.

    Parameters
    ----------
    said : mapping
        Option → what was said; a sequence where it may be said again.

    Returns
    -------
    dict
        The same with texts; without options that were not said.

    Examples
    --------
    >>> joined({"model": ["a,b", "c"], "on": [], "most": 5, "engine": None})
    {'model': 'a,b,c', 'most': 5}
    """
    texts = {name: _text(value) for name, value in said.items()}
    return {name: value for name, value in texts.items() if value is not None}


def _text(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(value) if value else None
    return value
