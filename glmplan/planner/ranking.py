"""Speed of layouts under the requested load, and the best that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import load_engine
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.costs.network.links import LayoutLinks
from glmplan.costs.points import Layout
from glmplan.errors import UnknownFact
from glmplan.io.models.checkpoints import remarks_on
from glmplan.planner.capacity import Holding, Terms, experts_on_host
from glmplan.planner.launch import degrees_of, seats_of, slots_of, validate_command
from glmplan.planner.layouts import known_apart
from glmplan.planner.pool import Pool
from glmplan.planner.question import Asked, usual_users
from glmplan.prediction.assumptions import assumed_kinds
from glmplan.prediction.deployment import Deployment, deploy, offload_of
from glmplan.prediction.effects import Effects, load_effects
from glmplan.prediction.evidence import narrowed
from glmplan.prediction.load import ENDLESS, Load, user_load
from glmplan.prediction.predict import Figure, Prediction, predict_many
from glmplan.prediction.replicas import whole_loads
from glmplan.prediction.step_models import runs_on_accelerators
from glmplan.units import GIB, counted_unit

__all__ = [
    "FLOOR",
    "NEAR",
    "Narrowed",
    "Narrowing",
    "Scored",
    "Speed",
    "completed_words",
    "cores_unknown",
    "deployment_of",
    "load_of",
    "load_on",
    "matrix_rate_known",
    "narrowing_of",
    "narrowing_words",
    "needless_stages",
    "predicted",
    "prompts_timed",
    "rank_layouts",
    "shown_users",
    "speed_known",
    "typical_users",
    "unstated_of",
    "untimed_words",
    "why_not",
]


#: share of the best single-user speed below which a layout is not chosen for its throughput [-]
FLOOR = 0.7


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a layout."""

    #: `alone`, `many`: single-user rate, and total rate at the reference concurrency, [token/s]
    alone: float = 0.0
    #: `alone_low`, `many_low`: lower bounds of both, times the share of accelerators in use, [token/s]
    alone_low: float = 0.0
    many: float = 0.0
    many_low: float = 0.0
    knowledge: str = ""  # evidence level


def why_not(asked: Asked, holdings: list[Holding], speeds: dict[int, Speed], place: int, first: int) -> str:
    """Return why a layout was not chosen.

    `speeds`: Speeds by index of the layout.
    """
    one, best = holdings[place], holdings[first]
    if one.terms.blocked is not None:
        return f"not supported: {one.terms.blocked.title}"
    if one.verdict == "does_not_fit":
        if one.host_short > 0:
            return f"{one.host_short / GIB:.0f} GiB of host memory missing"
        perhaps = ", borderline" if one.may_start else ""
        return f"{one.lacking / GIB:.1f} GiB short on each GPU of pipeline stage {one.stage}{perhaps}"
    if one.verdict == "tight" and best.verdict == "fits":
        return "one full-length request fits in the expected case only"
    if place not in speeds or first not in speeds:
        return "smaller KV pool"
    mine, other, users = speeds[place], speeds[first], usual_users(asked.machine)
    idle = asked.machine.count - one.terms.accelerators
    if idle > asked.machine.count - best.terms.accelerators:
        return f"{idle} of {asked.machine.count} accelerators idle"
    if mine.alone < 0.98 * other.alone and mine.many < 0.98 * other.many:
        return f"slower for one user ({mine.alone:.1f} tok/s) and for {users} ({mine.many:,.0f} tok/s total)"
    if mine.alone_low < FLOOR * other.alone_low:
        if mine.alone > 0.9 * other.alone:
            return f"weaker evidence: single-user lower bound {mine.alone_low:.1f} vs. {other.alone_low:.1f} tok/s"
        return f"slower for one user ({mine.alone:.1f} vs. {other.alone:.1f} tok/s)"
    if mine.many > other.many and mine.many_low < other.many_low:
        return (
            f"{mine.many:,.0f} tok/s total expected at {users} users, but weaker evidence: "
            f"lower bound {mine.many_low:,.0f} vs. {other.many_low:,.0f}"
        )
    if mine.many < 0.98 * other.many:
        return f"lower throughput at {users} users ({mine.many:,.0f} vs. {other.many:,.0f} tok/s total)"
    if mine.alone < 0.98 * other.alone:
        return f"same throughput at {users} users, slower for one ({mine.alone:.1f} vs. {other.alone:.1f} tok/s)"
    return "similar speed; more parallelism or a smaller KV pool"


