"""Simulate a plan beyond steady-state sums: a full KV pool, named traffic.

A bounded number of requests is simulated three times: as predicted, and at both bounds of the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glmplan.catalog.engines.limitations import load_engine
from glmplan.costs.blocks.stack import model_features
from glmplan.costs.network.links import host_transfer_rate
from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.planner.capacity import Holding
from glmplan.planner.launch import slots_of
from glmplan.planner.plan import TrafficRun, UserRow
from glmplan.planner.question import Asked
from glmplan.planner.ranking import Scored, deployment_of, predicted, shown_users, typical_users
from glmplan.planner.users import facts_of, no_less
from glmplan.prediction.predict import Figure, Prediction
from glmplan.units import GIB, BytesPerSecond, Ratio, TokensPerSecond, finite_number, parse_quantity

if TYPE_CHECKING:
    from glmplan.planner.capacity import Holding
    from glmplan.planner.question import Asked
    from glmplan.planner.service import Described
    from glmplan.simulation.engine.settings import CacheTier
    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "HostCopies",
    "WayToHost",
    "beyond_steady",
    "check_copies",
    "copies_words",
    "copy_settings",
    "host_copies",
    "read_experts_apart",
    "read_tiers",
    "shown_rate",
    "simulated_means",
    "simulated_rows",
    "steady_rate",
    "tier_rate",
    "traffic_run",
    "way_to_host",
    "why_no_copies",
]


#: reason for which the engine rejects a request in any layout (`glmplan.simulation.engine.admission.why_rejected`)
_TOO_LONG = "longer than the context"
#: size of the KV offload relative to the KV pool, if the traffic does not determine it [-]
_LARGER = 2.0


@dataclass(frozen=True, slots=True)
class WayToHost:
    """The link for KV offload to host memory."""

    each: float  # rate of each accelerator while all others transfer too, [B/s]
    bandwidth: float  # rate of all accelerators of a data-parallel rank together, [B/s]
    what: str  # the link as text


def way_to_host(asked: Asked, holding: Holding) -> WayToHost:
    """Return the link between the accelerators of a plan and host memory."""
    host, terms = asked.machine.host, holding.terms
    share = terms.accelerators / (terms.dp * terms.replicas)
    if asked.host_bandwidth:
        what = f"a way as given, {asked.host_bandwidth / 1e9:,.1f} GB/s to each rank"
        return WayToHost(asked.host_bandwidth / share, asked.host_bandwidth, what)
    members = facts_of(asked, holding, users=1, longest=1).members
    each = host_transfer_rate(host, members=members)
    card = host.slots[members[0]].link
    kind = f"PCIe {card.generation}.0 x{card.lanes}" if card is not None else "the links"
    what = f"{kind} of {host.name}, {each / 1e9:,.1f} GB/s per accelerator with all loading"
    return WayToHost(each, each * share, what)


def copy_settings(asked: Asked, holding: Holding) -> dict[str, Any]:
    """Return the `EngineSettings` fields for KV offload; empty without."""
    if not asked.host_tokens:
        return {}
    from glmplan.simulation.engine.settings import TransferLink

    return {"host_tokens": asked.host_tokens, "host_link": TransferLink(way_to_host(asked, holding).bandwidth)}


def check_copies(asked: Asked, holding: Holding, traffic: Traffic | None) -> None:
    """Refuse KV offload without traffic or support."""
    if asked.host_bandwidth and traffic is None:
        raise SpecError("needs --traffic", field="--host-bandwidth")
    if not asked.host_tokens:
        return
    why = "needs --traffic" if traffic is None else why_no_copies(asked, holding)
    if why:
        raise SpecError(why, field="--host-tokens", value=asked.host_tokens)


def copies_words(asked: Asked, holding: Holding) -> str:
    """Return the requested KV offload as text, or an empty text."""
    running = load_engine(asked.engine).running
    if not asked.host_tokens or running is None:
        return ""
    way = way_to_host(asked, holding)
    return f"; KV offload of {asked.host_tokens:,} tokens per rank to host memory ({running.host_cache}), {way.what}"


def read_tiers(text: str, known: Callable[[str], BytesPerSecond | None]) -> tuple[CacheTier, ...]:
    """Return tiers of KV blocks beyond host memory from a text.

    `known`: Rate of a kind of tier on the machine, where the text has none; None if it is unknown.

    Examples
    --------
    >>> [(one.kind, one.tokens, one.link.bandwidth) for one in read_tiers("drive=9@1 GB/s,peers", lambda kind: 2e9)]
    [('drive', 9, 1000000000.0), ('peers', 0, 2000000000.0)]
    """
    from glmplan.simulation.engine.settings import TIERS, CacheTier, TransferLink

    tiers, field = [], "--kv-tiers"
    for part in text.split(","):
        what, at, link = part.strip().partition("@")
        kind, sized, size = what.partition("=")
        if kind not in TIERS:
            raise SpecError("is not a tier", field=field, value=kind, choices=TIERS)
        if (kind == "peers") == bool(sized):
            other = "has the tokens of --host-tokens: leave the number out" if sized else "needs its number of tokens"
            raise SpecError(f"{other}, as in drive=4000000,peers", field=field, value=part)
        rate, _, latency = link.partition("+")
        bandwidth = parse_quantity(rate, "bytes per second", field=field) if at else known(kind)
        if not bandwidth:
            raise SpecError(f"needs a rate, as in {what}@25 GB/s", field=field, value=part)
        seconds = parse_quantity(latency, "seconds", field=field) if latency else 0.0
        if (tokens := finite_number(size, field) if sized else 0.0) % 1:
            raise SpecError("needs a whole number of tokens", field=field, value=part)
        tiers.append(CacheTier(kind, int(tokens), TransferLink(bandwidth, seconds)))
    return tuple(tiers)


def read_experts_apart(text: str, known: BytesPerSecond | None) -> tuple[int, BytesPerSecond]:
    """Return the cards with experts and the network of one card from a text.

    `known`: Rate of the machine, where the text has none.

    Examples
    --------
    >>> read_experts_apart("8@50 GB/s", None)
    (8, 50000000000.0)
    """
    cards, at, rate = text.partition("@")
    bandwidth = parse_quantity(rate, "bytes per second", field="--experts-apart") if at else known
    if not bandwidth:
        raise SpecError("needs the network of a card, as in 8@50 GB/s", field="--experts-apart", value=text)
    if (number := finite_number(cards, "--experts-apart")) < 1 or not number.is_integer():
        raise SpecError("needs a whole number of cards, as in 8@50 GB/s", field="--experts-apart", value=text)
    return int(number), bandwidth


def tier_rate(asked: Asked, holding: Holding, kind: str) -> BytesPerSecond | None:
    """Return the rate of drives or of the network for one data-parallel rank.

    All ranks on a machine read at the same time. None if no source states it.
    """
    host, terms = asked.machine.host, holding.terms
    ranks = terms.dp * terms.replicas
    if kind == "drive":
        return sum(one.bandwidth or 0.0 for one in host.devices if one.kind == "nvme") / ranks or None
    return host.fabric.bandwidth * terms.accelerators / ranks if host.fabric is not None else None


@dataclass(frozen=True, slots=True)
class HostCopies:
    """KV offload to host memory."""

    tokens: int  # tokens per data-parallel rank, [token]
    bandwidth: float  # transfer rate of all accelerators of a rank together, [B/s]
    what: str  # the change as text


def why_no_copies(asked: Asked, holding: Holding, way_told: bool = False) -> str:
    """Return why a plan has no KV offload; empty if it is possible.

    `way_told`: The bandwidth is given, so the links need not be known.
    """
    running = load_engine(asked.engine).running
    kept = asked.defaults.kept_bytes / GIB
    if kept:
        return f"{asked.engine} offloads {kept:.3g} GiB by default, included here"
    if running is None or running.host_cache is None:
        return f"no source shows KV offload with {asked.engine}"
    if "mla" in model_features(asked.model) and not running.host_cache_latent:
        return f"{asked.engine} has no KV offload for latent attention ({running.host_cache})"
    if holding.terms.mtp:
        return "a race condition with speculative decoding was reported"
    if way_told:
        return ""
    try:
        way_to_host(asked, holding)
    except GlmplanError as error:
        return f"the link to host memory is unknown: {error}"
    return ""


def host_copies(asked: Asked, holding: Holding, traffic: Traffic) -> HostCopies | None:
    """Return the KV offload of a plan for traffic, or None.

    None if the engine has no offload for this cache, with speculative decoding (a race condition was reported), or if
    the link to host memory is unknown.

    Notes
    -----
    The offload holds all sessions at their mean length, within host memory if its size is known. Every
    accelerator loads its own part while all others do, at the rate that the shared links allow.
    """
    running, terms = load_engine(asked.engine).running, holding.terms
    if running is None or (sent := holding.pool_for(asked.request_tokens)).tokens <= 0 or why_no_copies(asked, holding):
        return None
    host, facts = asked.machine.host, facts_of(asked, holding, users=1, longest=1)
    way = way_to_host(asked, holding)
    wanted = _LARGER * sent.tokens
    if traffic.kind == "sessions" and traffic.users is not None:
        last = traffic.shared_prefix + traffic.start + traffic.turns * (traffic.input + traffic.output)
        wanted = float(traffic.users * last)
    token = holding.pool_bytes / sent.tokens * terms.accelerators
    size = token * wanted
    if host.host_memory is not None:
        nodes = -(-terms.accelerators // max(len(facts.members), 1))
        size = min(size, nodes * (host.host_memory - facts.pinned))
    ranks = terms.dp * terms.replicas
    tokens = int(size / token / ranks)
    if tokens <= 0:
        return None
    size_note = "" if host.host_memory is not None else " (size unknown)"
    what = (
        f"KV offload to {size / GIB:,.0f} GiB of host memory{size_note} ({running.host_cache}), "
        f"{way.each / 1e9:,.0f} GB/s per accelerator"
    )
    return HostCopies(tokens, way.bandwidth, what)


#: simulated requests of a row: per user, as many as a steady-state prediction counts, and at most [-]
_EACH, _MOST = 4, 1200
#: simulated requests of named traffic: per user; for rates; a trace is replayed in full [-]
_EACH_TURN, _OPEN = 16, 600
#: share of the requests for warm-up, which are not counted [-]
_WARM = 0.2


def beyond_steady(asked: Asked, holding: Holding, users: int) -> bool:
    """Return True if the KV pool does not hold so many users.

    Steady-state sums count waiting but no preemption, so the simulator is needed. Disaggregated prefill always needs
    it.
    """
    return bool(asked.prefill) or users > max(holding.pool_for(asked.request_tokens).held, 1.0)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Simulated summaries: predicted, pessimistic and optimistic case."""

    middle: Mapping[str, float]
    slow: Mapping[str, float]
    quick: Mapping[str, float]

    def figure(self, name: str, scale: float = 1e-3) -> Figure:
        """Return a statistic with its bounds, [s] or [token/s]."""
        values = [one[name] * scale for one in (self.middle, self.slow, self.quick) if math.isfinite(one[name])]
        value = values[0] if values else 0.0
        return Figure(value, min(values, default=0.0), max(values, default=0.0))


