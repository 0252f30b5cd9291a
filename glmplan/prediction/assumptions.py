"""Assumptions of a prediction by kind.

They are the settings that its row or its request does not state.

Intervals of rows with stated settings are narrower than those of other rows, see docs/physics/calibration.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["ASSUMPTIONS", "NARROWED_BY", "assumed_kinds"]

#: kind of assumption → beginning of its text in `glmplan.prediction.from_row.RunCase.assumed`
_TEXTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("cache format", re.compile(r"kv ")),
    ("weights", re.compile(r"weights ")),
    ("lengths", re.compile(r"\d+ (?:input|output) tokens$")),
    ("requests in flight", re.compile(r"\d+ requests in flight$")),
    ("drafting", re.compile(r"\d+ draft tokens$")),
    ("launch settings", re.compile(r".* by default, for want of a script$")),
    ("layout", re.compile(r"(?:tp|servers of tp) \d+$")),
    ("engine", re.compile(r"engine ")),
    ("host", re.compile(r"host ")),
)
#: all kinds, in the order of an answer
ASSUMPTIONS: tuple[str, ...] = tuple(kind for kind, _ in _TEXTS)
#: kind of assumption → the option that states it
NARROWED_BY: dict[str, str] = {
    "cache format": "--kv",
    "weights": "--weights",
    "lengths": "--input and --output",
    "drafting": "--acceptance",
    "host": "--on HOST",
}


def assumed_kinds(texts: Iterable[str], *, phase: str = "serving") -> tuple[str, ...]:
    """Return the kinds of assumption in texts, each once.

    Output lengths change a serving run only: a decode or prefill run is one kind of step. A label that stands for a
    counted length is no assumption, nor is a layout that the launch script states.

    Examples
    --------
    >>> assumed_kinds(["kv bf16", "512 input tokens", "256 output tokens", "a label of 8192 stands for 5312 tokens"])
    ('cache format', 'lengths')
    >>> assumed_kinds(["256 output tokens"], phase="decode")
    ()
    """
    told = [text for text in texts if phase == "serving" or not text.endswith("output tokens")]
    return tuple(kind for kind, pattern in _TEXTS if any(pattern.match(text) for text in told))
