"""Forms that commands print their answers in."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Form", "Section"]


class Form(StrEnum):
    """How an answer is shown."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


class Section(StrEnum):
    """Parts of the page of `glmplan fit`, in their order; `tests/cli` holds them against the page's own."""

    memory = "memory"
    traffic = "traffic"
    users = "users"
    layouts = "layouts"
    changes = "changes"
    warnings = "warnings"
    start = "start"
    basis = "basis"
