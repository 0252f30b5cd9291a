"""Plans: from a question in words to the best layout, its memory, speed, safe users and what would change them."""

from __future__ import annotations

from glmplan.plan.answer import FitAnswer
from glmplan.plan.make_plan import answer_of, fit_answer
from glmplan.plan.question import Asked, Words, read_words
from glmplan.plan.search import Solution, solve

__all__ = ["Asked", "FitAnswer", "Solution", "Words", "answer_of", "fit_answer", "read_words", "solve"]
