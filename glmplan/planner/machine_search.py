"""Machines on which a plan that does not fit would."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from glmplan.catalog.engines.limitations import engines_on
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.models import model_names
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import GlmplanError
from glmplan.planner.changes import Looked, changes_of, looked_at, tried, verdict_of
from glmplan.planner.formats import FEW_BITS, best_format, bits_of, format_open
from glmplan.planner.question import DEGREES, MLX_ENGINE, Asked, read_words

if TYPE_CHECKING:
    from glmplan.planner.users import Solution
    from glmplan.request.plan import PlanRequest

__all__ = ["changes_or_machines"]


def changes_or_machines(solution: Solution, *, engines: bool = False) -> tuple[Looked, ...]:
    """Return the changes of a plan, and machines if none makes it fit.

    `engines`: As for `changes_of`.
    """
    found = changes_of(solution, engines=engines)
    fits = [one for one in found if one.change.verdict != "does_not_fit"]
    if _starts(solution) or any(
        one.change.name != "accelerators" or one.asked.machine.count <= _COUNTS[-1] for one in fits
    ):
        return (*_usual_file(solution), *found)
    known = {one.change.ask or one.change.what: one for one in (*_usual_file(solution), *found)}
    for one in _elsewhere(solution):
        known.setdefault(one.change.ask or one.change.what, one)
    return tuple(known.values())


#: machines that are tried for a question [-]
_MOST_TRIALS = 10
#: GPUs of a server, servers of a machine, and GPUs above which a server is a rack, in a search for a machine [-]
_COUNTS, _NODES, _RACK = (1, 2, 4, 8), (2, 4), 16
#: memory of the next machine over that of one which is too small [-]
_STEP = 1.1
#: options that name a layout
_OF_THE_LAYOUT = (*DEGREES, "disaggregated")
#: format of GGUF files that is tried where the catalogue lists none
_FILE = "q4_k_m"
#: options that describe a machine
_OF_THE_MACHINE = ("part", "host_memory", "host_memory_bandwidth", "host_cores")


def _usual_file(solution: Solution) -> Iterator[Looked]:
    """Return the usual GGUF file if it is not listed and no listed one starts."""
    asked = solution.asked
    words = asked.request.but(engine=None, engine_version=None, **dict.fromkeys(_OF_THE_LAYOUT))
    if _starts(solution) or not format_open(words) or asked.model.checkpoint(_FILE) is not None:
        return
    try:
        file = tried(_same_load(asked, words.but(weights=_FILE)), solution.options)
    except GlmplanError:
        return
    if file is not None and _starts(file):
        yield _moved(solution, file)


def _elsewhere(solution: Solution) -> Iterator[Looked]:
    """Return the best format of the machine, else the smallest machine.

    Engine and format of the question are kept where a machine runs them; else the usual ones of the machine are taken.
    Without a format in the question the smallest machine of the smallest usual format is a second one.
    """
    asked = solution.asked
    words = asked.request.but(**dict.fromkeys(_OF_THE_LAYOUT))
    usual = words.but(engine=None, engine_version=None)
    free = usual.but(model=asked.model.name, weights=None) if asked.model.name in model_names() else usual
    if free != words:
        try:
            best = best_format(free, lambda one: _same_load(asked, one))
        except GlmplanError:
            best = asked
        if best.checkpoint != asked.checkpoint or best.engine != asked.engine:
            other = tried(best, solution.options)
            if other is not None and _starts(other):
                yield _moved(solution, other)
                return
    for question in dict.fromkeys((words, usual, free)):
        if (found := _smallest(solution, question)) is not None:
            yield _moved(solution, found)
            break
    smaller = [one for one in asked.model.checkpoints if one.form == "safetensors" and bits_of(one) >= FEW_BITS]
    if smaller and format_open(words):
        least = min(smaller, key=bits_of)
        if (found := _smallest(solution, usual.but(weights=least.name))) is not None:
            yield _moved(solution, found)


def _same_load(asked: Asked, words: PlanRequest) -> Asked:
    """Return a request with the lengths of another one."""
    lengths = ("input_tokens", "output_tokens", "cached_tokens", "lengths_given")
    return read_words(words).but(**{name: getattr(asked, name) for name in lengths})


def _starts(other: Solution) -> bool:
    """Return True if the best layout runs and holds a request."""
    return other.best.terms.blocked is None and other.best.verdict != "does_not_fit"


def _smallest(solution: Solution, words: PlanRequest) -> Solution | None:
    """Return the plan of a request on the smallest machine that fits.

    On the smallest one on which it is tight if it fits none. At most `_MOST_TRIALS` machines are tried.
    """
    least, trials = 0.0, 0
    tight: Solution | None = None
    for memory, name, vendor, kind in _by_memory():
        if memory < least or trials == _MOST_TRIALS:
            continue
        if words.engine is not None and solution.asked.engine not in engines_on(vendor=vendor, kind=kind):
            continue
        if vendor == "Apple" and solution.asked.engine != MLX_ENGINE:
            continue  # another kind of machine
        try:
            asked = _same_load(solution.asked, words.but(on=name, **dict.fromkeys(_OF_THE_MACHINE)))
        except GlmplanError:
            continue
        if memory < checkpoint_bytes(asked.model, asked.checkpoint):
            continue
        trials += 1
        other = tried(asked, solution.options)
        if other is None or other.best.terms.blocked is not None:
            continue
        verdict = verdict_of(other.asked, other.ranked[0])
        if verdict == "fits":
            return other
        tight = tight or (other if verdict == "tight" else None)
        least = _STEP * memory
    return tight


@cache
def _by_memory() -> tuple[tuple[float, str, str, str], ...]:
    """Return memory, name, vendor and kind of machines, the smallest first.

    Up to eight GPUs of published matrix rates, two and four servers of eight on a fabric, whole racks, and systems on a
    chip.
    """
    hosts = [load_host(name) for name in host_names()]
    boards = [one for one in hosts if one.scale_up is not None and one.accelerators_per_node == _COUNTS[-1]]
    servers = {one.accelerator for one in boards}
    found = []
    for part in map(load_accelerator, accelerator_names()):
        if not part.memory or part.kind not in ("gpu", "soc") or not (part.peak or part.rated or part.kind == "soc"):
            continue
        counts: tuple[int, ...] = _COUNTS if part.kind == "gpu" else _COUNTS[:1]
        counts += tuple(nodes * _COUNTS[-1] for nodes in _NODES if part.name in servers)
        sizes = {one.name: one.nodes * one.accelerators_per_node for one in hosts if one.accelerator == part.name}
        racks = {name: count for name, count in sizes.items() if count > _RACK}
        machines = racks or {f"{count}x{part.name}": count for count in counts}
        found += [(part.memory * count, name, part.vendor, part.kind) for name, count in machines.items()]
    return tuple(sorted(found))


def _moved(solution: Solution, other: Solution) -> Looked:
    """Return a plan with another machine, engine or format as a change."""
    before, asked = solution.asked, other.asked
    machine, moved = asked.machine, asked.machine.text != before.machine.text
    what = [machine.text if machine.named else f"{machine.count} × {machine.accelerator.name}"] * moved
    ask = [f"--on {machine.text}"] * moved
    if asked.engine != before.engine:
        what.append(asked.engine)
        ask += [f"--engine {asked.engine}"] * (before.request.engine is not None)
    if asked.checkpoint.name != before.checkpoint.name:
        what.append(asked.checkpoint.name)
        ask.append(f"--weights {asked.checkpoint.name}")
    typed = any(getattr(before.request, name) for name in (*_OF_THE_LAYOUT, *_OF_THE_MACHINE))
    return looked_at("machine", ", ".join(what), "" if typed else " ".join(ask), other)
