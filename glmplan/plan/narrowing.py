"""Which run of a plan would narrow its intervals most, where its own machine was not measured, and its command."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked
from glmplan.plan.ranking import load_of
from glmplan.plan.validate_command import degrees_of, validate_command
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.narrowing import narrowed
from glmplan.prediction.predict import Figure

__all__ = ["Narrowed", "Narrowing", "narrowing_of", "narrowing_words"]

_NAMES = {"tpot": "decode", "ttft": "first token"}


class _Row(Protocol):
    """A row of the table over users."""

    @property
    def users(self) -> int:
        """[-]"""

    @property
    def ttft(self) -> Figure | None:
        """[s]"""

    @property
    def tpot(self) -> Figure | None:
        """[s]"""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """How far one figure is narrowed.

    Attributes
    ----------
    users : int
        Users at once of whom it is, [-]
    figure : str
        ``ttft`` or ``tpot``.
    before, after : float
        Half the width of the logarithm of its 90 % interval, today and after the run, [-]
    """

    users: int
    figure: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, repr=False)
class Narrowing:
    """The run that would narrow the intervals of a plan most.

    Attributes
    ----------
    users : int
        Users at once that are measured, [-]
    figures : tuple of Narrowed
        What it does to the figures of one user, then of the typical number.
    command : str
        The `glmplan validate` command that makes it.
    """

    users: int
    figures: tuple[Narrowed, ...]
    command: str

    def __repr__(self) -> str:
        return f"<Narrowing: {narrowing_words(self)}>"


def narrowing_of(
    asked: Asked, holding: Holding, deployment: Deployment, knowledge: str, rows: tuple[_Row, ...]
) -> Narrowing | None:
    """Find the number of users whose run leaves least open of the figures of a plan.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The plan.
    deployment : Deployment
        The same, as it is predicted.
    knowledge : str
        Class of what is known of it.
    rows : tuple of UserRow
        Numbers of users with their figures of today; these numbers are also what may be measured.

    Returns
    -------
    Narrowing or None
        The run after which the variances of the logarithms of all these figures add up to the least; None where the
        site measured it, where a run moves nothing, or where no figure would be narrower.

    Examples
    --------
    >>> from glmplan.plan import Words, fit_answer
    >>> found = fit_answer(Words("gpt-oss-120b", "1xrtx-pro-6000-ws")).narrowing
    >>> found.figures[0].after < 0.5 * found.figures[0].before
    True
    """
    if knowledge == "site":
        return None
    by_users = {row.users: {"tpot": row.tpot, "ttft": row.ttft} for row in rows}
    counts = sorted(by_users)
    loads = [load_of(asked, deployment, holding.pool, users, holding.terms.decoding) for users in counts]
    best: tuple[float, int, tuple[Narrowed, ...]] | None = None
    for users, after in zip(counts, narrowed(deployment, loads), strict=False):
        found = tuple(
            Narrowed(other, name, before := 0.5 * math.log(now.high / now.low), min(widths[name], before))
            for other, widths in zip(counts, after, strict=True)
            for name, now in by_users[other].items()
            if now is not None and name in widths
        )
        left = sum(one.after**2 for one in found)
        if any(one.after < one.before for one in found) and (best is None or left < best[0]):
            best = left, users, found
    if best is None:
        return None
    command = validate_command(
        asked.model.name,
        asked.machine.text,
        {"weights": asked.checkpoint.name, "engine": asked.engine, **degrees_of(holding.terms)},
        users=(best[1],),
        lengths=(asked.input_tokens, asked.output_tokens),
    )
    return Narrowing(best[1], best[2], command)


def narrowing_words(found: Narrowing, of: tuple[str, ...] = ("tpot", "ttft")) -> str:
    """Say what a run would narrow.

    Parameters
    ----------
    found : Narrowing
        The run.
    of : tuple of str, optional
        Figures that are told.

    Returns
    -------
    str
        Who is measured, and each figure before and after.

    Examples
    --------
    >>> figures = (Narrowed(1, "tpot", 0.583, 0.129), Narrowed(1, "ttft", 1.28, 0.315), Narrowed(32, "tpot", 0.6, 0.2))
    >>> narrowing_words(Narrowing(1, figures, ""))
    'one user to narrow decode of one from ±79 % to ±14 %, of 32 from ±82 % to ±22 %; first token of one from 3.6 times
    to ±37 %'
    """
    said = []
    for name in of:
        figures = (one for one in found.figures if one.figure == name)
        words = [f"{_whose(one.users)} from {_wide(one.before)} to {_wide(one.after)}" for one in figures]
        if words:
            said.append(f"{_NAMES[name]} {', '.join(words)}")
    who = f"{found.users:,} users" if found.users > 1 else "one user"
    return f"{who} to narrow {'; '.join(said)}"


def _whose(users: int) -> str:
    return f"of {users:,}" if users > 1 else "of one"


def _wide(half: float) -> str:
    """Half a width in words."""
    share = math.expm1(half)
    return f"±{share:.0%}".replace("%", " %") if share < 1.0 else f"{math.exp(half):.1f} times"
