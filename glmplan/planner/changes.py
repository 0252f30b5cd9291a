"""Changes of a plan, each computed with the same search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.model import Checkpoint
from glmplan.costs.blocks.stack import checkpoint_bytes, routed_blocks
from glmplan.errors import GlmplanError
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.planner.capacity import Holding, Terms, experts_on_host
from glmplan.planner.formats import bits_of, format_known
from glmplan.planner.layouts import check_apart
from glmplan.planner.plan import LEAST_GAIN, Change, TrafficRun, as_well_known
from glmplan.planner.question import DEFAULT_ENGINE, DEGREES, MLX_ENGINE, Asked
from glmplan.planner.ranking import Scored, deployment_of, load_of, needless_stages, shown_users
from glmplan.planner.simulated import host_copies, shown_rate, steady_rate, traffic_run, why_no_copies
from glmplan.planner.traffic_search import decides_plan, solve_under
from glmplan.planner.users import Solution, safe_number, solve, verdict_under
from glmplan.prediction.predict import predict_many
from glmplan.units import Ratio

if TYPE_CHECKING:
    from glmplan.planner.question import Asked
    from glmplan.planner.users import Solution
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load
    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "Looked",
    "Split",
    "changes_of",
    "degrees_words",
    "gain_under",
    "looked_at",
    "runs_under",
    "splits_of",
    "tried",
    "verdict_of",
]


def verdict_of(asked: Asked, first: Scored) -> str:
    """Return the verdict of a layout, see `verdict_under`."""
    return verdict_under(asked, first.holding)


@dataclass(frozen=True, slots=True)
class Looked:
    """An evaluated change and its plan."""

    change: Change  # its effect; the total rate is that of steady-state sums
    asked: Asked  # the request with the change
    scored: Scored | None  # its best layout; None if the request is refused

    def printed(self) -> Change:
        """Return the change with the total rate that `fit` prints for its plan.

        It is simulated if the KV pool does not hold the users.
        """
        if self.scored is None or not self.scored.alone:
            return self.change
        return replace(self.change, total_rate=shown_rate(self.asked, self.scored, self.change.total_rate))


def looked_at(name: str, what: str, ask: str, solution: Solution, note: str = "", place: int = 0) -> Looked:
    """Return the plan of a changed request as an evaluated change.

    `place` is the index of the layout, by default the best.
    """
    asked, one = solution.asked, solution.ranked[place]
    holding = one.holding
    change = Change(
        name=name,
        what=what,
        verdict=verdict_of(asked, one),
        layout=holding.terms.name,
        pool_tokens=holding.pool.tokens,
        pool_low=holding.pool.low,
        held=holding.held_low,
        user_rate=one.alone,
        total_rate=steady_rate(asked, one),
        note=note,
        ask=ask,
        knowledge=one.knowledge,
    )
    return Looked(change, asked, one)


def tried(asked: Asked, options: frozenset[str] = frozenset(), *, sole: bool = True) -> Solution | None:
    """Plan a changed request; None if it is refused or its network is unknown.

    `sole`: only the best layout matters, as in `glmplan.planner.users.solve`.
    """
    try:
        found = solve(asked, options=options, quick=True, sole=sole)
    except GlmplanError:
        return None
    if found.best.verdict != "does_not_fit" and found.ranked[0].alone == 0.0 and found.speed_known:
        return None  # its network is not known
    return found


#: layouts that are considered for disaggregated prefill, the best first; splits that are tried [-]
_LAYOUTS, _TRIED = 8, 2


@dataclass(frozen=True, slots=True)
class Split:
    """Servers of one layout, some for prefill and some for decoding."""

    holding: Holding  # the layout of each server
    #: `prefill`, `decode`: servers for prefill and for decoding, [-]
    prefill: int
    decode: int
    answer: float  # lower bound of the end-to-end latency: no prefill beside decoding, no waiting, [s]

    def asked(self, asked: Asked) -> Asked:
        """Return the request with these servers."""
        terms = self.holding.terms
        degrees = {name: getattr(terms, name) for name in ("tp", "pp", "dp")}
        more = {name: getattr(terms, name) if getattr(terms, name) > 1 else None for name in ("ep", "dcp")}
        return asked.but(**degrees, **more, replicas=self.prefill + self.decode, prefill=self.prefill)

    @property
    def ask(self) -> str:
        """Options that request these servers."""
        terms = self.holding.terms
        words = [f"--tp {terms.tp} --pp {terms.pp} --dp {terms.dp}"]
        words += [f"--{name} {getattr(terms, name)}" for name in ("ep", "dcp") if getattr(terms, name) > 1]
        return " ".join([*words, f"--disaggregated {self.prefill}:{self.decode}"])

    @property
    def what(self) -> str:
        """The change as text."""
        servers = f"{self.prefill} of {self.prefill + self.decode} servers for prefill only"
        return f"{servers}, the others decode (never measured together)"


def splits_of(solution: Solution, users: Ratio) -> list[Split]:
    """Return useful numbers of prefill and decode servers, fastest first.

    Empty if the engine has no disaggregated prefill, the layout is fixed, or the machine holds one server only.

    Notes
    -----
    Each layout that fits has as many servers as fill the machine. The prefill share of the servers is the prefill share
    of the time of a request: one prompt against its further tokens in a step with as many other requests as the server
    has. Both use the function that times every step. All servers have the same layout, without pipeline stages: no
    source says how their KV cache is transferred.
    """
    asked = solution.asked
    running = load_engine(asked.engine).running
    fixed = any(getattr(asked, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas"))
    if running is None or running.apart is None or fixed or asked.machine.count < 2 or asked.output_tokens < 2:
        return []
    try:
        check_apart(asked.but(prefill=1, replicas=2))
        found = _splits(asked, list(_candidates(solution)), users)
    except GlmplanError:
        return []
    return sorted(found, key=lambda one: one.answer)[:_TRIED]


def _candidates(solution: Solution) -> Iterator[tuple[Holding, int]]:
    """Return layouts that fit, each once, with the number of servers."""
    asked = solution.asked
    seen: set[tuple[int, ...]] = set()
    for layout in solution.ranked:
        terms = layout.holding.terms
        if not layout.alone or layout.holding.verdict != "fits" or terms.layout in seen or terms.pp > 1:
            continue
        seen.add(terms.layout)
        domain = min(asked.machine.per_node, asked.machine.count)
        if terms.server > domain or domain % terms.server or asked.machine.count % domain:
            continue  # GPUs would be idle, or a server would span two machines
        servers = asked.machine.count // terms.server
        if servers >= 2:
            yield layout.holding, servers
        if len(seen) == _LAYOUTS:
            return


def _splits(asked: Asked, candidates: list[tuple[Holding, int]], users: float) -> list[Split]:
    """Return the prefill servers of each layout and the estimated latency."""

    def decoding(place: int, servers: int) -> tuple[Deployment, Load, None]:
        each = max(round(users / servers), 1)
        return deployments[place], load_of(asked, deployments[place], pools[place], each).decoding(), None

    if not candidates:
        return []
    deployments = [deployment_of(asked, one.terms) for one, _ in candidates]
    pools = [one.pool_for(asked.request_tokens).of_server(one.terms.decoding) for one, _ in candidates]
    rows = [(one, load_of(asked, one, pool, 1), None) for one, pool in zip(deployments, pools, strict=True)]
    both = predict_many([*rows, *(decoding(place, servers) for place, (_, servers) in enumerate(candidates))])
    kept: list[tuple[int, int, int, float]] = []
    for place, (holding, servers) in enumerate(candidates):
        first, later = both[place].figures.get("ttft"), both[len(candidates) + place].figures.get("tpot")
        if first is None or later is None:
            continue
        further = (asked.output_tokens - 1) * later.value / max(users / servers, 1.0)
        prefill = min(max(round(servers * first.value / (first.value + further)), 1), servers - 1)
        held = holding.pool_for(asked.request_tokens).held_low / holding.terms.decoding * (servers - prefill)
        # the servers that decode must hold them
        if held >= users:
            kept.append((place, prefill, servers - prefill, first.value))
    times = predict_many([decoding(place, decode) for place, _, decode, _ in kept]) if kept else []
    return [
        Split(candidates[place][0], prefill, decode, prompt + (asked.output_tokens - 1) * one.figures["tpot"].value)
        for (place, prefill, decode, prompt), one in zip(kept, times, strict=True)
    ]


_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}
#: maximum number of machine sizes that are tried [-]
_TRIALS = 10
#: smallest gain that is worth another layout [-]
_LEAST = 0.05


def changes_of(solution: Solution, *, engines: bool = False) -> tuple[Looked, ...]:
    """Return the changes of a plan, each once, the nearest first.

    Other engines are included with `engines`, and if the plan does not fit or its model was not measured on its
    accelerator.
    """
    return _once(_changes(solution, engines=engines))


def _changes(solution: Solution, *, engines: bool) -> list[Looked]:
    asked, first = solution.asked, solution.ranked[0]
    verdict = verdict_of(asked, first)
    if first.holding.terms.blocked is not None:
        return [*_own_choices(solution), *_other_checkpoints(solution), *_engines(solution)]
    found: list[Looked] = [*_own_choices(solution), *_shorter(solution), *_roomier(solution, verdict)]
    for make in (_cache, _kernels, _drafting, _other_layouts, _apart):
        found += list(make(solution))
    if verdict == "fits":
        found += _fewer(solution)
    found += [*_all_kinds(solution), *_more(solution, verdict)]
    found += _smaller_checkpoints(solution, verdict)
    found += _relatives(solution, verdict)
    if engines or verdict != "fits" or (first.alone and first.knowledge not in _MEASURED):
        found += _engines(solution)
    return found


def _own_choices(solution: Solution) -> Iterator[Looked]:
    """Return the plan without a typed layout or cache that does not fit."""
    asked, best = solution.asked, solution.best
    if best.terms.blocked is None and best.verdict != "does_not_fit":
        return
    degrees = [name for name in DEGREES if getattr(asked, name) is not None]
    kinds: tuple[tuple[str, bool, dict[str, object]], ...] = (
        ("kv", asked.kv is not None, {"kv": None}),
        ("layout", bool(degrees) and not asked.prefill and not asked.machine.mixed, dict.fromkeys(DEGREES)),
    )
    for name, typed, changes in kinds:
        other = tried(asked.but(**changes), solution.options) if typed else None
        if other is None or other.best.terms.blocked is not None or other.best.verdict == "does_not_fit":
            continue
        terms = other.best.terms
        if name == "kv":
            what = f"{terms.kv.upper()} cache instead of {str(asked.kv).upper()}"
            yield looked_at("kv", what, f"--kv {terms.kv}", other)
        else:
            what = f"{terms.name} instead of the layout asked for"
            yield looked_at("layout", what, degrees_words(asked, terms), other)


#: classes in which the model was measured on the part
_MEASURED = ("site", "configuration", "release", "group", "group_release")


def _once(found: Iterable[Looked]) -> tuple[Looked, ...]:
    """Return the changes without duplicates of their options."""
    seen: dict[str, Looked] = {}
    for one in found:
        seen.setdefault(one.change.ask or one.change.what, one)
    return tuple(seen.values())


def _engines(solution: Solution) -> Iterator[Looked]:
    """Return other engines that read the same files or have own checkpoints."""
    asked, kept = solution.asked, solution.asked.checkpoint
    if asked.machine.mixed:
        return  # each engine deals layers to accelerators of several kinds in its own way
    from glmplan.planner.moved_experts import moved_words
    from glmplan.planner.moved_search import with_moved_experts

    asked = asked.but(settings=replace(asked.settings, host_experts=0.0, host_layers=0, host_cache=False))
    mine = load_engine(asked.engine).running
    free = all(getattr(asked, name) is None for name in ("kv", "dcp")) and not asked.settings.attention_backend
    for engine in sorted(engine_names(), key=lambda name: (name != DEFAULT_ENGINE, name)):
        running = load_engine(engine).running
        if engine == asked.engine or running is None or load_memory_rule(engine).host_experts or not free:
            continue
        common = kept.form in ("safetensors", "gguf")
        same_files = mine is not None and mine.reads == running.reads and common
        other = None
        for weights in (kept,) if same_files else _own_files(asked, engine):
            other = tried(asked.but(engine=engine, engine_version=None, checkpoint=weights))
            if other is not None and other.best.terms.blocked is None and other.best.verdict != "does_not_fit":
                break
        if other is None or other.best.terms.blocked is not None:
            continue
        moved = ""
        if solution.best.lacking > 0 and other.best.lacking > 0:  # nothing fits without weights in host memory
            other = with_moved_experts(tried(other.asked, sole=False) or other)
            moved = f", {words}" if (words := moved_words(other.asked, other.best)) else ""
        weights = other.asked.checkpoint
        words = f"--engine {engine}" + f" --weights {weights.name}" * (weights.name != kept.name)
        files = moved if same_files else f" with {weights.name}{moved}"
        yield looked_at("engine", f"{engine} instead of {asked.engine}{files}", words, other)


def _own_files(asked: Asked, engine: str) -> list[Checkpoint]:
    """Return smaller checkpoints that the memory may hold, the largest first.

    The smallest one if all are larger.
    """
    running, part = load_engine(engine).running, asked.machine.accelerator
    if running is None or (running.reads == _APPLE_FILES and part.vendor != "Apple"):
        return []
    fits = [checkpoint for checkpoint in asked.model.checkpoints if checkpoint.form == running.reads]
    smaller = [one for one in fits if bits_of(one) <= bits_of(asked.checkpoint) + 0.1]
    memory = (part.memory or 0.0) * asked.machine.count
    loads = [one for one in smaller if checkpoint_bytes(asked.model, one) <= memory]
    found = sorted(loads or smaller[-1:], key=bits_of, reverse=True)[:_FILES_TRIED]
    return found or sorted(fits, key=bits_of)[:1]


#: checkpoints of another engine that are tried [-]
_FILES_TRIED = 3
#: file format that only the engine for Apple GPUs reads; both have one name
_APPLE_FILES = MLX_ENGINE


def _other_checkpoints(solution: Solution) -> Iterator[Looked]:
    """Return the nearest other checkpoint of the same file format that runs."""
    asked = solution.asked
    others = [checkpoint for checkpoint in asked.model.checkpoints if checkpoint.name != asked.checkpoint.name]
    # another file of the same format would not run either
    same = [one for one in others if one.form == asked.checkpoint.form and bits_of(one) != bits_of(asked.checkpoint)]
    for one in sorted(same, key=lambda one: abs(bits_of(one) - bits_of(asked.checkpoint)))[:4]:
        other = tried(asked.but(checkpoint=one), solution.options)
        if other is None or other.best.terms.blocked is not None or not format_known(other.best):
            continue
        if other.best.verdict != "does_not_fit":
            yield looked_at("checkpoint", f"{asked.model.name} {one.name}", f"--weights {one.name}", other)
            return


def _shorter(solution: Solution) -> Iterator[Looked]:
    """Return a shorter context: the longest guaranteed one, else half of it."""
    asked, best = solution.asked, solution.best
    if best.verdict == "fits":
        length = (asked.context or 0) // 2 // 1024 * 1024
    else:
        longest = max((layout.holding.context_low for layout in solution.ranked[:8]), default=0.0)
        length = int(min(longest, asked.model.max_context)) // 1024 * 1024
    inputs = max(min(asked.input_tokens, length - asked.output_tokens), 1)
    if not 1024 <= length < asked.full_request or inputs + asked.output_tokens > length:
        return
    other = tried(asked.but(context=length, input_tokens=inputs), solution.options)
    if other is not None:
        held = f"requests held: {other.best.held_low:,.0f} instead of {best.held_low:,.0f}"
        words = f"--context {length}"
        if asked.lengths_given and inputs != asked.input_tokens:
            words += f" --input {inputs}"
        yield looked_at("context", f"context {length:,} instead of {asked.full_request:,}", words, other, held)


def _roomier(solution: Solution, verdict: str) -> Iterator[Looked]:
    """Return the largest published memory fraction if the default fails."""
    asked, largest = solution.asked, load_memory_rule(solution.asked.engine).largest_fraction
    if verdict == "fits" or not largest or asked.settings.memory_fraction is not None:
        return
    other = tried(asked.but(settings=replace(asked.settings, memory_fraction=largest)), solution.options)
    if other is not None and _CLASS[verdict_of(other.asked, other.ranked[0])] < _CLASS[verdict]:
        note, words = "no other process may use these GPUs; largest value of published recipes", "--memory-fraction"
        yield looked_at("memory", f"memory fraction {largest:.0%} for the engine", f"{words} {largest:g}", other, note)


def _cache(solution: Solution) -> Iterator[Looked]:
    asked, kv = solution.asked, solution.best.terms.kv
    engine = load_engine(asked.engine)
    wide = engine.default_cache
    wanted = wide if kv_format(kv).bytes < kv_format(wide).bytes else engine.small_cache(asked.machine.accelerator)
    if not wanted:
        return
    other = tried(asked.but(kv=wanted), solution.options)
    if other is None or other.best.verdict == "does_not_fit" == solution.best.verdict:
        return
    if other.best.terms.kv != wanted:
        return
    yield looked_at("kv", f"{wanted.upper()} cache instead of {kv.upper()}", f"--kv {wanted}", other)


def _kernels(solution: Solution) -> Iterator[Looked]:
    """Return a build with sparse kernels if attention would be dense."""
    dense = [limitation for limitation in solution.best.terms.limitations if limitation.instead.attention == "dense"]
    options = {option for one in dense for option in one.when.unless if option.endswith("sparse-mla")}
    if not options or solution.best.verdict == "does_not_fit":
        return
    other = tried(solution.asked, frozenset(options))
    if other is not None:
        note = dense[0].fixed_by or ""
        yield looked_at("kernels", "a community build with sparse attention kernels", "", other, note)


def _drafting(solution: Solution) -> Iterator[Looked]:
    asked = solution.asked
    if asked.mtp and solution.best.verdict != "does_not_fit":
        other = tried(asked.but(mtp=0, acceptance=None), solution.options, sole=False)
        if other is not None:  # each drafted token takes work of a full batch, and memory
            yield looked_at("mtp", "no speculative decoding", "--mtp 0", other, "")
    if asked.model.mtp is None or asked.mtp or not asked.checkpoint.includes_mtp or experts_on_host(asked):
        return
    if solution.best.verdict == "does_not_fit":
        return
    other = tried(asked.but(mtp=3), solution.options, sole=False)
    if other is None:
        return
    drafting = next((n for n, one in enumerate(other.ranked[:6]) if one.holding.terms.mtp), None)
    if drafting is None or other.ranked[drafting].holding.verdict == "does_not_fit":
        refused = next((wall for wall in other.best.terms.limitations if wall.instead.mtp == 0), None)
        note = f"refused: {refused.title}" if refused else "not enough memory for the draft layers"
        refusal = Change(
            "mtp", "3 speculative tokens (MTP)", "does_not_fit", other.best.terms.name, 0, 0, 0, 0, 0, note, "--mtp 3"
        )
        yield Looked(refusal, other.asked, None)
        return
    yield looked_at(
        "mtp", "3 speculative tokens (MTP)", "--mtp 3", other, "acceptance depends on the text", place=drafting
    )


def _other_layouts(solution: Solution) -> Iterator[Looked]:
    """Return layouts that hold all users, or are fastest for one or for many."""
    asked = solution.asked
    staged = needless_stages(asked, [layout.holding for layout in solution.ranked])
    places = [
        n
        for n, one in enumerate(solution.ranked)
        if n and one.holding.verdict != "does_not_fit" and one.alone and n not in staged
    ]
    if not places:
        return
    ranked = solution.ranked
    wanted = [max(places, key=lambda n: ranked[n].alone), max(places, key=lambda n: ranked[n].many)]
    if asked.users_given and solution.best.held_low < asked.users[-1]:
        enough = [n for n in places if ranked[n].holding.held_low >= asked.users[-1]]
        wanted.insert(0, enough[0] if enough else max(places, key=lambda n: ranked[n].holding.held_low))
    elif asked.users_given:
        safe = {n: safe_number(asked, ranked[n].holding, probability=asked.probability)[0].users for n in (0, *places)}
        if safe[0] < asked.users[-1]:
            wanted.insert(0, max(places, key=lambda n: safe[n]))
    for place in dict.fromkeys(wanted):
        one, terms = ranked[place], ranked[place].holding.terms
        more = max(one.alone / max(ranked[0].alone, 1e-9), one.many / max(ranked[0].many, 1e-9))
        # a layout that is not needed for its KV pool must gain something
        if (place != wanted[0] or len(wanted) < 3) and more < 1.0 + _LEAST:
            continue
        yield looked_at("layout", f"{terms.name} instead", degrees_words(asked, terms), solution, place=place)


def _apart(solution: Solution) -> Iterator[Looked]:
    """Return disaggregated prefill if it raises the total throughput."""
    asked, first = solution.asked, solution.ranked[0]
    users = shown_users(asked)
    if not first.alone or users < 2 or solution.best.verdict == "does_not_fit":
        return
    now = shown_rate(asked, first, steady_rate(asked, first))
    for split in splits_of(solution, float(users)):
        if users * asked.output_tokens / split.answer < (1.0 + _LEAST) * now:
            continue
        other = tried(split.asked(asked), solution.options)
        if other is None:
            continue
        looked = looked_at("disaggregated", split.what, split.ask, other)
        try:
            rate = shown_rate(other.asked, other.ranked[0], steady_rate(other.asked, other.ranked[0]))
        except GlmplanError:
            continue  # the link between the servers is not known
        if rate >= (1.0 + _LEAST) * now:
            yield replace(looked, change=replace(looked.change, total_rate=rate))
            return


def degrees_words(asked: Asked, terms: Terms) -> str:
    """Return the options that request a layout; empty for a part of a host."""
    machine = asked.machine
    words = [f"--on {terms.accelerators}x{machine.part}"] * (terms.accelerators != machine.count)
    if words and machine.named:
        return ""
    degrees = {"dcp": terms.dcp, "replicas": terms.replicas}
    words += [f"--tp {terms.tp}", f"--pp {terms.pp}", f"--dp {terms.dp}"]
    if terms.ep > 1 or (routed_blocks(asked.model) and terms.tp * terms.dp > 1):
        words.append(f"--ep {terms.ep}")  # left open, experts may be spread too
    return " ".join(words + [f"--{name} {degree}" for name, degree in degrees.items() if degree > 1])


def _fewer(solution: Solution) -> Iterator[Looked]:
    """Return the smallest number of accelerators that fits the request."""
    asked, used = solution.asked, solution.best.terms.accelerators
    if experts_on_host(asked) or any(getattr(asked, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")):
        return
    need = asked.users[-1] if asked.users_given else 0
    servers = [
        layout.holding.terms.server
        for layout in solution.ranked
        if layout.holding.verdict == "fits"
        and layout.alone
        and layout.holding.held_low >= need * layout.holding.terms.replicas
    ]
    least = min(servers, default=used)
    # large machines were not searched at every number: try those below the smallest
    trials = [*range(max(least // 2 + 1, least - _TRIALS), least), least] if asked.machine.count > 16 else [least]
    for number in trials:
        if number >= used:
            return
        try:
            machine = asked.machine.with_count(number)
        except GlmplanError:
            continue
        other = tried(asked.but(machine=machine), solution.options)
        if other is not None and verdict_of(other.asked, other.ranked[0]) == "fits":
            yield looked_at("fewer", f"smallest number that fits: {number}", f"--on {machine.text}", other)
            return


def _all_kinds(solution: Solution) -> Iterator[Looked]:
    """Return a pipeline stage on each accelerator, of all kinds."""
    asked, running = solution.asked, load_engine(solution.asked.engine).running
    left = asked.machine.left_out and running is not None and running.stage_layers is not None
    if not left or any(getattr(asked, name) is not None for name in DEGREES):
        return
    machine = asked.machine.in_stages(1)
    if machine.mixed:
        other = tried(asked.but(machine=machine, tp=1, pp=machine.count, dp=1, replicas=1), solution.options)
        if other is not None:
            yield looked_at("stages", f"a stage on each of {machine.count} GPUs", f"--pp {machine.count}", other)


def _more(solution: Solution, verdict: str) -> Iterator[Looked]:
    """Return one more accelerator, and the smallest number that fits."""
    asked = solution.asked
    if experts_on_host(asked):
        return  # the host stays the same
    degrees = any((asked.tp, asked.pp, asked.dp))
    if degrees:
        asked = asked.but(tp=None, pp=None, dp=None, ep=None)
    count = asked.machine.count
    trials = (
        [count + 1] if verdict == "fits" else [*range(count + 1, count + 8), *(count << bit for bit in range(1, 5))]
    )
    trials = list(dict.fromkeys(sorted(trials)))
    for number in trials[:_TRIALS]:
        try:
            machine = asked.machine.with_count(number)
        except GlmplanError:
            continue
        other = tried(asked.but(machine=machine), solution.options)
        if other is None:
            continue
        after = verdict_of(other.asked, other.ranked[0])
        if number == count + 1 or _CLASS[after] < _CLASS[verdict]:
            if number == count + 1 and verdict != "fits" and _CLASS[after] >= _CLASS[verdict]:
                continue
            name = machine.accelerator.name
            # explicit degrees would have to be removed, which no added option says
            yield looked_at("accelerators", f"{number} × {name}", f"--on {machine.text}" * (not degrees), other)
        if after == "fits":
            return


def _smaller_checkpoints(solution: Solution, verdict: str) -> Iterator[Looked]:
    """Return the largest smaller checkpoint that fits or is faster."""
    asked = solution.asked
    mine = bits_of(asked.checkpoint)
    # only files that the engine reads without conversion
    running, plain = load_engine(asked.engine).running, asked.checkpoint.form
    form = running.reads if running is not None and plain == "safetensors" else plain
    smaller = [
        checkpoint
        for checkpoint in asked.model.checkpoints
        if bits_of(checkpoint) < 0.97 * mine and checkpoint.form == form
    ]
    for one in sorted(smaller, key=bits_of, reverse=True)[: 1 if verdict == "fits" else 4]:
        other = tried(asked.but(checkpoint=one), solution.options)
        if other is None or other.best.terms.blocked is not None or not format_known(other.best):
            continue
        after = _CLASS[verdict_of(other.asked, other.ranked[0])]
        if after < _CLASS[verdict] or after == _CLASS["fits"] == _CLASS[verdict]:
            yield looked_at("checkpoint", f"{asked.model.name} {one.name}", f"--weights {one.name}", other)
            return


def _relatives(solution: Solution, verdict: str) -> Iterator[Looked]:
    """Return the largest pruned version of the model that fits."""
    asked = solution.asked
    names = [name for name in model_names() if name.startswith(f"{asked.model.name}-reap")]
    for name in sorted(names, key=_experts_kept, reverse=True):
        model = load_model(name)
        try:
            checkpoint = checkpoint_for(model, asked.checkpoint.name, engine=asked.engine)
        except GlmplanError:
            checkpoint = checkpoint_for(model, engine=asked.engine)
        if bits_of(checkpoint) > bits_of(asked.checkpoint) + 0.1:
            continue
        other = tried(asked.but(model=model, checkpoint=checkpoint), solution.options)
        if other is not None and _CLASS[verdict_of(other.asked, other.ranked[0])] <= min(_CLASS[verdict], 1):
            what = f"{name} {checkpoint.name} (pruned: fewer experts, different quality)"
            yield looked_at("model", what, f"{name}-{checkpoint.name}", other)
            return


def _experts_kept(name: str) -> int:
    last = name.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0


# Under traffic another layout is no change: the plan already is the layout that serves the traffic best.

#: preemptions per request from which a lower max_num_seqs is tried [-]
_THRASH = 0.01
#: KV pool usage from which the pool counts as short [-]
_SHORT = 0.5
#: changes that are listed [-]
_LISTED = 5
#: factor of "a larger KV pool" [-]
_LARGER = 2.0


def gain_under(plan: TrafficRun, change: TrafficRun) -> Ratio:
    """Return the relative gain in mean end-to-end latency; negative if slower."""
    if change.rejected > plan.rejected or change.left > plan.left or not change.e2e.value:
        return -1.0
    return plan.e2e.value / change.e2e.value - 1.0


def runs_under(solution: Solution, traffic: Traffic) -> tuple[TrafficRun, ...]:
    """Simulate a plan under traffic and the changes that may serve it better.

    The plan comes first, then changes with a gain of `LEAST_GAIN` or more: those of the same evidence level first, each
    group by gain. Empty if nothing can be simulated.
    """
    asked = solution.asked
    try:
        plan = traffic_run(asked, solution.ranked[0], traffic)
    except GlmplanError:
        return ()
    found = [one for one in _changed(solution, traffic, plan) if gain_under(plan, one) >= LEAST_GAIN]
    if plan.full > _SHORT and not asked.host_tokens and decides_plan(traffic):
        plan = replace(plan, no_copies=why_no_copies(asked, solution.best))
    # the same evidence level first
    found.sort(key=lambda one: (not as_well_known(one.knowledge, plan.knowledge), -gain_under(plan, one)))
    return (plan, *found[:_LISTED])


def _changed(solution: Solution, traffic: Traffic, plan: TrafficRun) -> Iterator[TrafficRun]:
    asked, best = solution.asked, solution.best
    terms = best.terms
    engine = load_engine(asked.engine)
    small = engine.small_cache(asked.machine.accelerator)
    if small and kv_format(small).bytes < kv_format(terms.kv).bytes:
        other = _solved(solution, traffic, kv=small)
        if other is not None and other.best.terms.kv == small:
            yield traffic_run(
                other.asked, other.ranked[0], traffic, ends=False,
                what=f"{small.upper()} cache instead of {terms.kv.upper()}", ask=f"--kv {small}",
            )  # fmt: skip
    if plan.preempted > _THRASH:
        ranks = terms.dp * terms.replicas
        running = max(int(best.pool_for(asked.request_tokens).held / ranks), 1)
        option = running * terms.dp if asked.defaults.divided else running
        yield traffic_run(
            asked.but(settings=replace(asked.settings, max_num_seqs=option)), solution.ranked[0], traffic, ends=False,
            what=f"max_num_seqs {running} per rank", ask=f"--max-num-seqs {option}",
        )  # fmt: skip
    if plan.full > _SHORT:
        yield traffic_run(
            asked,
            solution.ranked[0],
            traffic,
            pool=_LARGER,
            ends=False,
            what="twice the KV cache (any means)",
            ask="",
        )
        if decides_plan(traffic) and not asked.host_tokens:
            yield from _with_copies(solution, traffic)
    yield from _apart_traffic_changes(solution, traffic, plan)
    if asked.prefill:
        return  # twice the GPUs may be two machines with another link
    try:
        machine = asked.machine.with_count(2 * asked.machine.count)
    except GlmplanError:
        return
    other = _solved(solution, traffic, machine=machine, tp=None, pp=None, dp=None, ep=None, replicas=None)
    if other is not None:
        name = f"{machine.count} × {machine.accelerator.name}"
        yield traffic_run(other.asked, other.ranked[0], traffic, ends=False, what=name, ask=f"--on {machine.text}")


def _with_copies(solution: Solution, traffic: Traffic) -> Iterator[TrafficRun]:
    """Return the plan with KV offload, with another engine if needed."""
    asked = solution.asked
    engines: tuple[str, ...] = (asked.engine,)
    if why_no_copies(asked, solution.best):
        engines = tuple(one for one in engine_names() if one != asked.engine and _may_copy(one, asked))
    for engine in engines:
        mine = engine == asked.engine
        other = solution if mine else _solved(solution, traffic, engine=engine, engine_version=None)
        if other is None or (copies := host_copies(other.asked, other.best, traffic)) is None:
            continue
        try:
            yield traffic_run(
                other.asked.but(host_tokens=copies.tokens), other.ranked[0], traffic, ends=False,
                what=copies.what if mine else f"{engine} with {copies.what}",
                ask=f"{'' if mine else f'--engine {engine} '}--host-tokens {copies.tokens}",
            )  # fmt: skip
        except GlmplanError:
            continue


def _may_copy(engine: str, asked: Asked) -> bool:
    """Return True if an engine reads the same files and has KV offload."""
    mine, other = load_engine(asked.engine).running, load_engine(engine).running
    return mine is not None and other is not None and other.reads == mine.reads and other.host_cache is not None


def _apart_traffic_changes(solution: Solution, traffic: Traffic, plan: TrafficRun) -> Iterator[TrafficRun]:
    """Return the best disaggregated layout under traffic.

    The number of requests in flight is that of the plan by Little's law.
    """
    asked = solution.asked
    users = plan.total_rate.value / asked.output_tokens * plan.e2e.value
    found = []
    for split in splits_of(solution, users):
        if split.answer * (1.0 + LEAST_GAIN) > plan.e2e.value:
            continue
        other = _solved(replace(solution, asked=split.asked(asked)), traffic)
        if other is None:
            continue
        try:
            run = traffic_run(other.asked, other.ranked[0], traffic, ends=False, what=split.what, ask=split.ask)
        except GlmplanError:
            continue  # the link between the servers is not known
        found.append(run)
    if found:
        yield max(found, key=lambda one: gain_under(plan, one))


def _solved(solution: Solution, traffic: Traffic, **changes: object) -> Solution | None:
    try:
        found = solve_under(solution.asked.but(**changes), traffic, options=solution.options, quick=True)
    except GlmplanError:
        return None
    return found if found.best.verdict != "does_not_fit" and found.ranked[0].alone else None
