"""Speed of plans whose routed experts are computed on the processors of the host."""

from __future__ import annotations

import numpy as np

from glmplan.facts.engines.memory import load_memory_rule, memory_engines
from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked
from glmplan.prediction.predict import Figure, Prediction

__all__ = ["experts_on_host", "hosted_predictions", "pinned_bytes"]

_BASIS = "offload model fitted to published hybrid runs"


def experts_on_host(asked: Asked) -> bool:
    """Whether the engine keeps routed experts in host memory.

    Parameters
    ----------
    asked : Asked
        The question.

    Returns
    -------
    bool
        As the engine's memory rule says.
    """
    return asked.engine in memory_engines() and load_memory_rule(asked.engine).host_experts


def pinned_bytes(holding: Holding) -> float:
    """Weights of a plan in host memory.

    Parameters
    ----------
    holding : Holding
        The layout.

    Returns
    -------
    float
        All ranks together, [B]
    """
    return sum(row.host for row in holding.rows())


def hosted_predictions(asked: Asked, holding: Holding, counts: tuple[int, ...]) -> list[Prediction]:
    """Predict numbers of users of a plan with experts on the host.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    counts : tuple of int
        Numbers of users, [-]

    Returns
    -------
    list of Prediction
        One for each number.

    Raises
    ------
    UnknownFact
        If the memory bandwidth of the host is not known.

    Notes
    -----
    The accelerators share the work evenly; requests beyond the pool wait for a place. Prompts are read one after the
    other in chunks of the engine, and decoding waits meanwhile.
    """
    from glmplan.physics.offload.host import host_side
    from glmplan.physics.offload.time import (
        Placement,
        host_seconds,
        load_offload_fit,
        offload_step_seconds,
        offload_work,
    )

    fit = load_offload_fit()
    machine, terms = asked.machine, holding.terms
    part, cards = machine.accelerator, terms.accelerators
    side = host_side(machine.host, min(cards, machine.host.accelerators_per_node))
    everywhere = Placement(1.0, "experts")
    held = max(holding.held * asked.user_tokens / asked.request_tokens, 1.0)
    most = min(held, asked.defaults.max_requests)
    running = np.minimum(np.array(counts, dtype=float), most)
    context = asked.input_tokens + asked.output_tokens / 2
    decode = offload_work(asked.model, asked.checkpoint, everywhere, tokens=running, sequences=running,
                          context=np.full(len(counts), context), kv=terms.kv)  # fmt: skip
    step = offload_step_seconds(decode, side, part, count=cards, fit=fit)
    host = host_seconds(decode, side, mode="cpu", prompt=False, fit=fit)
    sizes = _chunks(asked.input_tokens, asked.defaults.budget)
    keys = np.cumsum(sizes) - sizes / 2
    prompt = offload_work(asked.model, asked.checkpoint, everywhere, tokens=sizes, sequences=np.ones(len(sizes)),
                          context=keys, kv=terms.kv)  # fmt: skip
    reading = float(offload_step_seconds(prompt, side, part, count=cards, prompt=True, fit=fit).sum())
    decode_ends, prompt_ends = fit.intervals["decode"], fit.intervals["prefill"]
    found = []
    for users, active, seconds, share in zip(counts, running, step, host / step, strict=True):
        # while a request decodes, each of the others is read once
        tpot = seconds + (active - 1.0) * reading / max(asked.output_tokens, 1)
        alive = reading + asked.output_tokens * tpot
        waiting = max(users - active, 0.0) / active * alive
        ttft = waiting + reading * (1.0 + (active - 1.0) / 2.0 * (users > 1))
        rate = active * asked.output_tokens / alive
        figures = {
            "ttft": _time(ttft, prompt_ends),
            "tpot": _time(tpot, decode_ends),
            "output_rate": Figure(rate, rate * float(np.exp(decode_ends[0])), rate * float(np.exp(decode_ends[1]))),
        }
        shares = {"weights": 1.0 - float(share), "host": float(share)}
        found.append(Prediction(figures, shares, float(active), "engine", _BASIS, ""))
    return found


def _time(seconds: float, ends: tuple[float, float]) -> Figure:
    """A time with the interval of rates turned round."""
    return Figure(float(seconds), float(seconds * np.exp(-ends[1])), float(seconds * np.exp(-ends[0])))


def _chunks(tokens: int, budget: int) -> np.ndarray:
    whole = np.full(tokens // budget, float(budget))
    rest = tokens % budget
    return np.append(whole, float(rest)) if rest else whole
