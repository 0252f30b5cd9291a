"""Write `glmplan/request/keywords.pyi`: type checkers cannot compute a TypedDict."""

from __future__ import annotations

from pydantic import BaseModel

from glmplan.request.derive import keywords_of
from glmplan.request.keywords import SUBJECT
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

#: title of each TypedDict → its record, fields left out, docstring
_RECORDS: dict[str, tuple[type[BaseModel], tuple[str, ...], str]] = {
    "Question": (PlanRequest, SUBJECT, "Options of a plan beside model and machine, as `glmplan fit --help`."),
    "Arrivals": (TrafficSpec, (), "Options of traffic beside its kind."),
}


def keyword_hints_text() -> str:
    """Return the text of `keywords.pyi`."""
    lines = [
        "# Written by `make docs` from glmplan.request; do not edit.",
        "from collections.abc import Sequence",
        "from pathlib import Path",
        "from typing import TypedDict",
    ]
    for title, (record, without, text) in _RECORDS.items():
        lines += ["", f"class {title}(TypedDict, total=False):", f'    """{text}"""', ""]
        lines += [f"    {name}: {kind}" for name, kind in keywords_of(record, without).items()]
    return "\n".join([*lines, "", "SUBJECT: tuple[str, ...]"]) + "\n"
