"""Choose the layout for named traffic, and read traffic specifications."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import GlmplanError, SpecError
from glmplan.planner.capacity import Holding
from glmplan.planner.formats import best_format
from glmplan.planner.plan import LEAST_GAIN
from glmplan.planner.question import Asked, read_words
from glmplan.planner.ranking import deployment_of, needless_stages, predicted, shown_users, typical_users
from glmplan.planner.simulated import read_experts_apart, read_tiers, tier_rate, traffic_run, way_to_host, why_no_copies
from glmplan.planner.users import Solution, ranked_layouts, solve, usual_promise
from glmplan.prediction.step_models import site_calibration
from glmplan.request.plan import PlanRequest
from glmplan.units import Ratio, TokenCount, counted_unit, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glmplan.planner.plan import TrafficRun
    from glmplan.planner.question import Asked
    from glmplan.planner.ranking import Scored
    from glmplan.planner.service import Described
    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "asked_under",
    "decides_plan",
    "described_under",
    "mean_request",
    "read_traffic",
    "solution_for",
    "solve_under",
    "solved_for",
    "traffic_of",
    "traffic_words",
]


#: layouts that are simulated: those whose answers come soonest by steady sums [-]
_SIMULATED = 4


def decides_plan(traffic: Traffic) -> bool:
    """Return True if a kind of traffic affects the choice of a layout.

    Sessions and traces find prefixes in a large cache that they would compute again in a small one. Other traffic has
    the plan of the request.

    Examples
    --------
    >>> from glmplan.simulation.traffic.spec import parse_traffic
    >>> decides_plan(parse_traffic("sessions:20")), decides_plan(parse_traffic("closed:20"))
    (True, False)
    """
    return traffic.kind in ("sessions", "trace")


def solve_under(
    asked: Asked, traffic: Traffic | None, *, options: frozenset[str] = frozenset(), quick: bool = False
) -> Solution:
    """Return the layouts of a request, ranked for traffic.

    `asked` has the mean request of the traffic. The ranking is that of `solve` if the traffic does not affect it.

    Notes
    -----
    Candidates have the verdict of the layout chosen without traffic. That layout and the four with the
    lowest end-to-end latency by steady-state sums are simulated under the traffic. The one with the fewest rejected
    requests and the lowest latency is chosen; within 5 % of it the one chosen without traffic, or else the one with the
    largest KV pool. KV offload is not part of the choice.
    """
    return _under(solve(asked, options=options, quick=quick), traffic)


def _under(solution: Solution, traffic: Traffic | None) -> Solution:
    """Return the layouts of `solve`, ranked for traffic."""
    asked, first = solution.asked, solution.ranked[0]
    if traffic is None or not decides_plan(traffic) or not first.alone or first.holding.terms.blocked is not None:
        return solution
    staged = needless_stages(asked, [layout.holding for layout in solution.ranked])
    peers = [
        one
        for place, one in enumerate(solution.ranked)
        if one.alone and one.holding.verdict == first.holding.verdict and (place == 0 or place not in staged)
    ]
    if len(peers) == 1 or first.holding.verdict == "does_not_fit":
        return solution
    soon = _steady_answers(asked, peers, traffic.users or shown_users(asked))
    order = sorted(range(len(peers)), key=lambda n: soon[n])
    found: dict[int, TrafficRun] = {}
    for place in dict.fromkeys((0, *order[:_SIMULATED])):
        try:
            found[place] = traffic_run(asked.but(host_tokens=0), peers[place], traffic, ends=False)
        except GlmplanError:
            return solution  # nothing can be simulated; the answer reports it if needed
    best = _best(found, peers)
    reasons = {id(peers[best]): ""}
    for place, one in enumerate(peers):
        if place != best:
            known = found.get(place)
            seconds = known.e2e.value if known is not None else soon[place]
            how = "" if known is not None else "about "
            reasons[id(one)] = f"end-to-end latency {how}{seconds:,.0f} s instead of {found[best].e2e.value:,.0f} s"
    rest = [layout for layout in solution.ranked if layout is not peers[best]]
    ranked = [replace(one, why=reasons.get(id(one), one.why)) for one in (peers[best], *rest)]
    return replace(solution, ranked=tuple(ranked))


def _steady_answers(asked: Asked, peers: list[Scored], users: int) -> list[float]:
    """Return the end-to-end latency of each layout by steady-state sums, [s]."""
    seconds = []
    for one in predicted(asked, [(peer.holding, users) for peer in peers]):
        first, later = one.figures.get("ttft"), one.figures.get("tpot")
        each = later.value * (asked.output_tokens - 1) if later is not None else 0.0
        seconds.append((first.value if first is not None else 0.0) + each)
    return seconds


def _best(found: dict[int, TrafficRun], peers: list[Scored]) -> int:
    """Return the index of the layout that serves the traffic best."""
    # another layout may let a session grow longer by chance: what exceeds the context tells nothing of it
    lost = {place: one.rejected - one.too_long + one.left for place, one in found.items()}
    least = min(lost.values())
    served = {place: one for place, one in found.items() if lost[place] == least and one.e2e.value}
    if not served:
        return 0
    soonest = min(one.e2e.value for one in served.values())
    near = [place for place, one in served.items() if one.e2e.value <= soonest * (1.0 + LEAST_GAIN)]
    return 0 if 0 in near else max(near, key=lambda place: peers[place].holding.held)


#: requests of a trace, or samples of a file of lengths, for the mean request [-]
_LOOKED_AT = 20_000


def mean_request(traffic: Traffic) -> tuple[int, int, int]:
    """Return the mean request of traffic: prompt, answer, cached, [token].

    Notes
    -----
    A session has a geometric number of turns with mean ``n``; a request drawn from all of them has ``n − 1`` turns
    before it in the mean, each of which left a prompt and an answer in the context. The cached part of a trace is 0
    here: only the simulator finds it.

    Examples
    --------
    >>> from glmplan.simulation.traffic.spec import Traffic
    >>> mean_request(Traffic(kind="sessions", users=1, input=1000, output=250, turns=9, shared_prefix=2000))
    (13000, 250, 12000)
    """
    if traffic.kind == "trace":
        inputs, outputs = _of_trace(str(traffic.file), traffic.output, _stamp(str(traffic.file)))
        return inputs, outputs, 0
    inputs, outputs = traffic.input, traffic.output
    if traffic.lengths:
        from glmplan.simulation.traffic.sources import draw_lengths

        drawn = draw_lengths(traffic)(_LOOKED_AT, np.random.default_rng(0))
        inputs, outputs = (max(round(float(one.mean())), 1) for one in drawn)
    if traffic.kind != "sessions":
        return inputs, outputs, traffic.shared_prefix
    before = traffic.shared_prefix + traffic.start + (traffic.turns - 1) * (inputs + outputs)
    return before + inputs, outputs, before


def _stamp(path: str) -> float:
    """Return the modification time of a file; 0 if it is missing."""
    return os.path.getmtime(path) if os.path.isfile(path) else 0.0


@lru_cache(maxsize=16)
def _of_trace(path: str, answer: int, changed: float) -> tuple[int, int]:
    from glmplan.simulation.traffic.conversations import conversation_form, read_conversations
    from glmplan.simulation.traffic.traces import read_trace

    lengths: Iterator[tuple[int, int]]
    if conversation_form(path):
        turns = (turn for one in read_conversations(path, answer) for turn in one.turns)
        lengths = ((turn.input_tokens, turn.output_tokens) for turn in turns)
    else:
        lengths = ((one.input, one.output) for one in read_trace(path))
    rows = list(islice(lengths, _LOOKED_AT))
    inputs, outputs = np.mean(rows, axis=0) if rows else (1.0, 1.0)
    return max(round(float(inputs)), 1), max(round(float(outputs)), 1)


def asked_under(words: PlanRequest, traffic: Traffic | None) -> Asked:
    """Read a request under traffic: the plan is made for its mean request.

    Lengths of the traffic override those of the request.

    Examples
    --------
    >>> words = PlanRequest("llama-3.1-8b", "1xh100-sxm", input=1024)
    >>> from glmplan.simulation.traffic.spec import parse_traffic
    >>> asked = asked_under(words, parse_traffic("sessions:4", input=1000, output=250, turns=5))
    >>> asked.input_tokens, asked.cached_tokens
    (6000, 5000)
    """
    if traffic is None:
        return read_words(words)
    if words.users is None and traffic.users is not None:
        # the rows of a table that matter most: a single user, and the named concurrency
        return asked_under(words.but(users=sorted({1, traffic.users})), traffic).but(users_given=False)
    if not (traffic.kind in ("trace", "sessions") or traffic.lengths):
        stated = {name: getattr(traffic, name) for name in ("input", "output") if name in traffic.model_fields_set}
        return read_words(words.but(**stated)).but(cached_tokens=traffic.shared_prefix)
    inputs, outputs, before = mean_request(traffic)
    # a mean above the context limit is cut: the simulator rejects longer requests
    plain = read_words(words.but(input=None, output=None))
    limit = min(plain.longest_request, plain.context or plain.longest_request)
    outputs = min(outputs, max(limit - 1, 1))
    inputs = min(inputs, limit - outputs)
    return plain.but(
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=min(before, inputs - 1),
        lengths_given=True,
        assumed=tuple(text for text in plain.assumed if not text.endswith("put tokens")),
    )


def read_traffic(spec: str, *, input: object = None, output: object = None, **fields: Any) -> Traffic:
    """Read traffic with the lengths of a request, as text or numbers.

    - `input`, `output`: Lengths, [token]; None leaves them open.
    - `**fields`: Further fields of `Traffic`; None is left out.

    Examples
    --------
    >>> read_traffic("sessions:20", input="4000").output
    1000
    """
    lengths = {"input": input, "output": output}
    whole = {name: whole_number(one, f"--{name}") for name, one in lengths.items() if one is not None}
    from glmplan.simulation.engine.settings import EngineSettings
    from glmplan.simulation.traffic.spec import parse_traffic
    from glmplan.simulation.unused import check_used

    found = parse_traffic(spec, **whole, **fields)
    check_used(EngineSettings(), found)  # without options of scheduler and encoders
    return found


def traffic_of(asked: Asked, spec: str | Traffic, **fields: Any) -> Traffic:
    """Read traffic; missing lengths are those of the request.

    Turns of a session have the lengths of the request only if it was given with lengths and without sessions.
    `**fields` are further fields of `Traffic`; None is left out.
    """
    from glmplan.simulation.traffic.spec import Traffic, parse_traffic

    found = spec if isinstance(spec, Traffic) else parse_traffic(spec, **fields)
    if found.kind == "sessions":
        if isinstance(spec, Traffic) or asked.cached_tokens or not asked.lengths_given:
            return found
        return parse_traffic(spec, **({"input": asked.input_tokens, "output": asked.output_tokens} | fields))
    missing = {"input": asked.input_tokens, "output": asked.output_tokens}
    missing = {name: tokens for name, tokens in missing.items() if name not in found.model_fields_set}
    return Traffic.model_validate(found.model_dump(exclude_unset=True) | missing) if missing else found


def traffic_words(traffic: Traffic) -> str:
    """Return the traffic as text: its kind, its load and the mean request.

    Examples
    --------
    >>> from glmplan.simulation.traffic.spec import parse_traffic
    >>> traffic_words(parse_traffic("sessions:20", start=60000, turns=12, input=4000, output=1000))
    '20 concurrent sessions of 12 turns, 60,000 to 120,000 tokens; per turn 4,000 tokens in and 1,000 out'
    """
    if traffic.kind == "trace":
        return f"the trace {traffic.file}" + f", {traffic.speed:g} times as fast" * (traffic.speed != 1.0)
    lengths = f"{traffic.input:,} tokens in and {traffic.output:,} out"
    if traffic.kind == "sessions":
        many = counted_unit(traffic.users, "concurrent sessions") if traffic.users else f"{traffic.rate:g} sessions/s"
        first = traffic.shared_prefix + traffic.start
        last = first + traffic.turns * (traffic.input + traffic.output)
        return f"{many} of {traffic.turns} turns, {first:,} to {last:,} tokens; per turn {lengths}"
    many = counted_unit(traffic.users, "users") if traffic.users else f"{traffic.rate:g} requests/s ({traffic.kind})"
    if traffic.kind == "daily" and traffic.rate:
        many += f", {traffic.rate * traffic.peak:.3g} at the daily peak, which is simulated"
    return f"{many}, {lengths}"


def solution_for(
    solution: Solution,
    traffic: Traffic | None,
    slo: str | None = None,
    *,
    probability: Ratio,
    searched: bool = False,
) -> Solution:
    """Return the layouts of `solve`, ranked for traffic and an SLO.

    - `traffic`: Uniform users if there is none.
    - `slo`: The stated limits of the request if there is none; the default SLO for a searched rate.
    - `searched`: As in `solve_for_slo`.
    """
    asked, solution = solution.asked, _under(solution, traffic)
    if not slo:
        if (
            not (asked.slo_limits or _searched_rate(traffic, searched))
            or not solution.ranked[0].alone
            or solution.best.verdict == "does_not_fit"
        ):
            return solution
        slo = usual_promise(predicted(asked, [(solution.best, 1)])[0], asked.slo_limits)
    from glmplan.planner.slo_layouts import solve_for_slo
    from glmplan.simulation.traffic.slo import parse_slo
    from glmplan.simulation.traffic.spec import Traffic

    if traffic is None:
        lengths = {"input": asked.input_tokens, "output": asked.output_tokens}
        traffic = Traffic(kind="closed", users=typical_users(asked), **lengths)
    return solve_for_slo(solution, traffic, parse_slo(slo), probability=probability, searched=searched)


def _searched_rate(traffic: Traffic | None, searched: bool) -> bool:
    """Return True if the highest rate of requests is searched for."""
    return searched and traffic is not None and traffic.rate is not None and traffic.kind != "sessions"


def solved_for(
    asked: Asked, traffic: Traffic | None = None, slo: str | None = None, *, sole: bool = False, searched: bool = False
) -> Solution:
    """Return the layouts of a request, the one that every command takes first.

    Weights are in host memory where no layout fits without. Arguments as for `solve` and `solution_for`.
    """
    chosen_later = slo or asked.slo_limits or _searched_rate(traffic, searched)
    solution = (ranked_layouts if chosen_later else solve)(asked, sole=sole)
    if solution.best.lacking > 0:
        from glmplan.planner.moved_search import with_moved_experts

        solution = with_moved_experts(solution)
    return solution_for(solution, traffic, slo, probability=asked.probability, searched=searched)


def described_under(
    words: PlanRequest,
    kinds: Sequence[Traffic],
    *,
    usual: bool = False,
    slo: str | None = None,
    kv_tokens: TokenCount | None = None,
    block_size: TokenCount | None = None,
    scheduler: Mapping[str, Any] | None = None,
) -> tuple[Described, list[Traffic]]:
    """Return the service that `fit` plans, and its traffic.

    - `usual`: Plan for the reference concurrency of the machine, because the load is searched.
    - `slo`: SLO that the layout is chosen for; by default that of the request alone.
    - `kv_tokens`, `block_size`: KV pool and tokens per block, instead of the predicted ones.
    - `scheduler`: Fields of `EngineSettings` instead of the engine's own.
    - Returns: The service with its uncertainty and default SLO, and one traffic per kind with completed lengths.

    Examples
    --------
    >>> from glmplan.simulation.traffic.spec import Traffic
    >>> found, [traffic] = described_under(PlanRequest("llama-3.1-8b", "1xh100-sxm"), [Traffic(kind="closed", users=4)])
    >>> traffic.input, found.slo != ""
    (2048, True)
    """
    from glmplan.planner.service import check_images, chosen, inputs_of, service_of, with_experts_apart

    asked = best_format(words, lambda one: asked_under(one, kinds[0]))
    check_images(asked.model, kinds[0])
    arriving = [traffic_of(asked, kind) for kind in kinds]
    with site_calibration(asked.calibration):
        named = arriving[0].at_load(typical_users(asked)) if usual else arriving[0]
        solution = solved_for(asked, named, slo, searched=usual)
        asked, best = solution.asked, chosen(solution.asked, solution)
        scheduler, way = _with_way_to_host(asked, best, scheduler)
        if scheduler and (text := scheduler.get("tiers")) is not None:
            scheduler = {**scheduler, "tiers": read_tiers(text, lambda kind: tier_rate(asked, best, kind))}
            way += f", and beyond it {text}"
        inputs = inputs_of(asked, best, deployment_of(asked, best.terms))
        if scheduler and (text := scheduler.get("experts_apart")) is not None:
            cards, rate = read_experts_apart(text, tier_rate(asked, best, "shared"))
            inputs = with_experts_apart(inputs, deployment_of(asked, best.terms), cards, rate)
            scheduler = {name: value for name, value in scheduler.items() if name != "experts_apart"}
        found = service_of(
            inputs,
            arriving[0],
            kv_tokens=kv_tokens,
            block_size=block_size,
            scheduler=scheduler,
        )
        promise = usual_promise(predicted(asked, [(best, 1)])[0], asked.slo_limits)
    # steady-state sums cover neither options of the simulator nor disaggregated prefill
    simulated_only = scheduler or kv_tokens or block_size or asked.prefill
    plan = None if simulated_only else (asked, best)
    return replace(found, slo=promise, basis=found.basis + way, plan=plan), arriving


def _with_way_to_host(
    asked: Asked, best: Holding, scheduler: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the settings with the link for KV offload, and its name."""
    if not scheduler or not scheduler.get("host_tokens"):
        return scheduler, ""
    link = scheduler.get("host_link")
    # without KV offload in the engine a bandwidth is useless
    if why := why_no_copies(asked, best, way_told=True):
        raise SpecError(why, field="--host-tokens", value=scheduler["host_tokens"])
    if link is not None:
        return scheduler, f"; KV offload at {link.bandwidth / 1e9:,.1f} GB/s per replica, as given"
    from glmplan.simulation.engine.settings import TransferLink

    try:
        way = way_to_host(asked, best)
    except GlmplanError as error:
        raise SpecError(f"is needed with --host-tokens, as in '50 GB/s': {error}", field="--host-bandwidth") from None
    return {**scheduler, "host_link": TransferLink(way.bandwidth)}, f"; KV offload over {way.what}"