def _runs(
    described: Described, traffic: Traffic, requests: int, warm: int, least: float, *, ends: bool = True
) -> _Runs:
    """Simulate a plan, and both bounds if requested.

    The KV pool holds at least `least` tokens, [token].
    """
    # a local import: most answers need no simulator
    from glmplan.simulation.simulate import simulate

    found: list[dict[str, float]] = []
    for share in (0.5, 0.95, 0.05)[: 3 if ends else 1]:
        step, first, pool = 1.0, 1.0, 1.0
        if found:
            step, first = described.quantiles(share, described.in_flight(traffic, found[0]))
            pool = described.pool[0 if share > 0.5 else 1]
        service = described.service.scaled(step).with_room(pool, traffic, least=least)
        outcome = simulate(service, traffic, requests=requests, warmup=warm)
        if outcome.interrupted:
            raise KeyboardInterrupt  # partial runs are not used
        summary = dict(outcome.summary) | {"too_long": float(outcome.rejected.get(_TOO_LONG, 0))}
        for name in summary:
            if name.startswith("ttft_"):
                summary[name] *= first / step
        found.append(summary)
    return _Runs(*found) if ends else _Runs(*found * 3)


def steady_rate(asked: Asked, one: Scored) -> TokensPerSecond:
    """Return the throughput of a layout by steady-state sums.

    At the concurrency that the answer shows, `glmplan.planner.ranking.shown_users`; 0 if no speed was computed.
    """
    users = shown_users(asked)
    if not one.alone or (users == typical_users(asked) and users <= one.holding.held):
        return one.many
    return predicted(asked, [(one.holding, users)])[0].figures["output_rate"].value


