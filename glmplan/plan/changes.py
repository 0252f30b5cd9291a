"""What would change the answer: each change is computed with the same search, and given with its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.models import load_model, model_names
from glmplan.facts.engines.memory import load_memory_rule
from glmplan.facts.engines.walls import engine_names, load_engine
from glmplan.facts.formats import kv_format
from glmplan.facts.schema.model import Checkpoint
from glmplan.physics.blocks.features import routed_blocks
from glmplan.plan.disaggregation_changes import splits_of
from glmplan.plan.engine_asked import DEFAULT_ENGINE, MLX_ENGINE
from glmplan.plan.engine_limits import Terms
from glmplan.plan.looked import Looked, looked_at, tried, verdict_of
from glmplan.plan.offloaded import experts_on_host
from glmplan.plan.plan import Change
from glmplan.plan.question import Asked
from glmplan.plan.ranking import needless_stages, shown_users
from glmplan.plan.search import Solution
from glmplan.plan.simulated import shown_rate, steady_rate
from glmplan.readers.models.checkpoints import checkpoint_for

__all__ = ["changes_of", "degrees_words"]

_CLASS = {"fits": 0, "tight": 1, "does_not_fit": 2}
#: most machines that are looked at when more accelerators are needed, or fewer
_TRIALS = 10
#: smallest gain that is worth another layout [-]
_LEAST = 0.05


def changes_of(solution: Solution, *, engines: bool = False) -> tuple[Looked, ...]:
    """Compute what would change the answer.

    Parameters
    ----------
    solution : Solution
        The plan as asked.
    engines : bool, optional
        Whether other engines are looked at too; they are where the plan does not fit, or rests on no run of its own
        part and model.

    Returns
    -------
    tuple of Looked
        Changes in the order of their use: nearest first; each once.
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
        held = f"such requests that fit at once: {other.best.held_low:,.0f} instead of {best.held_low:,.0f}"
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
        note, words = "nothing else may use these cards: as far as the engine's own recipes go", "--memory-fraction"
        yield looked_at("memory", f"{largest:.0%} of the memory for the engine", f"{words} {largest:g}", other, note)


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
        note = f"refused: {refused.title}" if refused else "no room for the draft layers"
        refusal = Change(
            "mtp", "3 drafted tokens (MTP)", "does_not_fit", other.best.terms.name, 0, 0, 0, 0, 0, note, "--mtp 3"
        )
        yield Looked(refusal, other.asked, None)
        return
    yield looked_at("mtp", "3 drafted tokens (MTP)", "--mtp 3", other, "acceptance depends on the text", place=drafting)


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

    Parameters
    ----------
    asked : Asked
        The question.
    terms : Terms
        The layout.

    Returns
    -------
    str
        The options; empty for a part of a machine that was named.
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
            yield looked_at("fewer", f"the fewest that hold it: {number}", f"--on {machine.text}", other)
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
    from glmplan.facts.formats import weight_format

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
            what = f"{name} {checkpoint.name} (pruned: fewer experts, other quality)"
            yield looked_at("model", what, f"{name}-{checkpoint.name}", other)
            return


def _experts_kept(name: str) -> int:
    last = name.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0