#: layouts within this share of the largest throughput count as equal [-]
NEAR = 0.9
#: stands for an unpublished matrix rate: matrix products then take no time [FLOP/s]
_NO_LIMIT = 1e30


@dataclass(frozen=True, slots=True)
class Scored:
    """A layout with its speed."""

    holding: Holding  # the layout and its memory
    #: `alone`, `many`: single-user rate, and total rate at the reference concurrency; 0 if it does not fit or the speed
    #: is unknown, [token/s]
    alone: float
    many: float
    why: str = ""  # why it was not chosen; empty for the chosen one
    unknown: str = ""  # the fact that is missing for its speed; empty if none is
    knowledge: str = ""  # evidence level of its speeds; empty if not computed


def matrix_rate_known(asked: Asked) -> bool:
    """Return True if a matrix rate of the accelerator is published or derived.

    Without one only decoding is predicted, from the bandwidth. It may be derived from a card with another power limit.
    """
    part = asked.machine.accelerator
    return bool(part.peak) or part.rated is not None


def cores_unknown(asked: Asked) -> bool:
    """Return True if cores of unknown number compute the prompts."""
    if asked.machine.host.cores is not None or not experts_on_host(asked):
        return False
    running = load_engine(asked.engine).running
    moved = running.moved_experts if running is not None else None
    return moved is None or asked.input_tokens <= moved.streams_above


def prompts_timed(asked: Asked) -> bool:
    """Return True if prompts can be timed, on the accelerator or the CPU."""
    return not cores_unknown(asked) if experts_on_host(asked) else matrix_rate_known(asked)


def untimed_words(asked: Asked) -> str:
    """Return the reason why prompts cannot be timed."""
    if cores_unknown(asked):
        return "the cores that compute prompts are not stated: no prediction of prefill and TTFT"
    return f"no matrix rate of {asked.machine.accelerator.full_name} is published: no prediction of prefill and TTFT"


def completed_words(asked: Asked) -> str:
    """Return how a request states what is not published of its machine."""
    from glmplan.catalog.entries.own_parts import line_of

    if cores_unknown(asked):
        return "give --host-cores, the cores of all sockets of a machine, as in 64"
    return f"give its data sheet with values for ?: --on '{asked.machine.count}x{line_of(asked.machine.accelerator)}'"


def _without_its_flop(asked: Asked, found: Prediction) -> Prediction:
    """Return a prediction with a remark on an unpublished matrix rate."""
    part = asked.machine.accelerator
    if part.peak or (part.rated is not None and not experts_on_host(asked)):
        return found
    # the cost of a power limit was not measured together with experts on the CPU
    counted = "its FLOP are left out" if part.rated is None else f"its FLOP are at the rates of {part.rated}, no limit"
    note = f"no matrix rate of {part.full_name} is published: {counted}"
    return replace(found, out_of_domain="; ".join(words for words in (found.out_of_domain, note) if words))


def speed_known(asked: Asked) -> bool:
    """Return True if a speed can be computed.

    Needs the bandwidth of the accelerator, and of host memory if experts run on the CPU.
    """
    if asked.machine.accelerator.memory_bandwidth is None:
        return False
    return not experts_on_host(asked) or asked.machine.host.host_memory_bandwidth is not None


def predicted(
    asked: Asked,
    cases: list[tuple[Holding, int]],
    *,
    known: Mapping[int, Deployment] | None = None,
    settled: bool = False,
    statistics: bool = False,
) -> list[Prediction]:
    """Predict the means of layouts at given concurrencies.

    - `known`: Deployments that exist already, by the id of their layout.
    - `settled`: Leave out the first request of each user, which all start together.
    - `statistics`: Predict medians, percentiles and every rate too.
    """
    deployments = dict(known or {})
    rows: list[tuple[Deployment, Load, None]] = []
    for holding, users in cases:
        deployment = deployments.get(id(holding))
        if deployment is None:
            deployment = deployments[id(holding)] = deployment_of(asked, holding.terms)
        load = load_on(asked, deployment, holding, users)
        load = replace(load, means=False) if statistics else load
        rows.append((deployment, load.steady() if settled else load, None))
    found = _once(rows)
    if not prompts_timed(asked):
        return [_decoding_only(one) for one in found]
    return [_without_its_flop(asked, one) for one in found]


