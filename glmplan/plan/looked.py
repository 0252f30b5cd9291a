"""A change that was looked at: the plan of a changed question, with its figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glmplan.errors import GlmplanError
from glmplan.plan.plan import Change
from glmplan.plan.question import Asked
from glmplan.plan.ranking import Scored
from glmplan.plan.search import Solution, solve
from glmplan.plan.simulated import shown_rate, steady_rate

__all__ = ["Looked", "looked_at", "tried", "verdict_of"]


def verdict_of(asked: Asked, first: Scored) -> str:
    """Verdict of a plan: one full-length request, and every user if a number of users was asked for.

    Parameters
    ----------
    asked : Asked
        The question.
    first : Scored
        The chosen layout.

    Returns
    -------
    str
        ``fits``, ``tight`` or ``does_not_fit``.
    """
    holding = first.holding
    if holding.terms.blocked is not None:
        return "does_not_fit"
    if holding.verdict == "fits" and asked.users_given and holding.held_low < asked.users[-1]:
        return "tight"
    return holding.verdict


@dataclass(frozen=True, slots=True)
class Looked:
    """A change that was looked at, with the plan that it comes to.

    Attributes
    ----------
    change : Change
        Its figures; the rate of many users is that of steady sums.
    asked : Asked
        The question with it.
    scored : Scored or None
        Its best layout; None where it is refused.
    """

    change: Change
    asked: Asked
    scored: Scored | None

    def told(self) -> Change:
        """The change with what running its plan prints: where the cache does not hold the users, simulated."""
        if self.scored is None or not self.scored.alone:
            return self.change
        return replace(self.change, total_rate=shown_rate(self.asked, self.scored, self.change.total_rate))


def looked_at(name: str, what: str, ask: str, solution: Solution, note: str = "", place: int = 0) -> Looked:
    """The change that the plan of a question is, in words.

    Parameters
    ----------
    name, what, ask : str
        Kind of change, the change in words, and the words that ask for it.
    solution : Solution
        The plan with it.
    note : str, optional
        What to know about it.
    place : int, optional
        Which of its layouts, the best by default, [-]

    Returns
    -------
    Looked
        The change.
    """
    asked, one = solution.asked, solution.ranked[place]
    holding = one.holding
    change = Change(
        name=name,
        what=what,
        verdict=verdict_of(asked, one),
        layout=holding.terms.name,
        pool_tokens=holding.pool,
        pool_low=holding.pool_low,
        held=holding.held_low,
        user_rate=one.alone,
        total_rate=steady_rate(asked, one),
        note=note,
        ask=ask,
        knowledge=one.knowledge,
    )
    return Looked(change, asked, one)


def tried(asked: Asked, options: frozenset[str] = frozenset(), *, sole: bool = True) -> Solution | None:
    """Plan a changed question.

    Parameters
    ----------
    asked : Asked
        The question.
    options : frozenset of str, optional
        As in `glmplan.plan.search.solve`.
    sole : bool, optional
        Whether only its best layout matters, as in `glmplan.plan.search.solve`.

    Returns
    -------
    Solution or None
        None where it is refused, or its network is not known.
    """
    try:
        found = solve(asked, options=options, quick=True, sole=sole)
    except GlmplanError:
        return None
    if found.best.verdict != "does_not_fit" and found.ranked[0].alone == 0.0 and found.speed_known:
        return None  # its network is not known
    return found
