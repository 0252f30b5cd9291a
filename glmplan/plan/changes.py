"""What would change the answer: each change is computed with the same search, and given with its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.models import load_model, model_names
from glmplan.facts.engines.memory import load_memory_rule
from glmplan.facts.engines.walls import engine_names, load_engine
from glmplan.facts.formats import kv_format
from glmplan.facts.schema.model import Checkpoint
from glmplan.plan.engine_limits import Terms
from glmplan.plan.offloaded import experts_on_host
from glmplan.plan.plan import Change
from glmplan.plan.question import DEFAULT_ENGINE, Asked
from glmplan.plan.ranking import Scored
from glmplan.plan.search import Solution, solve
from glmplan.plan.simulated import shown_rate
from glmplan.readers.models.checkpoints import checkpoint_for

__all__ = ["changes_of", "degrees_words", "verdict_of"]

_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}
#: most machines that are looked at when more accelerators are needed
_TRIALS = 8


def verdict_of(asked: Asked, first: Scored) -> str:
    """Verdict of a plan: one full-length request, and every user if a number of users was asked for.

    Parameters
    ----------
    asked : Asked
        The question.
    first : Scored
        The chosen layout.

    Returns
    -------
    str
        ``fits``, ``tight`` or ``does_not_fit``.
    """
    holding = first.holding
    if holding.terms.blocked is not None:
        return "does_not_fit"
    if holding.verdict == "fits" and asked.users_given and holding.held_low < asked.users[-1]:
        return "tight"
    return holding.verdict


def changes_of(solution: Solution) -> tuple[Change, ...]:
    """Compute what would change the answer.

    Parameters
    ----------
    solution : Solution
        The plan as asked.

    Returns
    -------
    tuple of Change
        Changes in the order of their use: nearest first.
    """
    asked, first = solution.asked, solution.ranked[0]
    verdict = verdict_of(asked, first)
    found: list[Change] = []
    if first.holding.terms.blocked is not None:
        return tuple(_engines(solution))
    found += _shorter(solution)
    for make in (_cache, _kernels, _drafting, _other_layout):
        found += list(make(solution))
    if verdict == "fits":
        found += _fewer(solution)
    found += _more(solution, verdict)
    found += _smaller_checkpoints(solution, verdict)
    found += _relatives(solution, verdict)
    return tuple(found)


def _change(name: str, what: str, ask: str, solution: Solution, note: str = "", place: int = 0) -> Change:
    one = solution.ranked[place]
    holding = one.holding
    return Change(
        name=name,
        what=what,
        verdict=verdict_of(solution.asked, one),
        layout=holding.terms.name,
        pool_tokens=holding.pool,
        pool_low=holding.pool_low,
        held=holding.held_low,
        user_rate=one.alone,
        total_rate=shown_rate(solution.asked, one),
        note=note,
        ask=ask,
        knowledge=one.knowledge,
    )


def _try(asked: Asked, options: frozenset[str] = frozenset()) -> Solution | None:
    try:
        found = solve(asked, options=options, quick=True)
    except GlmplanError:
        return None
    if found.best.verdict != "does_not_fit" and found.ranked[0].alone == 0.0 and found.speed_known:
        return None  # its network is not known
    return found


def _engines(solution: Solution) -> Iterator[Change]:
    """Another engine, where the one asked for does not run the model on the part."""
    asked = solution.asked
    mine = load_engine(asked.engine).running
    for engine in sorted(engine_names(), key=lambda name: (name != DEFAULT_ENGINE, name)):
        running = load_engine(engine).running
        same_files = mine is not None and running is not None and mine.reads == running.reads
        if engine == asked.engine or not same_files or load_memory_rule(engine).host_experts:
            continue
        other = _try(asked.but(engine=engine, engine_version=None))
        if other is not None and other.best.terms.blocked is None:
            yield _change("engine", f"{engine} instead of {asked.engine}", f"--engine {engine}", other)


def _shorter(solution: Solution) -> Iterator[Change]:
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
    other = _try(asked.but(context=length, input_tokens=inputs), solution.options)
    if other is not None:
        held = f"such requests that fit at once: {other.best.held_low:,.0f} instead of {best.held_low:,.0f}"
        words = f"--context {length}"
        if asked.lengths_given and inputs != asked.input_tokens:
            words += f" --input {inputs}"
        yield _change("context", f"context {length:,} instead of {asked.full_request:,}", words, other, held)


def _cache(solution: Solution) -> Iterator[Change]:
    asked, kv = solution.asked, solution.best.terms.kv
    engine = load_engine(asked.engine)
    wide = engine.default_cache
    wanted = wide if kv_format(kv).bytes < kv_format(wide).bytes else engine.small_cache(asked.machine.accelerator)
    if not wanted:
        return
    other = _try(asked.but(kv=wanted), solution.options)
    if other is None or other.best.verdict == "does_not_fit" == solution.best.verdict:
        return
    if other.best.terms.kv != wanted:
        return
    yield _change("kv", f"{wanted.upper()} cache instead of {kv.upper()}", f"--kv {wanted}", other)


def _kernels(solution: Solution) -> Iterator[Change]:
    """A build with sparse kernels, where a wall makes the model attend densely."""
    walls = [wall for wall in solution.best.terms.walls if wall.instead.attention == "dense"]
    options = {option for wall in walls for option in wall.when.unless if option.endswith("sparse-mla")}
    if not options or solution.best.verdict == "does_not_fit":
        return
    other = _try(solution.asked, frozenset(options))
    if other is not None:
        note = walls[0].fixed_by or ""
        yield _change("kernels", "a community build with sparse attention kernels", "", other, note)


def _drafting(solution: Solution) -> Iterator[Change]:
    asked = solution.asked
    if asked.model.mtp is None or asked.mtp or not asked.checkpoint.includes_mtp or experts_on_host(asked):
        return
    if solution.best.verdict == "does_not_fit":
        return
    other = _try(asked.but(mtp=3), solution.options)
    if other is None:
        return
    drafting = next((n for n, one in enumerate(other.ranked[:6]) if one.holding.terms.mtp), None)
    if drafting is None or other.ranked[drafting].holding.verdict == "does_not_fit":
        refused = next((wall for wall in other.best.terms.walls if wall.instead.mtp == 0), None)
        note = f"refused: {refused.title}" if refused else "no room for the draft layers"
        yield Change(
            "mtp", "3 drafted tokens (MTP)", "does_not_fit", other.best.terms.name, 0, 0, 0, 0, 0, note, "--mtp 3"
        )
        return
    yield _change("mtp", "3 drafted tokens (MTP)", "--mtp 3", other, "acceptance depends on the text", place=drafting)


def _other_layout(solution: Solution) -> Iterator[Change]:
    """The layout with the largest pool, where the pool is what is short."""
    asked = solution.asked
    if not asked.users_given or solution.best.held_low >= asked.users[-1]:
        return
    places = [n for n, one in enumerate(solution.ranked) if n and one.holding.verdict != "does_not_fit" and one.alone]
    enough = [n for n in places if solution.ranked[n].holding.held_low >= asked.users[-1]]
    if enough or places:
        place = enough[0] if enough else max(places, key=lambda n: solution.ranked[n].holding.held_low)
        terms = solution.ranked[place].holding.terms
        yield _change("layout", f"{terms.name} instead", degrees_words(asked, terms), solution, place=place)


def degrees_words(asked: Asked, terms: Terms) -> str:
    """The options that ask for a layout; empty for a part of a machine that was named."""
    machine = asked.machine
    words = [f"--on {terms.accelerators}x{machine.accelerator.name}"] * (terms.accelerators != machine.count)
    if words and machine.named:
        return ""
    degrees = {"ep": terms.ep, "dcp": terms.dcp, "replicas": terms.replicas}
    words += [f"--tp {terms.tp}", f"--pp {terms.pp}", f"--dp {terms.dp}"]
    return " ".join(words + [f"--{name} {degree}" for name, degree in degrees.items() if degree > 1])


def _fewer(solution: Solution) -> Iterator[Change]:
    used = solution.best.terms.accelerators
    places = [
        n for n, one in enumerate(solution.ranked)
        if verdict_of(solution.asked, one) == "fits" and one.alone and one.holding.terms.accelerators < used
    ]  # fmt: skip
    if not places:
        return
    place = min(places, key=lambda n: (solution.ranked[n].holding.terms.accelerators, n))
    terms = solution.ranked[place].holding.terms
    what = f"the fewest that hold it: {terms.accelerators}"
    yield _change("fewer", what, degrees_words(solution.asked, terms), solution, place=place)


def _more(solution: Solution, verdict: str) -> Iterator[Change]:
    """One accelerator more, and the smallest number that fits."""
    asked = solution.asked
    if experts_on_host(asked):
        return  # the host stays what it is
    degrees = any((asked.tp, asked.pp, asked.dp))
    if degrees:
        asked = asked.but(tp=None, pp=None, dp=None, ep=None)
    count = asked.machine.count
    trials = [count + 1] if verdict == "fits" else [count + 1, count + 2, count + 3, count + 4, 2 * count, 4 * count]
    for number in trials[:_TRIALS]:
        try:
            machine = asked.machine.with_count(number)
        except GlmplanError:
            continue
        other = _try(asked.but(machine=machine), solution.options)
        if other is None:
            continue
        after = verdict_of(other.asked, other.ranked[0])
        if number == count + 1 or _CLASS[after] < _CLASS[verdict]:
            if number == count + 1 and verdict != "fits" and _CLASS[after] >= _CLASS[verdict]:
                continue
            name = machine.accelerator.name
            # with degrees typed too, they would have to go: no words to add say that
            yield _change("accelerators", f"{number} × {name}", f"--on {number}x{name}" * (not degrees), other)
        if after == "fits":
            return


def _bits(checkpoint: Checkpoint) -> float:
    from glmplan.facts.formats import weight_format

    if checkpoint.file_bits_per_weight is not None:
        return checkpoint.file_bits_per_weight
    return weight_format(checkpoint.formats.get("routed_experts") or checkpoint.default).bits


def _smaller_checkpoints(solution: Solution, verdict: str) -> Iterator[Change]:
    """The largest checkpoint of the same model that fits, where the one asked for does not."""
    if verdict == "fits":
        return
    asked = solution.asked
    mine = _bits(asked.checkpoint)
    files = asked.checkpoint.file_bits_per_weight is not None
    smaller = [
        one
        for one in asked.model.checkpoints
        if _bits(one) < 0.97 * mine and (one.file_bits_per_weight is not None) == files
    ]
    for one in sorted(smaller, key=_bits, reverse=True)[:4]:
        other = _try(asked.but(checkpoint=one), solution.options)
        if other is not None and _CLASS[verdict_of(other.asked, other.ranked[0])] < _CLASS[verdict]:
            yield _change("checkpoint", f"{asked.model.name} {one.name}", f"--weights {one.name}", other)
            return


def _relatives(solution: Solution, verdict: str) -> Iterator[Change]:
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
        other = _try(asked.but(model=model, checkpoint=checkpoint), solution.options)
        if other is not None and _CLASS[verdict_of(other.asked, other.ranked[0])] <= min(_CLASS[verdict], 1):
            what = f"{name} {checkpoint.name} (pruned: fewer experts, other quality)"
            yield _change("model", what, f"{name}-{checkpoint.name}", other)
            return


def _experts_kept(name: str) -> int:
    last = name.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0
