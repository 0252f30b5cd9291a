"""Keyword arguments of the Python functions, computed from the request; `keywords.pyi` is what type checkers read."""

from __future__ import annotations

from glmplan.request.derive import keyword_types, type_hints_text
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

__all__ = ["Arrivals", "Question", "keyword_hints_text"]

_SUBJECT = ("model", "on")

Question = keyword_types("Question", PlanRequest, _SUBJECT)
Arrivals = keyword_types("Arrivals", TrafficSpec)


def keyword_hints_text() -> str:
    """Return the text of `keywords.pyi`."""
    return type_hints_text(
        {
            "Question": (PlanRequest, _SUBJECT, "Options of a plan beside model and machine, as `glmplan fit --help`."),
            "Arrivals": (TrafficSpec, (), "Options of traffic beside its kind."),
        }
    )