def shown_rate(asked: Asked, one: Scored, steady: TokensPerSecond) -> TokensPerSecond:
    """Return the throughput of a layout as in the table over users.

    It is simulated if the KV pool does not hold the users.
    """
    users, holding = shown_users(asked), one.holding
    held = holding.pool_for(asked.request_tokens).tokens > 0.0
    if not one.alone or not held or not beyond_steady(asked, holding, users):
        return steady
    try:
        described, closed, least = _closed(asked, holding)
    except UnknownFact:
        return steady
    runs = _of_users(holding, described, closed, users, least, ends=False)
    return runs.middle["output_tokens_per_s"] if runs.middle["requests"] else steady


def _closed(asked: Asked, holding: Holding, traffic: Traffic | None = None) -> tuple[Described, Traffic, float]:
    """Return the simulated plan, its traffic and the smallest useful pool.

    The users of a closed loop send requests of the requested lengths, unless the traffic is sessions.
    """
    from glmplan.planner.service import inputs_of, service_of
    from glmplan.simulation.traffic.spec import Traffic

    lengths = {"input": asked.input_tokens, "output": asked.output_tokens}
    closed = Traffic(kind="closed", users=1, **lengths)
    if traffic is not None and traffic.kind == "sessions" and traffic.users is not None:
        closed = traffic
    asked = _started_for(asked, holding, asked.users[-1])
    described = service_of(inputs_of(asked, holding, deployment_of(asked, holding.terms)), closed)
    return described, closed, described.service.pool.block_size + asked.request_tokens