def _once(rows: list[tuple[Deployment, Load, None]]) -> list[Prediction]:
    """Predict each case once and cache it: changes of a plan repeat cases."""
    if not rows or not all(runs_on_accelerators(deployment) for deployment, _, _ in rows):
        return predict_many(rows)
    fits = {engine: load_effects(engine) for engine in {deployment.engine for deployment, _, _ in rows}}
    places = [_place(deployment, fits[deployment.engine], load) for deployment, load, _ in rows]
    new = [number for number, place in enumerate(places) if not place]
    for number, one in zip(new, predict_many([rows[number] for number in new]) if new else (), strict=True):
        places[number].append(one)
    return [place[0] for place in places]


@remembered(records=2, most=512)
def _place(deployment: Deployment, fit: Effects, load: Load) -> list[Prediction]:
    """Return the cache slot (list of 0 or 1 predictions) of a case."""
    return []


def _decoding_only(found: Prediction) -> Prediction:
    """Return a prediction without the metrics that need a matrix rate."""
    figures = {name: figure for name, figure in found.figures.items() if name in ("tpot", "output_rate")}
    return replace(found, figures=figures)


@remembered(records=2, most=512)
def deployment_of(asked: Asked, terms: Terms) -> Deployment:
    """Return the deployment of a layout: one server."""
    part, stages = asked.machine.accelerator, tuple(zip(asked.machine.stages, terms.layers, strict=True))
    if stages:
        from glmplan.io.machines.mixed import of_stages

        part = of_stages(stages)
    if not (matrix_rate_known(asked) or experts_on_host(asked) or part.runs_on_one_memory):
        part = part.model_copy(update={"peak": {"bf16": _NO_LIMIT}})
    return deploy(
        asked.model,
        asked.checkpoint,
        part,
        layout=Layout(terms.tp, terms.pp, terms.dp, terms.ep, terms.dcp),
        kv=terms.kv,
        engine=asked.engine,
        release=asked.release,
        settings=replace(asked.settings, graphs=terms.graphs),
        draft_tokens=terms.mtp,
        acceptance=asked.acceptance if terms.mtp == asked.mtp else None,
        sparse=terms.sparse,
        link=_links(asked, terms),
        offload=offload_of(
            asked.engine, asked.machine.host, terms.server, asked.settings.placement(len(asked.model.layer_names))
        ),
        power_limit=asked.machine.limit_of(asked.power_limit),
        assumed=unstated_of(asked),
        stages=stages,
    ).remembered()


def unstated_of(asked: Asked) -> tuple[str, ...]:
    """Return the kinds of settings that a plan leaves open.

    See `glmplan.prediction.assumptions`.

    Its launch command states all but the contents of files that no publisher of the model describes.
    """
    return assumed_kinds(remarks_on(asked.model, asked.checkpoint))


def _links(asked: Asked, terms: Terms) -> LayoutLinks:
    """Return the links that the groups of a layout use.

    Data-parallel ranks of a dense model exchange nothing, so their link may be unknown.
    """
    machine = asked.machine
    try:
        return machine.links(tp=terms.tp, pp=terms.pp, dp=terms.dp, dcp=terms.dcp)
    except UnknownFact:
        if terms.dp == 1 or routed_blocks(asked.model):
            raise
        return machine.links(tp=terms.tp, pp=terms.pp, dcp=terms.dcp)


