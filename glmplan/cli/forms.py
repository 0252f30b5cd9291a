"""Forms that commands print their answers in."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Form"]


class Form(StrEnum):
    """How an answer is shown."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"
