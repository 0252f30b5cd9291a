"""Choose the weight format of a request that names none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.formats import weight_format
from glmplan.catalog.schema.model import Checkpoint
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import GlmplanError
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.capacity import Holding
from glmplan.planner.question import MLX_ENGINE, Asked
from glmplan.planner.ranking import Scored, prompts_timed
from glmplan.planner.users import chance_within, solve
from glmplan.prediction.deployment import keeps_experts_on_host
from glmplan.prediction.step_models import site_calibration
from glmplan.request.plan import PlanRequest
from glmplan.units import Ratio

__all__ = [
    "FEW_BITS",
    "Met",
    "best_format",
    "bits_of",
    "format_known",
    "format_open",
    "layout_met",
    "meets",
    "question_met",
]

#: formats that are planned for each kind of files, those of highest precision that the memory holds [-]
_TRIED = 4
#: bits of a weight below which the quality of a format is pointed out [-]
FEW_BITS = 4.0


@dataclass(frozen=True, slots=True, order=True)
class Met:
    """How well a plan meets its question."""

    fits: bool  # True if the engine starts with one full-length request
    known: bool  # False if no source says that the engine loads this format on the part
    #: probability that the users of the question, else one user, meet the SLO of `fit`, of its bound on decode alone
    #: where prompts have no time; 0 if no speed is known, [-]
    probability: Ratio
    #: limitation with which the engine does not start; empty without one
    stopped_by: str = field(default="", compare=False)


def bits_of(checkpoint: Checkpoint) -> float:
    """Return the bits of a weight of most tensors of a checkpoint, [-]"""
    if checkpoint.file_bits_per_weight is not None:
        return checkpoint.file_bits_per_weight
    return weight_format(checkpoint.formats.get("routed_experts") or checkpoint.default).bits


def question_met(asked: Asked) -> Met:
    """Return how well the best layout of a request meets its question."""
    with site_calibration(asked.calibration):
        solution = solve(asked, quick=True, sole=True)
        if solution.best.lacking > 0 and asked.machine.host.host_memory_bandwidth is not None:
            from glmplan.planner.moved_search import with_moved_experts

            solution = with_moved_experts(solution)
        return layout_met(solution.asked, solution.ranked[0])


def format_known(holding: Holding) -> bool:
    """Return True unless no source tells how the engine runs these weights."""
    return not any(wall.severity == "unknown" and wall.when.weights for wall in holding.terms.limitations)


def layout_met(asked: Asked, scored: Scored) -> Met:
    """Return how well a layout meets the question of a request."""
    holding = scored.holding
    if holding.terms.blocked is not None:
        return Met(False, True, 0.0, holding.terms.blocked.title)
    if holding.verdict == "does_not_fit":
        return Met(False, True, 0.0)
    known = format_known(holding)
    if not scored.alone or asked.prefill:
        return Met(True, known, 0.0)
    users = asked.users[-1] if asked.users_given else 1
    chance = chance_within(asked, holding, users)
    # stated limits let requests wait for the pool, which is simulated
    if asked.slo_limits and chance < asked.probability:
        from glmplan.planner.slo_layouts import safe_under_limits

        chance = safe_under_limits(asked, holding)[0].chance_of(users)
    return Met(True, known, chance)


def meets(asked: Asked, met: Met) -> bool:
    """Return True if the default format stays.

    It is known to load and meets the question, or fits and has no known speed.
    """
    return met.fits and met.known and (met.probability >= asked.probability or not met.probability)


def best_format(words: PlanRequest, read: Callable[[PlanRequest], Asked]) -> Asked:
    """Return a request with the best format of its model if it names none.

    `read`: Reads and completes a request.

    Notes
    -----
    The default checkpoint of the model stays if its plan meets the question at the asked probability. Else the format
    of highest precision that does is taken, first among files that the usual engine of the machine reads, then among
    GGUF files; without one that does, the one with the highest probability. A format that was typed is never changed,
    nor the default on a part of unpublished memory.

    Examples
    --------
    >>> from glmplan.planner.question import read_words
    >>> best_format(PlanRequest("glm-5.1", "8xh200-sxm"), read_words).checkpoint.name
    'fp8'
    """
    asked = read(words)
    if not format_open(words) or not asked.model.checkpoints:
        return asked
    if asked.machine.accelerator.memory is None:  # no format is known to fit
        return asked
    first = question_met(asked)
    if meets(asked, first):
        return asked
    found = [(first, 0.0, asked)]
    for files in _files(words, asked):
        for checkpoint in files:
            try:
                other = read(words.but(weights=checkpoint.name))
                met = question_met(other)
            except GlmplanError:
                continue
            found.append((met, bits_of(checkpoint), other))
            if met.fits and met.known and met.probability >= asked.probability:
                part = "that meets" if prompts_timed(other) else "whose decoding meets"
                return _named(other, asked, f"the highest precision {part} the question", first.stopped_by)
    best = max(found, key=lambda one: (one[0], one[1]))
    if best[2] is asked or best[0] <= first:
        return asked
    why = "the format that meets the question with the highest probability"
    return _named(best[2], asked, why if best[0].probability else "the highest precision that fits", first.stopped_by)


def format_open(words: PlanRequest) -> bool:
    """Return True if a request names no weight format.

    Examples
    --------
    >>> format_open(PlanRequest("glm-5.1", "8xh200-sxm")), format_open(PlanRequest("glm-5.1-fp8", "8xh200-sxm"))
    (True, False)
    """
    choice = resolve_model(words.model)
    return not words.weights and not choice.stated and choice.exact_bytes is None


def _named(asked: Asked, before: Asked, why: str, stopped_by: str) -> Asked:
    """Return a request with the reason for its format.

    `stopped_by`: limitation with which the engine of the default format does not start.
    """
    bits = bits_of(asked.checkpoint)
    quality = f"; {bits:.2g} bits for each weight, whose losses are not modelled" if bits < FEW_BITS else ""
    cause = f", with which {before.engine} does not start: {stopped_by}" if stopped_by else ""
    note = f"weights {asked.checkpoint.name}: {why}, after {before.checkpoint.name}{cause}{quality}"
    return asked.but(assumed=(note, *asked.assumed))


def _files(words: PlanRequest, asked: Asked) -> Iterator[list[Checkpoint]]:
    """Yield formats up to the default precision, those of llama.cpp last."""
    part, host = asked.machine.accelerator, asked.machine.host
    memory = math.inf if part.memory is None else part.memory * asked.machine.count
    # layers of a GGUF file are dealt to accelerators of all kinds
    dealt = sum((load_accelerator(name).memory or 0.0) * count for name, count in asked.machine.kinds) or memory
    beside = 0.0 if host.unified_memory or host.host_memory_bandwidth is None else host.host_memory or 0.0
    running = load_engine(asked.engine).running
    forms = [running.reads] if running is not None else []
    forms += [one for one in ("gguf",) if words.engine is None and one not in forms]
    apart = host.host_memory if keeps_experts_on_host(asked.engine) else None
    limits = [(form, 0.0, (dealt if form == "gguf" else memory) + (apart or 0.0)) for form in forms]
    # llama.cpp computes weights that host memory holds, more slowly than smaller files on accelerators
    limits += [(form, dealt, dealt + beside) for form in forms if form == "gguf" and beside]
    for form, least, most in limits:
        if form == MLX_ENGINE and part.vendor != "Apple":
            continue
        smaller = [
            one
            for one in asked.model.checkpoints
            if one.form == form
            and one.name != asked.checkpoint.name
            and bits_of(one) <= bits_of(asked.checkpoint) + 0.1
            and least <= checkpoint_bytes(asked.model, one) <= most
        ]
        yield sorted(smaller, key=bits_of, reverse=True)[:_TRIED]