def load_of(
    asked: Asked, deployment: Deployment, pool: Pool | None, users: int, replicas: int = 1, slots: int | None = None
) -> Load:
    """Return the mean load of a server at a concurrency, for means.

    Closed loop: each user sends the next request after the last answer. Without a matrix rate only decoding counts.
    - `pool`: KV pool of all replicas for requests of this length; None does not limit.
    - `slots`: Running requests of a server (`slots_of`); by default those of its settings.
    """
    tokens = ENDLESS if pool is None else pool.tokens_of(asked.request_tokens) / replicas
    busy, packing, cached = min(replicas, users), deployment.defaults, asked.cached_tokens
    places = slots or seats_of(asked, deployment.dp)
    if cached:
        # cached tokens take KV pool, but no prefill time
        each = asked.input_tokens + packing.reserve * asked.output_tokens
        places = max(min(places, int(tokens // each)), 1)
    load = user_load(
        packing,
        ranks=deployment.dp,
        tokens_per_step=deployment.tokens_per_step,
        draft_tokens=deployment.draft_chain,
        users=users / busy,
        input_tokens=asked.input_tokens - cached,
        output_tokens=asked.output_tokens,
        context=float(cached),
        max_requests=places,
        pool_tokens=tokens,
        replicas=busy,
        means=True,
    )
    return load.decoding() if deployment.accelerator.peak.get("bf16") == _NO_LIMIT else load


def load_on(asked: Asked, deployment: Deployment, holding: Holding, users: int) -> Load:
    """Return the mean load of a layout at a concurrency, as `load_of`."""
    pool = holding.pool_for(asked.request_tokens)
    return load_of(asked, deployment, pool, users, holding.terms.decoding, slots_of(asked, holding))


def typical_users(asked: Asked) -> int:
    """Return the reference concurrency of a machine for comparing layouts."""
    return usual_users(asked.machine)


def shown_users(asked: Asked) -> int:
    """Return the concurrency whose throughput an answer and its changes show.

    The largest of the request or traffic, else the reference concurrency of the machine.
    """
    usual = typical_users(asked)
    return usual if usual in asked.users and not asked.users_given else asked.users[-1]


def rank_layouts(asked: Asked, holdings: list[Holding], *, sole: bool = False) -> list[Scored]:
    """Order layouts, the best first, with the reason against each other one.

    `sole`: Leave out layouts that cannot be chosen, if that is certain before their speed is known.

    Notes
    -----
    Layouts that hold one full-length request at the lower bound of their pool come first, then those that
    do so in the mean, then those that fit with unknown speed (within one machine first, then fewer stages), then the
    others. Speeds are compared at the lower bound of their intervals, times the share of accelerators in use, so a
    measured layout precedes one that is predicted to be slightly faster; of equal evidence expected throughputs within
    10 % are near each other, too. Pipeline stages within one scale-up domain
    (NVLink, Infinity Fabric) come after layouts without stages on as many accelerators [1]_. A layout is a candidate if
    its single-user speed is at least 70 % of the best. Among candidates within 10 % of the largest throughput at the
    reference concurrency the fastest for a single user comes first, in steps of 5 %; then the fewest stages and
    degrees.

    References
    ----------
    .. [1] vLLM, "Parallelism and Scaling": tensor parallelism within a node, stages over nodes, for links without
       NVLink or for a number of accelerators that does not divide.
       https://docs.vllm.ai/en/latest/serving/parallelism_scaling/
    """
    if sole:
        holdings = _contenders(asked, holdings)
    speeds, unknown = _speeds(asked, holdings, shown_users(asked) if sole else None)
    classes = [
        _BLOCKED if one.terms.blocked is not None else _UNKNOWN if place in unknown else _CLASS[one.verdict]
        for place, one in enumerate(holdings)
    ]
    staged = _needless_stages(asked, holdings, classes)
    peers = [place for place in speeds if classes[place] == min(classes) and place not in staged]
    best_alone = max((speeds[place].alone_low for place in peers), default=0.0)
    quick = [place for place in peers if speeds[place].alone_low >= FLOOR * best_alone]
    most = max((speeds[place] for place in quick), key=lambda speed: speed.many_low, default=Speed())
    near = {place for place in quick if _is_near(speeds[place], most)}

    def key(place: int) -> tuple[float, ...]:
        one, terms = holdings[place], holdings[place].terms
        if classes[place] == _UNKNOWN:
            outside = terms.tp * terms.dp > asked.machine.per_node
            return (_UNKNOWN, float(outside), terms.pp, terms.dp, terms.ep, -one.pool.tokens)
        if classes[place] >= _UNKNOWN or place not in speeds:
            return (
                classes[place],
                max(one.lacking, 0.0),
                one.host_short,
                -one.pool.tokens,
                terms.pp,
                terms.dp,
                terms.ep,
            )
        fast = speeds[place]
        rank = 3.0 if place in staged else 0.0 if place in near else 1.0 if place in quick else 2.0
        # among equals in throughput: steps of 5 % for one user
        first = (-_steps(fast.alone_low),) if place in near else (-fast.many_low, -fast.alone_low)
        return (classes[place], rank, *first, terms.pp, terms.dp, terms.ep, -one.pool.tokens)

    order = sorted(range(len(holdings)), key=key)
    best = order[0]
    ranked = []
    for place in order:
        one = speeds.get(place, Speed())
        why = "" if place == best else unknown.get(place) or staged.get(place, "")
        if place != best and not why:
            why = why_not(asked, holdings, speeds, place, best)
        ranked.append(Scored(holdings[place], one.alone, one.many, why, unknown.get(place, ""), one.knowledge))
    return ranked


def _is_near(one: Speed, most: Speed) -> bool:
    """Return True if a throughput is within 10 % of the largest.

    At the lower bound; of equal evidence the expected value is enough: widths then differ by links and load only.
    """
    alike = one.knowledge == most.knowledge and one.many >= NEAR * most.many
    return alike or one.many_low >= NEAR * most.many_low


def needless_stages(asked: Asked, holdings: list[Holding]) -> dict[int, str]:
    """Return layouts with needless pipeline stages, by index with the reason.

    Stages within one scale-up domain are needless if a layout without them fits as well on as many accelerators.
    """
    classes = [_BLOCKED if holding.terms.blocked is not None else _CLASS[holding.verdict] for holding in holdings]
    return _needless_stages(asked, holdings, classes)


def _needless_stages(asked: Asked, holdings: list[Holding], classes: list[int]) -> dict[int, str]:
    """Return needless stages as `needless_stages`, for known classes."""
    scale_up = asked.machine.host.scale_up
    if scale_up is None or scale_up.topology == "bridge" or asked.pp:
        return {}
    whole = {place for place, one in enumerate(holdings) if one.terms.pp == 1}
    found = {}
    for place, one in enumerate(holdings):
        if one.terms.pp == 1 or one.terms.server > asked.machine.per_node or classes[place] >= _UNKNOWN:
            continue
        same = (holdings[n].terms.accelerators for n in whole if classes[n] <= classes[place])
        if max(same, default=0) >= one.terms.accelerators:
            found[place] = f"pipeline stages within one {scale_up.kind} domain gain nothing if it fits without them"
    return found


def _contenders(asked: Asked, holdings: list[Holding]) -> list[Holding]:
    """Return layouts of the best class without needless stages.

    All layouts if the speed of one of these is unknown.
    """
    classes = [_BLOCKED if holding.terms.blocked is not None else _CLASS[holding.verdict] for holding in holdings]
    staged = _needless_stages(asked, holdings, classes)
    first = [one for place, one in enumerate(holdings) if classes[place] == min(classes) and place not in staged]
    if min(classes) >= _UNKNOWN or not speed_known(asked):
        return holdings
    try:
        for one in first:
            deployment_of(asked, one.terms)
    except UnknownFact:
        return holdings
    return first


#: layouts that fit come before those that do not, and those of unknown speed between them
_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 3}
_UNKNOWN, _BLOCKED = 2, 4
#: up to so many layouts are predicted at the shown concurrency at once: a second call would take as long [-]
_FEW = 4


def _speeds(asked: Asked, holdings: list[Holding], shown: int | None = None) -> tuple[dict[int, Speed], dict[int, str]]:
    """Return speeds of layouts, and why some are unknown.

    Predictions at other concurrencies are cached (`_once`). With `shown`, a layout without a rival is predicted at that
    concurrency instead: nothing has to be compared.
    """
    unknown: dict[int, str] = {}
    deployments: dict[int, Deployment] = {}
    owners = []
    for place, one in enumerate(holdings):
        if one.terms.blocked is not None or one.verdict == "does_not_fit" or not speed_known(asked):
            continue
        try:
            deployments[id(one)] = deployment_of(asked, one.terms)
        except UnknownFact as error:
            unknown[place] = str(error)
            continue
        owners.append(place)
    cases: list[tuple[Holding, int]] = []
    fewer: dict[int, tuple[Holding, int]] = {}
    for place in owners:
        one = holdings[place]
        # requests beyond the KV pool wait and add no throughput
        held, sure = (max(min(typical_users(asked), int(many)), 1) for many in (one.held, one.held_low))
        if shown is not None and len(owners) == 1:
            held = sure = shown
        cases += [(one, 1), (one, held)]
        if sure < held:
            fewer[place] = (one, sure)
    # one of these few will be chosen, and its answer needs the shown concurrency
    next_cases = [(holdings[place], shown) for place in owners] if shown is not None and 1 < len(owners) <= _FEW else []
    found = predicted(asked, [*cases, *fewer.values(), *next_cases], known=deployments)
    # the lower bound of a throughput is that of the users within the lower bound of the pool
    at_lower_bound = dict(zip(fewer, found[len(cases) :], strict=False))
    speeds = {}
    for number, place in enumerate(owners):
        alone, rate = found[2 * number].figures, found[2 * number + 1].figures["output_rate"]
        # answers of a single token have no TPOT: compare TTFT
        token = alone["tpot"] if "tpot" in alone else alone["ttft"]
        used = holdings[place].terms.accelerators / asked.machine.count
        known = known_apart(asked, found[2 * number + 1].knowledge)
        lower = at_lower_bound.get(place)
        low = rate.low if lower is None else lower.figures["output_rate"].low
        speeds[place] = Speed(1.0 / token.value, used / token.high, rate.value, used * low, known)
    return speeds, unknown


def _steps(value: float) -> int:
    """Return a value in steps of 5 %, [-]"""
    return round(math.log(max(value, 1e-9)) / math.log(1.05))


_NAMES = {"tpot": "decode", "ttft": "TTFT"}


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
    """Interval width of one metric before and after a benchmark."""

    users: int  # concurrency of the metric, [-]
    metric: str  # ``ttft`` or ``tpot``
    #: `before`, `after`: half the width of the logarithm of its 90 % interval, [-]
    before: float
    after: float


@dataclass(frozen=True, slots=True, repr=False)
class Narrowing:
    """The benchmark that would shrink the intervals of a plan most."""

    users: int  # measured concurrency, [-]
    figures: tuple[Narrowed, ...]  # effect on the metrics of one user, then of the reference concurrency
    command: str  # the `glmplan validate` command

    def __repr__(self) -> str:
        return f"<Narrowing: {narrowing_words(self)}>"


def narrowing_of(
    asked: Asked, holding: Holding, deployment: Deployment, knowledge: str, rows: tuple[_Row, ...]
) -> Narrowing | None:
    """Return the benchmark that shrinks the intervals of a plan most.

    - `rows`: Metrics by concurrency; these concurrencies are also the candidates for the benchmark.
    - Returns: The benchmark with the smallest sum of variances of the logarithms of all metrics; None if the site
      measured the plan or no interval would shrink.

    Examples
    --------
    >>> from glmplan.planner import fit_answer
    >>> from glmplan.request.plan import PlanRequest
    >>> found = fit_answer(PlanRequest("gpt-oss-120b", "1xrtx-pro-6000-ws")).narrowing
    >>> found.figures[0].after < 0.5 * found.figures[0].before
    True
    """
    if knowledge == "site":
        return None
    by_users = {row.users: {"tpot": row.tpot, "ttft": row.ttft} for row in rows}
    counts = sorted(by_users)
    mean = (load_on(asked, deployment, holding, users) for users in counts)
    loads = [whole_loads(one)[0] for one in mean]  # of the fuller replicas
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
    """Return the concurrency of a benchmark and the uncertainty it removes.

    Examples
    --------
    >>> figures = (Narrowed(1, "tpot", 0.583, 0.129), Narrowed(1, "ttft", 1.28, 0.315), Narrowed(32, "tpot", 0.6, 0.2))
    >>> narrowing_words(Narrowing(1, figures, ""))
    'at 1 user: uncertainty of single-user decode from a factor 1.8 to 1.1, of decode at 32 users from 1.8 to 1.2, of
    single-user TTFT from 3.6 to 1.4'
    """
    texts: list[str] = []
    for name in of:
        figures = (one for one in found.figures if one.metric == name)
        for one in figures:
            metric = f"{_NAMES[name]} at {one.users:,} users" if one.users > 1 else f"single-user {_NAMES[name]}"
            factor = "" if texts else "a factor "
            texts.append(f"of {metric} from {factor}{math.exp(one.before):.1f} to {math.exp(one.after):.1f}")
    return f"at {counted_unit(found.users, 'users')}: uncertainty {', '.join(texts)}"
