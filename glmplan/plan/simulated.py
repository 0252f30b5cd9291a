"""What a plan does where steady sums do not reach: users that the cache does not hold, and traffic that was named.

The simulator runs the plan itself, for a bounded number of requests, three times: as predicted, and at both ends of
what is not known of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glmplan.errors import UnknownFact
from glmplan.plan.capacity import Holding
from glmplan.plan.host_copies import copy_settings
from glmplan.plan.plan import TrafficRun, UserRow
from glmplan.plan.question import Asked
from glmplan.plan.ranking import Scored, deployment_of, predicted, shown_users, typical_users
from glmplan.plan.users import no_less
from glmplan.prediction.predict import Figure

if TYPE_CHECKING:
    from glmplan.plan.service import Described
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["beyond_steady", "shown_rate", "simulated_rows", "steady_rate", "traffic_run"]

#: requests of a simulated row for each user, as many as a steady prediction counts, and at most [-]
_EACH, _MOST = 4, 1200
#: requests of named traffic: for each user and at most; of rates and of traces at most [-]
_EACH_TURN, _OPEN = 16, 600
#: share of the requests that fill an empty server and are not counted [-]
_WARM = 0.2


def beyond_steady(asked: Asked, holding: Holding, users: int) -> bool:
    """Whether so many users need more of the cache than there is: requests wait, are preempted and start again.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    users : int
        Users at once, [-]

    Returns
    -------
    bool
        Steady sums count waiting, but no preemption: there the simulator answers. It does for any number where prompts
        have servers of their own.
    """
    return bool(asked.prefill) or users > max(holding.held * asked.user_tokens / asked.request_tokens, 1.0)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Summaries of the plan as predicted, at its slow end with the smallest pool, and at its quick end."""

    middle: Mapping[str, float]
    slow: Mapping[str, float]
    quick: Mapping[str, float]

    def figure(self, name: str, scale: float = 1e-3) -> Figure:
        """A statistic with the ends that it had, [s] or [token/s]"""
        values = [one[name] * scale for one in (self.middle, self.slow, self.quick) if math.isfinite(one[name])]
        value = values[0] if values else 0.0
        return Figure(value, min(values, default=0.0), max(values, default=0.0))


def _runs(
    described: Described, traffic: Traffic, requests: int, warm: int, least: float, *, ends: bool = True
) -> _Runs:
    """Simulate a plan, and both its ends where they are wanted; a pool holds at least `least` tokens, [token]"""
    # imported where it is needed: most answers are steady sums
    from glmplan.serving.simulate import simulate

    found = []
    slow = (described.high, described.first[1], described.room[0])
    quick = (described.low, described.first[0], described.room[1])
    for step, first, room in ((1.0, 1.0, 1.0), slow, quick)[: 3 if ends else 1]:
        service = described.service.scaled(step).with_room(room, traffic, least=least)
        outcome = simulate(service, traffic, requests=requests, warmup=warm, fast=False)
        if outcome.interrupted:
            raise KeyboardInterrupt  # a part of a run is none
        summary = dict(outcome.summary)
        for name in summary:
            if name.startswith("ttft_"):
                summary[name] *= first / step
        found.append(summary)
    return _Runs(*found) if ends else _Runs(*found * 3)


def steady_rate(asked: Asked, one: Scored) -> float:
    """Throughput of a layout by steady sums, for the users that an answer tells of.

    Parameters
    ----------
    asked : Asked
        The question.
    one : Scored
        The layout.

    Returns
    -------
    float
        Of all `glmplan.plan.ranking.shown_users` together; 0 when no speed was computed, [token/s]
    """
    users = shown_users(asked)
    if not one.alone or (users == typical_users(asked) and users <= one.holding.held):
        return one.many
    return predicted(asked, [(one.holding, users)])[0].figures["output_rate"].value


def shown_rate(asked: Asked, one: Scored, steady: float) -> float:
    """Throughput of a layout as a table over users has it: simulated where the cache does not hold them.

    Parameters
    ----------
    asked : Asked
        The question.
    one : Scored
        The layout.
    steady : float
        Its `steady_rate`, [token/s]

    Returns
    -------
    float
        As `steady_rate`, [token/s]
    """
    users, holding = shown_users(asked), one.holding
    if not one.alone or not beyond_steady(asked, holding, users):
        return steady
    try:
        described, closed, least = _closed(asked, holding)
    except UnknownFact:
        return steady
    runs = _runs(described, closed.at_load(users), _requests(users), 0, least, ends=False)
    return runs.middle["output_tokens_per_s"] if runs.middle["requests"] else steady


def _closed(asked: Asked, holding: Holding, traffic: Traffic | None = None) -> tuple[Described, Traffic, float]:
    """A plan as the simulator sees it, users who send what was asked, and the least room for one of them."""
    from glmplan.plan.service import service_of
    from glmplan.plan.simulator_inputs import inputs_of
    from glmplan.serving.traffic.spec import Traffic

    lengths = {"input": asked.input_tokens, "output": asked.output_tokens}
    closed = Traffic(kind="closed", users=1, **lengths)
    if traffic is not None and traffic.kind == "sessions" and traffic.users is not None:
        closed = traffic
    asked = _seated(asked, holding, asked.users[-1])
    described = service_of(inputs_of(asked, holding, deployment_of(asked, holding.terms)), closed)
    return described, closed, described.service.pool.block_size + asked.request_tokens


