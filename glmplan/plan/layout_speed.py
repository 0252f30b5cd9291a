"""How fast a layout is, and in words why it was not the one to choose."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked
from glmplan.plan.users_asked import usual_users
from glmplan.units import GIB, counted_unit

__all__ = ["FLOOR", "Speed", "why_not"]

#: a layout that gives one user less than this share of the best layout's speed is not chosen for its throughput [-]
FLOOR = 0.7


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a layout.

    Attributes
    ----------
    alone, many : float
        Tokens per second of one user, and of the typical number of users together, [token/s]
    alone_low, many_low : float
        Low ends of both, times the share of the cards in use, [token/s]
    knowledge : str
        Class of what they rest on.
    """

    alone: float = 0.0
    alone_low: float = 0.0
    many: float = 0.0
    many_low: float = 0.0
    knowledge: str = ""


def why_not(
    asked: Asked, holdings: list[Holding], speeds: dict[int, Speed], safe: dict[int, int], place: int, first: int
) -> str:
    """Say why a layout was not chosen.

    Parameters
    ----------
    asked : Asked
        The question.
    holdings : list of Holding
        All layouts and their memory.
    speeds : dict of int to Speed
        Speeds of those that have any, by their places, [-]
    safe : dict of int to int
        Safe users of those that are alike in all else, by their places, [-]
    place, first : int
        Which one, and the chosen one, [-]

    Returns
    -------
    str
        The reason.
    """
    one, best = holdings[place], holdings[first]
    if one.terms.blocked is not None:
        return f"does not run: {one.terms.blocked.title}"
    if one.verdict == "does_not_fit":
        perhaps = ", within the uncertainty" if one.may_start else ""
        return f"{one.lacking / GIB:.1f} GiB short on each card of stage {one.stage}{perhaps}"
    if one.verdict == "tight" and best.verdict == "fits":
        return "one full-length request fits only if the engine takes no more than its mean"
    if place not in speeds or first not in speeds:
        return "a smaller cache pool"
    mine, other, users = speeds[place], speeds[first], usual_users(asked.machine)
    idle = asked.machine.count - one.terms.accelerators
    if idle > asked.machine.count - best.terms.accelerators:
        return f"leaves {idle} of {asked.machine.count} accelerators idle"
    if mine.alone < 0.98 * other.alone and mine.many < 0.98 * other.many:
        return f"slower for one user ({mine.alone:.1f} tok/s) and for {users} ({mine.many:,.0f} in all)"
    if mine.alone_low < FLOOR * other.alone_low:
        if mine.alone > 0.9 * other.alone:
            return f"less is measured: one user is sure of {mine.alone_low:.1f} tok/s against {other.alone_low:.1f}"
        return f"one user gets {mine.alone:.1f} instead of {other.alone:.1f} tok/s"
    if mine.many > other.many and mine.many_low < other.many_low:
        return (
            f"perhaps {mine.many:,.0f} tok/s for {users} users, but less is measured: "
            f"sure of {mine.many_low:,.0f} against {other.many_low:,.0f}"
        )
    if mine.many < 0.98 * other.many:
        return f"{users} users get {mine.many:,.0f} instead of {other.many:,.0f} tok/s in all"
    if mine.alone < 0.98 * other.alone:
        return f"no faster for {users} users; one user gets {mine.alone:.1f} instead of {other.alone:.1f} tok/s"
    if {place, first} <= safe.keys() and safe[place] < safe[first]:
        return f"about as fast; {safe[place]:,} instead of {counted_unit(safe[first], 'users')} are safe"
    return "about as fast; more to set up or a smaller pool"
