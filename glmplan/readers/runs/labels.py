"""Lengths of tables that are labels: the tool counted four characters as a token, and what that is in tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

from glmplan.facts.files import read_entries
from glmplan.facts.folders import data_folder

__all__ = ["counted_label"]


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    return read_entries(data_folder("calibration") / "labels.toml", "labels", {"noted_as", "model", "tokens"})


def counted_label(length: float, *, model: str, notes: str) -> tuple[float, bool]:
    """Tokens of a length that a table states, where the text behind its label was counted.

    Parameters
    ----------
    length : float
        The length as stated, [token]
    model : str
        The model, as the table writes it.
    notes : str
        Notes of the row, which tell whether its lengths are labels.

    Returns
    -------
    float, bool
        The counted length [token], and whether it is still a label.

    Examples
    --------
    >>> counted_label(8192.0, model="kimi-k2.6", notes="see models/kimi-k26.md")
    (5312.0, False)
    >>> counted_label(8192.0, model="glm-5.1", notes="a count")
    (8192.0, False)
    """
    noted = any(word in notes for entry in _entries() for word in entry.get("noted_as", ()))
    if not noted:
        return length, False
    for entry in _entries():
        for label, tokens in entry.get("tokens", ()):
            if model.startswith(entry["model"]) and label == int(length):
                return float(tokens), False
    return length, True