def _seated(asked: Asked, holding: Holding, users: int) -> Asked:
    """The question with the slots that the launch command tells an engine whose slots share its context evenly."""
    if asked.settings.max_num_seqs is not None or asked.defaults.admission != "slot":
        return asked
    slots = int(max(min(users, holding.held), 1))
    return asked.but(settings=replace(asked.settings, max_num_seqs=slots))


def simulated_rows(
    asked: Asked, holding: Holding, rows: tuple[UserRow, ...], traffic: Traffic | None = None
) -> tuple[UserRow, ...]:
    """Replace the rows that steady sums do not reach by what the simulator finds.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    rows : tuple of UserRow
        The table over users by steady sums.
    traffic : Traffic, optional
        Named traffic; of sessions the rows are of so many sessions at once.

    Returns
    -------
    tuple of UserRow
        The table; rows that were simulated say so.

    Notes
    -----
    All users start together, and all requests count, as in the steady rows. The ends of the intervals are runs with
    slow steps and the smallest pool, and with quick steps and the largest.
    """
    if not any(row.ttft is not None and beyond_steady(asked, holding, row.users) for row in rows):
        return rows
    described, closed, least = _closed(asked, holding, traffic)
    found: list[UserRow] = []
    for row in rows:
        if row.ttft is not None and beyond_steady(asked, holding, row.users):
            row = _simulated(row, _runs(described, closed.at_load(row.users), _requests(row.users), 0, least))
        if row.ttft is not None:
            # the ends of simulated rows are other runs than those of steady sums: nobody is served sooner for them
            row = replace(row, ttft=no_less(row.ttft, found[-1].ttft if found else None))
        found.append(row)
    return tuple(found)


def _requests(users: int) -> int:
    return max(min(_EACH * users, _MOST), users + 1)


def _simulated(row: UserRow, runs: _Runs) -> UserRow:
    if not runs.middle["requests"]:
        return row  # none has room: what the steady sums say of waiting is all that is known
    tpot = runs.figure("tpot_mean_ms") if row.tpot is not None else None
    rate = tpot and Figure(1.0 / tpot.value, 1.0 / tpot.high, 1.0 / tpot.low) if tpot and tpot.value else None
    return replace(
        row,
        ttft=runs.figure("ttft_mean_ms"),
        tpot=tpot,
        user_rate=rate,
        total_rate=runs.figure("output_tokens_per_s", 1.0),
        preempted=runs.middle["preemptions"] / max(runs.middle["requests"], 1),
        simulated=True,
    )


def traffic_run(
    asked: Asked,
    scored: Scored,
    traffic: Traffic,
    *,
    what: str = "",
    ask: str = "",
    pool: float = 1.0,
    ends: bool = True,
) -> TrafficRun:
    """Simulate a plan under named traffic.

    Parameters
    ----------
    asked : Asked
        The question.
    scored : Scored
        The layout.
    traffic : Traffic
        What arrives.
    what, ask : str, optional
        What is otherwise than in the plan, and the words that ask for it.
    pool : float, optional
        Room for keys and values relative to the plan's, [-]
    ends : bool, optional
        Whether both ends of the intervals are simulated too.

    Returns
    -------
    TrafficRun
        What users see.

    Raises
    ------
    UnknownFact
        If prompts cannot be timed on the part.
    """
    from glmplan.plan.service import service_of
    from glmplan.plan.simulator_inputs import inputs_of
    from glmplan.serving.load_trial import exceeded

    holding, traffic = scored.holding, traffic.busiest
    asked = _seated(asked, holding, traffic.users or asked.users[-1])
    inputs = inputs_of(asked, holding, deployment_of(asked, holding.terms))
    if pool != 1.0:
        inputs = replace(inputs, pool=replace(inputs.pool, tokens=int(inputs.pool.tokens * pool)))
    described = service_of(inputs, traffic, scheduler=copy_settings(asked, holding))
    count = _OPEN if traffic.users is None else max(min(_EACH_TURN * traffic.users, _MOST), traffic.users + 1)
    warm = 0 if traffic.kind == "trace" else min(int(_WARM * count), count - 1)
    least = described.service.pool.block_size + asked.request_tokens
    found = _runs(described, traffic, count, warm, least, ends=ends)
    middle = found.middle
    return TrafficRun(
        what=what,
        ask=ask,
        layout=holding.terms.name,
        kv=holding.terms.kv,
        requests=int(middle["requests"]),
        rejected=int(middle["rejected"]),
        left=int(middle.get("left", 0)),
        ttft=found.figure("ttft_mean_ms"),
        ttft_p95=middle["ttft_p95_ms"] * 1e-3,
        tpot=found.figure("tpot_mean_ms"),
        e2e=found.figure("e2e_mean_ms"),
        total_rate=found.figure("output_tokens_per_s", 1.0),
        cached=found.middle.get("cached_share"),
        cached_low=min((one.get("cached_share", 0.0) for one in (found.middle, found.slow, found.quick)), default=0.0),
        preempted=middle["preemptions"] / max(middle["requests"], 1),
        full=middle["kv_occupancy_max"],
        knowledge=scored.knowledge,
        most_rate=exceeded(described.service, traffic, middle),
    )
