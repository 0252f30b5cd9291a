"""The answer to a question: its record, in one line and as a page."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.plan.answer_text import fit_text
from glmplan.plan.plan import AnswerRecord

__all__ = ["FitAnswer"]


@dataclass(frozen=True, repr=False)
class FitAnswer(AnswerRecord):
    """The whole answer of `fit`; its fields are those of `glmplan.plan.plan.AnswerRecord`.

    ``repr`` is one line, ``print`` shows the page of `glmplan fit --full`, ``to_frame`` gives its tables.
    """

    def __repr__(self) -> str:
        asked = self.asked
        safe = f", {self.safe.users} safe users" if self.safe is not None else ""
        return (
            f"<FitAnswer {asked.model.name} {asked.checkpoint.name} on {asked.machine.text}, {asked.engine}: "
            f"{self.headline}{safe}>"
        )

    def __str__(self) -> str:
        return fit_text(self)