def _started_for(asked: Asked, holding: Holding, users: int) -> Asked:
    """Return the request with the slots of a launch command for so many users."""
    if asked.defaults.admission != "slot":
        return asked
    return asked.but(settings=replace(asked.settings, max_num_seqs=slots_of(asked, holding, users)))


def simulated_rows(
    asked: Asked, holding: Holding, rows: tuple[UserRow, ...], traffic: Traffic | None = None
) -> tuple[UserRow, ...]:
    """Return the table over users, simulated beyond steady-state sums.

    `traffic`: Named traffic; with sessions each row is a number of concurrent sessions.

    Notes
    -----
    All users start together, and all requests count, as in the steady-state rows. The bounds of the intervals are runs
    with slow steps and the smallest pool, and with fast steps and the largest.
    """
    if not any(row.ttft is not None and beyond_steady(asked, holding, row.users) for row in rows):
        return rows
    described, closed, least = _closed(asked, holding, traffic)
    found: list[UserRow] = []
    for row in rows:
        if row.ttft is not None and beyond_steady(asked, holding, row.users):
            row = _simulated(row, _of_users(holding, described, closed, row.users, least))
        if row.ttft is not None:
            # bounds of simulated rows come from other runs than those of steady-state sums: keep TTFT monotonic
            row = replace(row, ttft=no_less(row.ttft, found[-1].ttft if found else None))
        found.append(row)
    return tuple(found)


