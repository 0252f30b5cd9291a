"""What would change the answer: each change is computed with the same search, and given with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.model import Checkpoint
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.errors import GlmplanError
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.planner.capacity import Holding, Terms, experts_on_host
from glmplan.planner.layouts import check_apart
from glmplan.planner.plan import LEAST_GAIN, Change, TrafficRun, as_well_known
from glmplan.planner.question import DEFAULT_ENGINE, MLX_ENGINE, Asked
from glmplan.planner.ranking import Scored, deployment_of, load_of, needless_stages, shown_users
from glmplan.planner.simulated import host_copies, shown_rate, steady_rate, traffic_run, why_no_copies
from glmplan.planner.traffic_search import decides_plan, solve_under
from glmplan.planner.users import Solution, danger_under, solve
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


# A change that was looked at: the plan of a changed question, with its figures.


def verdict_of(asked: Asked, first: Scored) -> str:
    """Verdict of a plan: one full-length request, every user if a number of users was asked for, and no danger."""
    holding = first.holding
    if holding.terms.blocked is not None:
        return "does_not_fit"
    if holding.verdict == "fits" and asked.users_given and holding.held_low < asked.users[-1]:
        return "tight"
    if holding.verdict == "fits" and danger_under(asked, holding) is not None:
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

    - `name`, `what`, `ask`: Kind of change, the change in words, and the words that ask for it.
    - `place`: Which of its layouts, the best by default.
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

    - `sole`: Whether only its best layout matters, as in `glmplan.planner.users.solve`.
    - Returns: None where it is refused, or its network is not known.
    """
    try:
        found = solve(asked, options=options, quick=True, sole=sole)
    except GlmplanError:
        return None
    if found.best.verdict != "does_not_fit" and found.ranked[0].alone == 0.0 and found.speed_known:
        return None  # its network is not known
    return found


# Servers of their own for prompts, where that serves a question better: which numbers of them are worth trying.

#: layouts that are looked at, the best of the plan first; splits that are tried, those that may gain the most [-]
_LAYOUTS, _TRIED = 8, 2


@dataclass(frozen=True, slots=True)
class Split:
    """Servers of one layout, some for prompts and some for decoding.

    Attributes
    ----------
    holding : Holding
        The layout of each server.
    prefill, decode : int
        Servers of each kind, [-]
    answer : float
        How soon a whole answer may come at best: decoding beside no prompt, waiting left out, [s]
    """

    holding: Holding
    prefill: int
    decode: int
    answer: float

    def asked(self, asked: Asked) -> Asked:
        """The question with these servers."""
        terms = self.holding.terms
        degrees = {name: getattr(terms, name) for name in ("tp", "pp", "dp")}
        more = {name: getattr(terms, name) if getattr(terms, name) > 1 else None for name in ("ep", "dcp")}
        return asked.but(**degrees, **more, replicas=self.prefill + self.decode, prefill=self.prefill)

    @property
    def ask(self) -> str:
        """The words that ask for it."""
        terms = self.holding.terms
        words = [f"--tp {terms.tp} --pp {terms.pp} --dp {terms.dp}"]
        words += [f"--{name} {getattr(terms, name)}" for name in ("ep", "dcp") if getattr(terms, name) > 1]
        return " ".join([*words, f"--disaggregated {self.prefill}:{self.decode}"])

    @property
    def what(self) -> str:
        """The change in words."""
        servers = f"{self.prefill} of {self.prefill + self.decode} servers for prefill only"
        return f"{servers}, the others decode (never measured together)"


