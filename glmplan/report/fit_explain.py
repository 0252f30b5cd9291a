"""The arithmetic behind an answer of `glmplan fit`, step by step."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING

import numpy as np

from glmplan.physics.blocks.stack import model_parameters
from glmplan.physics.blocks.storage import checkpoint_bytes
from glmplan.physics.memory.pool import stage_pools
from glmplan.physics.points import StepPoints
from glmplan.physics.step.time import COMPONENTS, PARAMETERS, step_time
from glmplan.physics.step.work import SLOTS, step_work
from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked
from glmplan.plan.text import WIDTH, number
from glmplan.prediction.effects import keys_of, load_effects
from glmplan.prediction.step_models import runs_on_accelerators, step_model_of, step_parameters
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.plan.answer import FitAnswer
    from glmplan.prediction.deployment import Deployment

__all__ = ["fit_explanation"]

#: what a column of the work table is, for people
_SLOT_WORDS = {
    "host": "engine steps",
    "layer": "layers",
    "moe_layer": "layers with experts",
    "state_layer": "latent and recurrent layers",
    "request": "tokens of decoding requests, in each layer",
    "activation": "hidden states",
    "gemm_fixed": "dense products: start",
    "gemm_bytes": "dense products: weights read",
    "gemm_flop": "dense products: arithmetic",
    "expert_fixed": "experts: start",
    "expert_bytes": "experts: weights read",
    "expert_flop": "experts: arithmetic",
    "attention_fixed": "attention: start",
    "cache": "attention: cache read",
    "prefill_attention": "attention of prompts",
    "collective": "collectives: latency",
    "collective_bytes": "collectives: payload",
}


def fit_explanation(answer: FitAnswer) -> str:
    """Show the arithmetic: parameters, bytes on a rank, cache for a token, pool, step time by component.

    Parameters
    ----------
    answer : FitAnswer
        The answer.

    Returns
    -------
    str
        Lines of at most 100 columns.
    """
    asked = answer.asked
    out = "\nThe arithmetic\n"
    out += _weights(asked)
    if answer.holding is not None:
        out += _rank(answer, answer.holding)
        out += _cache(asked, answer.holding)
        out += _pool(asked, answer.holding)
    if answer.deployment is not None:
        contexts = asked.input_tokens + asked.output_tokens / 2
        for users in dict.fromkeys((asked.users[0], asked.users[-1])):
            row = next(row for row in answer.users if row.users == users)
            out += _step(answer.deployment, row.running, contexts)
        out += _interval(answer)
    return out


def _wrap(text: str) -> str:
    wrapper = TextWrapper(WIDTH, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False)
    return wrapper.fill(text) + "\n"


def _weights(asked: Asked) -> str:
    count = model_parameters(asked.model)
    size = checkpoint_bytes(asked.model, asked.checkpoint)
    draft = f", draft layers {count.mtp / 1e9:.2f} billion" if count.mtp else ""
    text = (
        f"1. parameters: {count.total / 1e9:.2f} billion, of which {count.active / 1e9:.2f} work on a token and "
        f"{count.routed / 1e9:.1f} are routed experts{draft}; stored as {asked.checkpoint.name}: {size / 1e9:,.1f} GB "
        f"= {size / GIB:,.1f} GiB"
    )
    return _wrap(text)


def _rank(answer: FitAnswer, holding: Holding) -> str:
    rows = answer.ranks
    fullest = max(rows, key=lambda row: sum(row.weights.values()))
    terms = holding.terms
    parts = sorted(fullest.weights.items(), key=lambda one: -one[1])
    listed = ", ".join(f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in parts)
    total = sum(fullest.weights.values())
    return _wrap(f"2. weights of the fullest rank ({terms.name}; {fullest.label}): {listed}; {total / GIB:.2f} GiB")


def _cache(asked: Asked, holding: Holding) -> str:
    stage = holding.memory.stages[holding.stage]
    per_token = float(stage.per_token[holding.point])
    layers = float(stage.layers[holding.point])
    state = float(stage.state[holding.point])
    text = f"3. cache ({holding.terms.kv}): {per_token:,.0f} B for each token on a rank of stage {holding.stage}"
    text += f" ({layers:.0f} layers)" if per_token else ""
    for window, held in stage.windows:
        size, tokens = float(held[holding.point]), float(window[holding.point])
        text += f", and {size:,.0f} B for each token of a window of {tokens:,.0f}"
    text += f", and {state / 2**20:,.1f} MiB for each sequence" if state else ""
    need = float(stage.request_bytes(float(asked.full_request))[holding.point])
    return _wrap(text + f"; one request of {asked.full_request:,} tokens: {need / GIB:.2f} GiB")


def _pool(asked: Asked, holding: Holding) -> str:
    stage = holding.memory.stages[holding.stage]
    terms = stage_pools(holding.memory, holding.part)[holding.stage]
    place = holding.point
    weights = float(stage.weight_bytes[place])
    limit, pool = float(terms.limit[place]), float(terms.pool[place])
    beside = {
        "weights": weights,
        "activations": float(stage.activation[place]),
        "context and buffers": float(terms.context[place]),
        "beyond": float(terms.remainder[place]),
    }
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in beside.items())
    rule = holding.memory.settings.rule
    text = (
        f"4. pool on stage {holding.stage}: the rule of {asked.engine} ({rule.pool.replace('_', ' ')}) lets it use "
        f"{limit / GIB:.2f} GiB of {holding.part.total / GIB:.2f}; beside {listed} GiB it leaves "
        f"{pool / GIB:.2f} GiB ± {float(terms.deviation(-1.0)[place]) / GIB:.2f}: {holding.pool:,.0f} tokens in "
        f"whole blocks, all replicas together"
    )
    return _wrap(text)


def _step(deployment: Deployment, users: int, context: float) -> str:
    if not runs_on_accelerators(deployment):
        return _costs(deployment, users, context)
    total, _ = load_effects(deployment.engine).sum_of(keys_of(deployment))
    parameters = step_parameters(deployment, total)
    one = np.ones(1)
    points = StepPoints(one * users, one * context, one * 0.0, one * 0.0)
    work = step_work(deployment.structure, layout=deployment.layout, points=points)
    step = step_time(work, parameters)
    seconds = float(step.seconds[0])
    words = "user" if users == 1 else "users"
    out = _wrap(
        f"5. a decode step of {users} {words} at {context:,.0f} tokens: {seconds * 1e3:.2f} ms, for "
        f"{deployment.tokens_per_step:.2f} tokens each"
    )
    out += f"     {'':32}{'work':>12}{'fitted':>18}{'ms':>9}{'share':>7}\n"
    for slots in COMPONENTS.values():
        for slot in slots:
            place = SLOTS.index(slot)
            amount, share = float(work[slot][0]), float(step.shares[0, place])
            if share < 0.005:
                continue
            fitted = float(np.exp(parameters[place]))
            counted = PARAMETERS[place].endswith("_seconds")
            left = f"{number(amount)}" if counted else f"{number(amount * 1e3)} ms"
            right = f"× {number(fitted * 1e6)} µs" if counted else f"slow-down {number(fitted)}"
            word = _SLOT_WORDS.get(slot, slot.replace("_", " "))
            out += f"     {word:32}{left:>12}{right:>18}{share * seconds * 1e3:9.2f}{share:7.0%}\n"
    return out


def _costs(deployment: Deployment, users: int, context: float) -> str:
    """A step of a machine that is not answered kernel by kernel: what takes its time."""
    one, model = np.ones(1), step_model_of(deployment)
    step = model.times(StepPoints(one * users, one * context, one * 0.0, one * 0.0))
    seconds, words = float(step.seconds[0]), "user" if users == 1 else "users"
    out = _wrap(f"5. a decode step of {users} {words} at {context:,.0f} tokens: {seconds * 1e3:.2f} ms")
    for name, places in model.components.items():
        share = float(step.shares[0, list(places)].sum())
        if share >= 0.005:
            out += f"     {name:32}{share * seconds * 1e3:39.2f}{share:7.0%}\n"
    return out


def _interval(answer: FitAnswer) -> str:
    row = answer.users[0]
    figure, what = (row.tpot, "decode times") if row.tpot is not None else (row.ttft, "first tokens")
    assert figure is not None
    return _wrap(
        f"6. interval: {answer.basis}; measured over predicted {what} of such cases lie between "
        f"{figure.low / figure.value:.2f} and {figure.high / figure.value:.2f} in 90 of 100"
    )