def simulated_means(asked: Asked, holding: Holding, users: int, found: Prediction) -> Prediction:
    """Return a prediction with the means of `simulated_rows`.

    ITL and the percentiles of steady sums are left out.
    """
    if "ttft" not in found.figures or not beyond_steady(asked, holding, users):
        return found
    described, closed, least = _closed(asked, holding, None)
    runs, sums = _of_users(holding, described, closed, users, least), found.figures
    if not runs.middle["requests"]:
        return found
    means = {"ttft": runs.figure("ttft_mean_ms"), "output_rate": runs.figure("output_tokens_per_s", 1.0)}
    if "tpot" in sums:
        means["tpot"] = runs.figure("tpot_mean_ms")
        means["user_rate"] = means["tpot"].inverse()
    means["total_rate"] = means["output_rate"].scaled(sums["total_rate"].value / sums["output_rate"].value)
    later, each = max(asked.output_tokens - 1, 0), means.get("tpot", Figure(0.0, 0.0, 0.0))
    ends = (getattr(means["ttft"], end) + later * getattr(each, end) for end in ("value", "low", "high"))
    return replace(found, figures={**means, "e2e": Figure(*ends)})


def _of_users(
    holding: Holding, described: Described, closed: Traffic, users: int, least: float, *, ends: bool = True
) -> _Runs:
    """Simulate users of a closed loop, of each server by itself.

    A run of several servers ends when the last of them does: with four requests for each user, those that are idle by
    then took up to 7 % of the throughput.
    """
    terms, service = holding.terms, described.service
    if terms.decoding == 1 or terms.prefill or closed.kind != "closed":
        return _runs(described, closed.at_load(users), _requests(users), 0, least, ends=ends)
    settings = replace(service.settings, replicas=service.settings.replicas // terms.replicas)
    known = described.by_users  # of users on the whole machine
    alone = replace(
        described,
        service=replace(service, settings=settings),
        by_users=None if known is None else lambda _, share: known(float(users), share),
    )
    few, more = divmod(users, terms.decoding)
    parts = [
        (count, _runs(alone, closed.at_load(each), _requests(each), 0, least, ends=ends))
        for each, count in ((few + 1, more), (few, terms.decoding - more))
        if each and count
    ]
    names = ("middle", "slow", "quick")
    return _Runs(*(_added([(count, getattr(run, name)) for count, run in parts]) for name in names))


def _added(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the summary of several servers: sums, and means of requests.

    All answers have one length here: the token rates of the servers weigh them as their request rates do.
    """
    sums = ("output_tokens_per_s", "requests", "preemptions")
    found = {name: sum(count * one[name] for count, one in parts) for name in sums}
    total = found["output_tokens_per_s"]
    for name in ("ttft_mean_ms", "tpot_mean_ms"):
        parted = sum(count * one["output_tokens_per_s"] * one[name] for count, one in parts)
        found[name] = parted / total if total else math.nan
    return found


def _requests(users: int) -> int:
    return max(min(_EACH * users, _MOST), users + 1)


def _simulated(row: UserRow, runs: _Runs) -> UserRow:
    if not runs.middle["requests"]:
        return row  # nothing fits: only the steady-state sums are known
    tpot = runs.figure("tpot_mean_ms") if row.tpot is not None else None
    rate = tpot.inverse() if tpot and tpot.value else None
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
    pool: Ratio = 1.0,
    ends: bool = True,
) -> TrafficRun:
    """Simulate a plan under named traffic.

    - `what`, `ask`: The change of the plan, and the options that request it.
    - `pool`: KV pool relative to that of the plan.
    - `ends`: Simulate both bounds of the intervals too.
    """
    from glmplan.planner.service import inputs_of, service_of
    from glmplan.simulation.load_trial import exceeded, judged_requests
    from glmplan.simulation.simulate import LARGEST

    holding, traffic = scored.holding, traffic.busiest
    asked = _started_for(asked, holding, traffic.users or asked.users[-1])
    inputs = inputs_of(asked, holding, deployment_of(asked, holding.terms))
    if pool != 1.0:
        inputs = replace(inputs, pool=replace(inputs.pool, tokens=int(inputs.pool.tokens * pool)))
    described = service_of(inputs, traffic, scheduler=copy_settings(asked, holding))
    count = _OPEN if traffic.users is None else max(min(_EACH_TURN * traffic.users, _MOST), traffic.users + 1)
    warm = min(int(_WARM * count), count - 1)
    if traffic.kind == "trace":
        count, warm = LARGEST, 0
    elif traffic.kind == "sessions":
        warm, count = judged_requests(traffic)
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
        too_long=int(middle["too_long"]),
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
