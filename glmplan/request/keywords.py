"""Keyword arguments of the Python functions, computed from the request; `keywords.pyi` is what type checkers read."""

from __future__ import annotations

from glmplan.request.derive import keyword_types
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

__all__ = ["SUBJECT", "Arrivals", "Question"]

#: arguments of a plan by position
SUBJECT = ("model", "on")

Question = keyword_types("Question", PlanRequest, SUBJECT)
Arrivals = keyword_types("Arrivals", TrafficSpec)