def splits_of(solution: Solution, users: Ratio) -> list[Split]:
    """Numbers of servers for prompts and for decoding that may serve better, the soonest answers first.

    Returns: Few; empty where the engine has no such servers, prompts and decoding have them already, or a machine has
      room for one server only.

    Notes
    -----
    Of each layout that fits as many servers as fill the machine are taken. Prompts get the share of the servers that
    they have of the time of a request: that of one prompt beside that of its further tokens in a step with as many
    others as the server has, both of the function that times every step. Servers of both kinds have the same layout,
    without pipeline stages: of those no source that was read says how they are handed over.
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
    """Layouts that fit, each once, with the servers that fill the machine."""
    asked = solution.asked
    seen: set[tuple[int, ...]] = set()
    for one in solution.ranked:
        terms = one.holding.terms
        if not one.alone or one.holding.verdict != "fits" or terms.layout in seen or terms.pp > 1:
            continue
        seen.add(terms.layout)
        domain = min(asked.machine.per_node, asked.machine.count)
        if terms.server > domain or domain % terms.server or asked.machine.count % domain:
            continue  # cards would stay idle, or a server span two machines
        servers = asked.machine.count // terms.server
        if servers >= 2:
            yield one.holding, servers
        if len(seen) == _LAYOUTS:
            return


def _splits(asked: Asked, candidates: list[tuple[Holding, int]], users: float) -> list[Split]:
    """How many of the servers of each layout are for prompts, and what that may come to."""

    def decoding(place: int, servers: int) -> tuple[Deployment, Load, None]:
        each = max(round(users / servers), 1)
        return deployments[place], load_of(asked, deployments[place], pools[place], each).decoding(), None

    if not candidates:
        return []
    deployments = [deployment_of(asked, one.terms) for one, _ in candidates]
    pools = [one.pool / one.terms.decoding for one, _ in candidates]
    rows = [(one, load_of(asked, one, pool, 1), None) for one, pool in zip(deployments, pools, strict=True)]
    both = predict_many([*rows, *(decoding(place, servers) for place, (_, servers) in enumerate(candidates))])
    kept: list[tuple[int, int, int, float]] = []
    for place, (holding, servers) in enumerate(candidates):
        first, later = both[place].figures.get("ttft"), both[len(candidates) + place].figures.get("tpot")
        if first is None or later is None:
            continue
        further = (asked.output_tokens - 1) * later.value / max(users / servers, 1.0)
        prefill = min(max(round(servers * first.value / (first.value + further)), 1), servers - 1)
        held = holding.held_low / holding.terms.decoding * (servers - prefill)
        # the servers that decode must hold them
        if held * asked.user_tokens / asked.request_tokens >= users:
            kept.append((place, prefill, servers - prefill, first.value))
    times = predict_many([decoding(place, decode) for place, _, decode, _ in kept]) if kept else []
    return [
        Split(candidates[place][0], prefill, decode, prompt + (asked.output_tokens - 1) * one.figures["tpot"].value)
        for (place, prefill, decode, prompt), one in zip(kept, times, strict=True)
    ]


_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}
#: most machines that are looked at when more accelerators are needed, or fewer
_TRIALS = 10
#: smallest gain that is worth another layout [-]
_LEAST = 0.05


def changes_of(solution: Solution, *, engines: bool = False) -> tuple[Looked, ...]:
    """Compute what would change the answer.

    - `engines`: Whether other engines are looked at too; they are where the plan does not fit, or rests on no run of
      its own part and model.
    - Returns: Changes in the order of their use: nearest first; each once.
    """
    asked, first = solution.asked, solution.ranked[0]
    verdict = verdict_of(asked, first)
    if first.holding.terms.blocked is not None:
        return _once((*_other_checkpoints(solution), *_engines(solution)))
    found: list[Looked] = [*_shorter(solution), *_roomier(solution, verdict)]
    for make in (_cache, _kernels, _drafting, _other_layouts, _apart):
        found += list(make(solution))
    if verdict == "fits":
        found += _fewer(solution)
    found += _more(solution, verdict)
    found += _smaller_checkpoints(solution, verdict)
    found += _relatives(solution, verdict)
    if engines or verdict != "fits" or (first.alone and first.knowledge not in _MEASURED):
        found += _engines(solution)
    return _once(found)


#: classes in which the model was measured on the part
_MEASURED = ("site", "configuration", "release", "group", "group_release")


def _once(found: Iterable[Looked]) -> tuple[Looked, ...]:
    """Changes of which no two ask for the same."""
    seen: dict[str, Looked] = {}
    for one in found:
        seen.setdefault(one.change.ask or one.change.what, one)
    return tuple(seen.values())


def _engines(solution: Solution) -> Iterator[Looked]:
    """Other engines: those that read the same files, and those with files of their own in the catalogue."""
    asked, kept = solution.asked, solution.asked.checkpoint
    mine = load_engine(asked.engine).running
    free = all(getattr(asked, name) is None for name in ("kv", "dcp")) and not asked.settings.attention_backend
    for engine in sorted(engine_names(), key=lambda name: (name != DEFAULT_ENGINE, name)):
        running = load_engine(engine).running
        if engine == asked.engine or running is None or load_memory_rule(engine).host_experts or not free:
            continue
        common = kept.form in ("safetensors", "gguf")
        same_files = mine is not None and mine.reads == running.reads and common
        weights = kept if same_files else _own_files(asked, engine)
        if weights is None:
            continue
        other = tried(asked.but(engine=engine, engine_version=None, checkpoint=weights))
        if other is None or other.best.terms.blocked is not None:
            continue
        words = f"--engine {engine}" + f" --weights {weights.name}" * (weights.name != kept.name)
        files = "" if same_files else f" with {weights.name}"
        yield looked_at("engine", f"{engine} instead of {asked.engine}{files}", words, other)


def _own_files(asked: Asked, engine: str) -> Checkpoint | None:
    """A checkpoint in files of an engine's own: the largest that is no larger than the plan's, else the least."""
    running, part = load_engine(engine).running, asked.machine.accelerator
    if running is None or (running.reads == _APPLE_FILES) != (part.vendor == "Apple"):
        return None
    fits = [one for one in asked.model.checkpoints if one.form == running.reads]
    smaller = [one for one in fits if _bits(one) <= _bits(asked.checkpoint) + 0.1]
    return max(smaller, key=_bits) if smaller else min(fits, key=_bits, default=None)


#: files of the engine that runs on Apple silicon alone, which are called as it is
_APPLE_FILES = MLX_ENGINE


def _other_checkpoints(solution: Solution) -> Iterator[Looked]:
    """Another checkpoint in the same files, where the engine does not run the one asked for: the nearest in size."""
    asked = solution.asked
    others = [one for one in asked.model.checkpoints if one.name != asked.checkpoint.name]
    # a file of the same format from somebody else would not run either
    same = [one for one in others if one.form == asked.checkpoint.form and _bits(one) != _bits(asked.checkpoint)]
    for one in sorted(same, key=lambda one: abs(_bits(one) - _bits(asked.checkpoint)))[:4]:
        other = tried(asked.but(checkpoint=one), solution.options)
        if other is not None and other.best.terms.blocked is None and other.best.verdict != "does_not_fit":
            yield looked_at("checkpoint", f"{asked.model.name} {one.name}", f"--weights {one.name}", other)
            return


def _shorter(solution: Solution) -> Iterator[Looked]:
    """A shorter context: the longest that is sure where the asked one is not, else half of it."""
    asked, best = solution.asked, solution.best
    if best.verdict == "fits":
        length = (asked.context or 0) // 2 // 1024 * 1024
    else:
        longest = max((one.holding.context_low for one in solution.ranked[:8]), default=0.0)
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
    """The largest share of the memory that published launches give the engine, where its default does not do."""
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
    """A build with sparse kernels, where a wall makes the model attend densely."""
    walls = [wall for wall in solution.best.terms.walls if wall.instead.attention == "dense"]
    options = {option for wall in walls for option in wall.when.unless if option.endswith("sparse-mla")}
    if not options or solution.best.verdict == "does_not_fit":
        return
    other = tried(solution.asked, frozenset(options))
    if other is not None:
        note = walls[0].fixed_by or ""
        yield looked_at("kernels", "a community build with sparse attention kernels", "", other, note)


def _drafting(solution: Solution) -> Iterator[Looked]:
    asked = solution.asked
    if asked.model.mtp is None or asked.mtp or not asked.checkpoint.includes_mtp or experts_on_host(asked):
        return
    if solution.best.verdict == "does_not_fit":
        return
    other = tried(asked.but(mtp=3), solution.options, sole=False)
    if other is None:
        return
    drafting = next((n for n, one in enumerate(other.ranked[:6]) if one.holding.terms.mtp), None)
    if drafting is None or other.ranked[drafting].holding.verdict == "does_not_fit":
        refused = next((wall for wall in other.best.terms.walls if wall.instead.mtp == 0), None)
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
    """The layout that holds all users, where the chosen one does not; the one fastest for one user, and for many."""
    asked = solution.asked
    staged = needless_stages(asked, [one.holding for one in solution.ranked])
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
    for place in dict.fromkeys(wanted):
        one, terms = ranked[place], ranked[place].holding.terms
        more = max(one.alone / max(ranked[0].alone, 1e-9), one.many / max(ranked[0].many, 1e-9))
        # a layout that is not needed for its cache must be worth its words
        if (place != wanted[0] or len(wanted) < 3) and more < 1.0 + _LEAST:
            continue
        yield looked_at("layout", f"{terms.name} instead", degrees_words(asked, terms), solution, place=place)


def _apart(solution: Solution) -> Iterator[Looked]:
    """Servers for prompts alone, where the users of the answer may have their answers sooner."""
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
    """Write the options that ask for a layout.

    Returns: The options; empty for a part of a machine that was named.
    """
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
    """The smallest number of accelerators that holds what was asked."""
    asked, used = solution.asked, solution.best.terms.accelerators
    if experts_on_host(asked) or any(getattr(asked, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")):
        return
    need = asked.users[-1] if asked.users_given else 0
    servers = [
        one.holding.terms.server
        for one in solution.ranked
        if one.holding.verdict == "fits" and one.alone and one.holding.held_low >= need * one.holding.terms.replicas
    ]
    least = min(servers, default=used)
    # of many accelerators not every number was looked at: those below the least that was
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


def _more(solution: Solution, verdict: str) -> Iterator[Looked]:
    """One accelerator more, and the smallest number that fits."""
    asked = solution.asked
    if experts_on_host(asked):
        return  # the host stays what it is
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
            # with degrees typed too, they would have to go: no words to add say that
            yield looked_at("accelerators", f"{number} × {name}", f"--on {machine.text}" * (not degrees), other)
        if after == "fits":
            return


def _bits(checkpoint: Checkpoint) -> float:
    from glmplan.catalog.formats import weight_format

    if checkpoint.file_bits_per_weight is not None:
        return checkpoint.file_bits_per_weight
    return weight_format(checkpoint.formats.get("routed_experts") or checkpoint.default).bits


def _smaller_checkpoints(solution: Solution, verdict: str) -> Iterator[Looked]:
    """The largest smaller checkpoint of the same model that fits, or that is faster where the one asked for fits."""
    asked = solution.asked
    mine = _bits(asked.checkpoint)
    # of files that the engine reads as they are: where plain ones were asked for, its own form
    running, plain = load_engine(asked.engine).running, asked.checkpoint.form
    form = running.reads if running is not None and plain == "safetensors" else plain
    smaller = [one for one in asked.model.checkpoints if _bits(one) < 0.97 * mine and one.form == form]
    for one in sorted(smaller, key=_bits, reverse=True)[: 1 if verdict == "fits" else 4]:
        other = tried(asked.but(checkpoint=one), solution.options)
        if other is None or other.best.terms.blocked is not None:
            continue
        after = _CLASS[verdict_of(other.asked, other.ranked[0])]
        if after < _CLASS[verdict] or after == _CLASS["fits"] == _CLASS[verdict]:
            yield looked_at("checkpoint", f"{asked.model.name} {one.name}", f"--weights {one.name}", other)
            return


def _relatives(solution: Solution, verdict: str) -> Iterator[Looked]:
    """The largest pruned version of the same model in the catalogue that fits."""
    asked = solution.asked
    names = [name for name in model_names() if name.startswith(f"{asked.model.name}-reap")]
    for name in sorted(names, key=_experts_kept, reverse=True):
        model = load_model(name)
        try:
            checkpoint = checkpoint_for(model, asked.checkpoint.name, engine=asked.engine)
        except GlmplanError:
            checkpoint = checkpoint_for(model, engine=asked.engine)
        if _bits(checkpoint) > _bits(asked.checkpoint) + 0.1:
            continue
        other = tried(asked.but(model=model, checkpoint=checkpoint), solution.options)
        if other is not None and _CLASS[verdict_of(other.asked, other.ranked[0])] <= min(_CLASS[verdict], 1):
            what = f"{name} {checkpoint.name} (pruned: fewer experts, different quality)"
            yield looked_at("model", what, f"{name}-{checkpoint.name}", other)
            return


def _experts_kept(name: str) -> int:
    last = name.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0


# A plan under named traffic, and what would change it: each change is planned and simulated as the plan is.
#
# Another layout is no change: the plan is the layout that serves the traffic best.

#: preemptions for each request from which fewer requests at once are looked at [-]
_THRASH = 0.01
#: share of the cache in use from which it is short [-]
_SHORT = 0.5
#: changes that are listed [-]
_LISTED = 5
#: how many times larger a cache stands for "a larger pool" [-]
_LARGER = 2.0


def gain_under(plan: TrafficRun, change: TrafficRun) -> Ratio:
    """How much better traffic is served with a change.

    Returns: Share by which a whole answer comes sooner in the mean; below zero where it comes later.
    """
    if change.rejected > plan.rejected or change.left > plan.left or not change.e2e.value:
        return -1.0
    return plan.e2e.value / change.e2e.value - 1.0


def runs_under(solution: Solution, traffic: Traffic) -> tuple[TrafficRun, ...]:
    """Simulate a plan under traffic, then everything that may serve it better.

    Returns: The plan, then the changes that gain `LEAST_GAIN` at least, those on evidence as good before the others
      and of each the largest gain first; empty where nothing can be simulated.
    """
    asked = solution.asked
    try:
        plan = traffic_run(asked, solution.ranked[0], traffic)
    except GlmplanError:
        return ()
    found = [one for one in _changed(solution, traffic, plan) if gain_under(plan, one) >= LEAST_GAIN]
    if plan.full > _SHORT and not asked.host_tokens and decides_plan(traffic):
        plan = replace(plan, no_copies=why_no_copies(asked, solution.best))
    # on evidence as good as the plan's before those on less
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
        seats = max(int(best.held * asked.user_tokens / asked.request_tokens / ranks), 1)
        told = seats * terms.dp if asked.defaults.divided else seats
        yield traffic_run(
            asked.but(settings=replace(asked.settings, max_num_seqs=told)), solution.ranked[0], traffic, ends=False,
            what=f"max_num_seqs {seats} per rank", ask=f"--max-num-seqs {told}",
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
        return  # twice the cards may be two machines with other links between them
    try:
        machine = asked.machine.with_count(2 * asked.machine.count)
    except GlmplanError:
        return
    other = _solved(solution, traffic, machine=machine, tp=None, pp=None, dp=None, ep=None, replicas=None)
    if other is not None:
        name = f"{machine.count} × {machine.accelerator.name}"
        yield traffic_run(other.asked, other.ranked[0], traffic, ends=False, what=name, ask=f"--on {machine.text}")


def _with_copies(solution: Solution, traffic: Traffic) -> Iterator[TrafficRun]:
    """The plan with copies of its cache in host memory; where its engine keeps none, that of an engine that does."""
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
    """Whether an engine reads the same files and keeps copies in host memory."""
    mine, other = load_engine(asked.engine).running, load_engine(engine).running
    return mine is not None and other is not None and other.reads == mine.reads and other.host_cache is not None


def _apart_traffic_changes(solution: Solution, traffic: Traffic, plan: TrafficRun) -> Iterator[TrafficRun]:
    """The best of the numbers of servers for prompts alone, of as many requests at once as the plan has (Little)."""
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
