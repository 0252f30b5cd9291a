"""Which changes of a plan gain the most, on evidence that can be compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from glmplan.plan.ranking import shown_users
from glmplan.plan.text import number
from glmplan.prediction.effects import KNOWN_AS

if TYPE_CHECKING:
    from glmplan.plan.plan import AnswerRecord, Change

__all__ = [
    "LEAST_GAIN",
    "as_well_known",
    "best_changes",
    "evidence_words",
    "gain_of",
    "gain_words",
    "worth_telling",
]

#: smallest gain that is worth a change of the plan: less is within what a repeated run differs by [-]
LEAST_GAIN = 0.05
_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}


def gain_of(answer: AnswerRecord, change: Change) -> float:
    """How much better a plan gets by a change.

    Parameters
    ----------
    answer : AnswerRecord
        The plan as asked, with its speeds.
    change : Change
        One of its changes.

    Returns
    -------
    float
        Infinite where the verdict gets better, or where users are safe and none was; else the share by which the
        requests grow that the cache surely holds, where the cache limits the users; else the share by which one user or
        all of the typical number get faster, whichever grows more. Below zero where the verdict gets worse, or where
        one of the two loses as much as the other gains, [-]
    """
    if _CLASS[change.verdict] != _CLASS[answer.verdict]:
        return math.inf if _CLASS[change.verdict] < _CLASS[answer.verdict] else -1.0
    if change.safe and answer.safe is not None and not answer.safe.users:
        return math.inf
    if answer.verdict == "tight" or (answer.safe is not None and answer.safe.limit == "kv"):
        assert answer.holding is not None
        return _share(change.held, answer.holding.held_low)
    pair = _share(change.user_rate, answer.user_rate), _share(change.total_rate, answer.total_rate)
    return max(pair) if max(pair) + min(*pair, 0.0) > 0 else min(pair)


def _share(after: float, before: float) -> float:
    return after / before - 1.0 if before > 0 else 0.0


def as_well_known(change: str, plan: str) -> bool:
    """Whether the speeds of a change rest on as much as those of the plan.

    Parameters
    ----------
    change, plan : str
        Classes of what is known, of `glmplan.prediction.effects.KNOWN_AS`, which writes them from most to least.

    Returns
    -------
    bool
        Whether they are of the same class, or the change's of a better one.
    """
    order = list(KNOWN_AS)
    return change == plan or (change in order and plan in order and order.index(change) <= order.index(plan))


def best_changes(answer: AnswerRecord, most: int = 3) -> tuple[Change, ...]:
    """Choose the changes that gain the most.

    Parameters
    ----------
    answer : AnswerRecord
        The plan as asked.
    most : int, optional
        How many at most, [-]

    Returns
    -------
    tuple of Change
        The largest gain first, none under `LEAST_GAIN`, and only those whose speeds rest on evidence of the same class
        as those of the plan, or of a better one; a better verdict rests on memory and needs none, and where nobody is
        safe a change with which somebody is says on what it rests. Where the plan does not fit, the changes that do, in
        the order in which they were computed: nearest first.
    """
    if answer.verdict == "does_not_fit":
        works = [one for one in answer.changes if one.verdict != "does_not_fit"]
        return tuple(sorted(works, key=lambda one: _CLASS[one.verdict])[:most])
    gains = [(gain_of(answer, one), one) for one in answer.changes]
    found = [
        (gain, one)
        for gain, one in gains
        if gain >= LEAST_GAIN and (gain == math.inf or as_well_known(one.knowledge, answer.knowledge))
    ]
    return tuple(one for _, one in sorted(found, key=lambda pair: -pair[0])[:most])


def worth_telling(answer: AnswerRecord) -> tuple[Change, ...]:
    """The changes of a plan that are worth their words, the largest gain first.

    Parameters
    ----------
    answer : AnswerRecord
        The plan as asked, with all changes that were computed.

    Returns
    -------
    tuple of Change
        Those that gain `LEAST_GAIN` at least, the largest gain first; fewer accelerators, which save, after them. Where
        the plan does not fit, the changes with which it does, in the order in which they were computed.
    """
    if answer.verdict == "does_not_fit":
        return tuple(one for one in answer.changes if one.verdict != "does_not_fit")
    if answer.holding is None or not answer.user_rate:
        return answer.changes
    gains = [(gain_of(answer, one), one) for one in answer.changes if one.name != "fewer"]
    found = sorted((pair for pair in gains if pair[0] >= LEAST_GAIN), key=lambda pair: -pair[0])
    return (*(one for _, one in found), *(one for one in answer.changes if one.name == "fewer"))


def evidence_words(answer: AnswerRecord, change: Change) -> str:
    """Say what the speeds of a change rest on, where that is something else than for the plan.

    Parameters
    ----------
    answer : AnswerRecord
        The plan as asked.
    change : Change
        A change of it.

    Returns
    -------
    str
        The class of what was measured; empty where it is the plan's.
    """
    if not change.knowledge or change.knowledge == answer.knowledge:
        return ""
    return KNOWN_AS.get(change.knowledge, "")


def gain_words(answer: AnswerRecord, change: Change) -> str:
    """Say what a change gains and what it costs.

    Parameters
    ----------
    answer : AnswerRecord
        The plan as asked.
    change : Change
        A change of it.

    Returns
    -------
    str
        Verdict and layout where they are others, speeds with the change and shares against the plan as asked, then the
        cache.

    Notes
    -----
    Shares are of means. Requests are those of the asked length that the low end of the cache pool holds.
    """
    users = shown_users(answer.asked)
    assert answer.holding is not None
    words = [change.verdict] * (change.verdict != answer.verdict)
    if change.safe:
        words.append(f"{change.safe:,} safe users instead of 0")
    words += [change.layout] * (change.layout != answer.holding.terms.name and change.name != "layout")
    pairs = [("one user", change.user_rate, answer.user_rate)]
    pairs += [(f"{users} users", change.total_rate, answer.total_rate)] * (users > 1)
    for name, after, before in pairs:
        if after and before:
            words.append(f"{name} {number(after)} tok/s ({_share(after, before):+.0%})")
    held = _share(change.held, answer.holding.held_low)
    if abs(held) >= LEAST_GAIN and math.isfinite(change.held):
        words.append(f"room for {change.held:,.0f} requests ({held:+.0%})")
    evidence = evidence_words(answer, change)
    return ", ".join(words) + f"; {evidence}" * bool(evidence)
