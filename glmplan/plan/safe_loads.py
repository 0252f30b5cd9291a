"""The largest safe load of a plan, and how surely it keeps a promise: counted where sums suffice, else simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glmplan.plan.safe_number import count_users, danger_of
from glmplan.plan.service import Described
from glmplan.serving.load_answer import SafeLoad, unit_of
from glmplan.serving.load_tries import Tries
from glmplan.serving.safe_load import Kept, check_search, kept_share, safe_load
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic

__all__ = ["kept_of", "safe_of", "searched_traffic"]

#: what a kind of traffic begins with whose number is searched
_BEGINNINGS = {"closed": "1", "sessions": "1"} | dict.fromkeys(("poisson", "gamma", "onoff", "daily"), "1/s")


def searched_traffic(spec: str | None) -> tuple[list[str], bool]:
    """Read the traffic of which the largest load is asked for.

    Parameters
    ----------
    spec : str or None
        As in `glmplan.serving.traffic.spec.parse_traffic`, also without its number; None is users and Poisson.

    Returns
    -------
    list of str
        One for each answer, with a number to begin with.
    bool
        Whether the number is not told, so that the plan is that of as many users as are usual.

    Examples
    --------
    >>> searched_traffic("sessions,turns=4"), searched_traffic("closed:8")
    ((['sessions:1,turns=4'], True), (['closed:8'], False))
    """
    if not spec:
        return [f"{kind}:{_BEGINNINGS[kind]}" for kind in ("closed", "poisson")], True
    kind, comma, rest = spec.partition(",")
    if ":" in kind or kind not in _BEGINNINGS:
        return [spec], False
    return [f"{kind}:{_BEGINNINGS[kind]}{comma}{rest}"], True


def safe_of(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    most: float | None = None,
    seed: int = 0,
    begun: Tries | None = None,
) -> SafeLoad:
    """Find the largest load that keeps a promise with 95 % probability.

    Parameters
    ----------
    described : Described
        The service, with its plan.
    traffic : Traffic
        What arrives; its number of users, rate or speed is what is varied.
    targets : sequence of Target
        The promise.
    most : float, optional
        Largest load to look at, [-] or [1/s]
    seed : int, optional
        Seed, [-]
    begun : Tries, optional
        Where to begin, and whether a copy of this process may help.

    Returns
    -------
    SafeLoad
        The load, and what breaks first. Of users of a closed loop who are promised means it is the number that `fit`
        says, and promises of percentiles allow no more than those of means.

    Raises
    ------
    SpecError
        If no target is given, or the largest load or the seed is none.
    """
    service, targets = described.service, tuple(targets)
    check_search(targets, most, seed)
    known, begun = described.known(traffic, targets, seed), begun or Tries()
    known = replace(known, start=begun.start, copied=begun.copied)

    def searched(most: float | None) -> SafeLoad:
        draws = described.draws()
        return safe_load(service, traffic, targets, **draws, most=most, seed=seed, known=known)

    if described.plan is None:
        return searched(most)
    if (danger := danger_of(*described.plan)) is not None:
        return SafeLoad(0, unit_of(traffic), "hazard", f"{danger.title}: {danger.numbers}", ())
    counted = count_users(*described.plan, traffic, targets)
    if counted is None:
        return searched(most)
    if counted.final or not counted.safe.users:
        return counted.load(most)
    if counted.patient:
        found = searched(most)
        return found if found.load >= counted.safe.users or not counted.means else counted.load(most)
    # percentiles promise no less than means, and as little waiting for room
    cap = counted.safe.users if most is None else min(most, counted.safe.users)
    found = searched(cap)
    if found.load < counted.safe.users:
        return found
    broken, why = counted.why()
    return replace(found, breaks_first=broken, reason=why)


def kept_of(
    described: Described, traffic: Traffic, targets: Sequence[Target], *, seed: int = 0, least: float = 0.0
) -> Kept:
    """Find the probability that a load keeps a promise.

    Parameters
    ----------
    described : Described
        The service, with its plan.
    traffic : Traffic
        What arrives.
    targets : sequence of Target
        The promise.
    seed : int, optional
        Seed, [-]
    least : float, optional
        Probability below which it does not matter how low it is, [-]

    Returns
    -------
    Kept
        95 % or more for as many users as `safe_of` finds.

    Raises
    ------
    SpecError
        If no target is given.
    """
    targets, counted = tuple(targets), None

    def simulated() -> Kept:
        draws, known = described.draws(), described.known(traffic, targets, seed)
        return kept_share(described.service, traffic, targets, **draws, seed=seed, least=least, known=known)

    if described.plan is not None and targets:
        if danger_of(*described.plan) is not None:
            return Kept(0.0, "hazard", {})
        counted = count_users(*described.plan, traffic, targets)
    if counted is not None and traffic.users is not None:
        steady = counted.kept(traffic.users)
        if counted.means and (counted.final or traffic.users <= counted.safe.users):
            return steady
        if not counted.patient and steady.probability < least:
            return steady
        if not counted.patient and traffic.users > counted.safe.users:
            if all(one.metric in counted.bounds for one in targets):
                return steady
            # sums say nothing of the other targets, which may be kept less surely, and never make the promise surer
            return min(simulated(), steady, key=lambda one: one.probability)
    return simulated()
