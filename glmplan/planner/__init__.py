"""Plan a request: best layout, memory, speed, safe users, changes.

Each name is imported on first use: a service that is only simulated does not need the page of `fit`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glmplan.planner.make_plan import FitAnswer, answer_of, fit_answer
    from glmplan.planner.question import Asked, read_words
    from glmplan.planner.users import Solution, solve

__all__ = ["Asked", "FitAnswer", "Solution", "answer_of", "fit_answer", "read_words", "solve"]

_MODULE = {"FitAnswer": "make_plan", "answer_of": "make_plan", "fit_answer": "make_plan"}
_MODULE |= dict.fromkeys(("Asked", "read_words"), "question") | dict.fromkeys(("Solution", "solve"), "users")


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module 'glmplan.planner' has no attribute {name!r}")
    return getattr(importlib.import_module(f"glmplan.planner.{_MODULE[name]}"), name)
