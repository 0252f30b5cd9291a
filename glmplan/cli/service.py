"""What `simulate` and `safe` share: from words on the command line to the service and traffic that are simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.serving.simulate import Service
    from glmplan.serving.traffic.drafting import Acceptance
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["Described", "described_service", "described_traffic", "measured_step_time"]

#: contexts of recorded requests for which step times are tabulated; longer ones are extrapolated [token]
_LONGEST_RECORDED = 262_144
_STEP_PARTS = {
    "base": "base",
    "request": "per_request",
    "context": "per_context_token",
    "prompt": "per_prefill_token",
    "pair": "per_prefill_square",
}


@dataclass(frozen=True, slots=True)
class Described:
    """A service, and how sure its step times are.

    Parameters
    ----------
    service : Service
        What is simulated.
    low, high : float
        90 % interval of the step time relative to its prediction, [-]
    basis : str
        What the step time rests on.
    """

    service: Service
    low: float
    high: float
    basis: str


def measured_step_time(text: str) -> dict[str, float]:
    """Read a step time of the user's own.

    Parameters
    ----------
    text : str
        Parts separated by commas: `base` for each step, `request` for each decoding request, `context` for each token
        of its context, `prompt` for each prompt token, `pair` for each pair of a prompt token and a key.

    Returns
    -------
    dict
        Arguments of `StepTable.affine`, [s]

    Raises
    ------
    SpecError
        If a part is not known or not a time.

    Examples
    --------
    >>> measured_step_time("base=12 ms,prompt=20 us")
    {'base': 0.012, 'per_prefill_token': 2e-05}
    """
    from glmplan.units import parse_quantity

    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in _STEP_PARTS:
            raise SpecError(
                "is not a part of a step time", field="--step-time", value=name.strip(), choices=_STEP_PARTS
            )
        seconds = parse_quantity(value, "seconds")
        if seconds < 0:
            raise SpecError("must not be negative", field="--step-time", value=part.strip())
        found[_STEP_PARTS[name.strip()]] = seconds
    if not found.get("base", 0) > 0:
        raise SpecError("needs a base above zero, as in base=12 ms", field="--step-time", value=text)
    return found


def described_traffic(spec: str, options: dict[str, Any]) -> Traffic:
    """Read the traffic and its options.

    Parameters
    ----------
    spec : str
        As `parse_traffic` takes it.
    options : dict
        Further fields; None where not given.

    Returns
    -------
    Traffic
        The spec.
    """
    from glmplan.serving.traffic.spec import parse_traffic

    return parse_traffic(spec, **options)


def described_service(
    *,
    model: str | None,
    on: str | None,
    step_time: str | None,
    kv_tokens: int | None,
    link: str | None,
    kv_bytes: str | None,
    plan: dict[str, Any],
    engine: dict[str, Any],
    traffic: Traffic,
) -> Described:
    """Build the service to simulate.

    Parameters
    ----------
    model, on : str or None
        Model and machine; not needed with a step time of one's own.
    step_time : str or None
        As `measured_step_time` reads it.
    kv_tokens : int or None
        Room for keys and values instead of the predicted one, [token]
    link : str or None
        Bandwidth between prefill and decode replicas, with unit.
    kv_bytes : str or None
        Bytes that one token occupies, with unit, instead of the predicted ones.
    plan : dict
        Options of the deployment: fields of `glmplan.plan.question.Words`; None where not given.
    engine : dict
        Fields of `EngineSettings`; None where not given.
    traffic : Traffic
        What arrives; bounds the contexts for which step times are tabulated.

    Returns
    -------
    Described
        The service and its interval.

    Raises
    ------
    SpecError
        If something needed is missing or wrong.
    """
    from glmplan.serving.engine.settings import KvPool, TransferLink, scheduler_settings
    from glmplan.serving.engine.step_table import StepTable
    from glmplan.serving.simulate import Service
    from glmplan.units import parse_quantity

    if link is not None:
        engine = engine | {"link": TransferLink(parse_quantity(link, "bytes per second"))}
    per_token = parse_quantity(kv_bytes, "bytes") if kv_bytes is not None else None
    if step_time is not None:
        if kv_tokens is None:
            raise SpecError("is needed with --step-time", field="--kv-tokens")
        scheduler = plan.get("engine") or "vllm"
        engine = engine | {"acceptance": _acceptance(plan)}
        settings = scheduler_settings(scheduler, **engine)
        table = StepTable.affine(**measured_step_time(step_time), max_requests=max(1024, settings.max_num_seqs))
        if link is not None and per_token is None:
            raise SpecError("is needed with --transfer and --step-time", field="--kv-bytes-per-token")
        pool = KvPool(kv_tokens, plan.get("block_size") or 16, per_token or 0.0)
        return Described(Service(table, pool, settings), 1.0, 1.0, "the step time given")
    if model is None or on is None:
        missing = "MODEL" if model is None else "--on"
        raise SpecError("is needed unless --step-time gives the step time", field=missing)
    found = _predicted(model, on, kv_tokens, plan, engine, traffic)
    if per_token is None:
        return found
    service = replace(found.service, pool=replace(found.service.pool, bytes_per_token=per_token))
    return replace(found, service=service)


def _acceptance(plan: dict[str, Any]) -> Acceptance | None:
    """Speculation as described by the number of drafted tokens and the acceptance length."""
    from glmplan.serving.traffic.drafting import Acceptance

    drafted, mean = plan.get("mtp"), plan.get("acceptance")
    if not drafted:
        return None
    if mean is None:
        raise SpecError("is needed with --mtp and --step-time", field="--acceptance")
    return Acceptance.of_mean(drafted, mean) if mean > 1 else Acceptance(drafted, mean)


def _predicted(
    model: str, on: str, kv_tokens: int | None, plan: dict[str, Any], engine: dict[str, Any], traffic: Traffic
) -> Described:
    """The service as glmplan predicts it."""
    from glmplan.plan.question import Words
    from glmplan.plan.simulator_inputs import serving_inputs
    from glmplan.serving.engine.step_table import StepTable
    from glmplan.serving.simulate import Service

    asked: dict[str, Any] = {
        name: str(value) for name, value in plan.items() if value is not None and name != "block_size"
    }
    if engine.get("max_model_len") is not None:
        asked["context"] = str(engine["max_model_len"])
    if traffic.kind not in ("trace", "sessions") and not traffic.lengths:
        asked |= {"input": str(traffic.input), "output": str(traffic.output)}
    inputs = serving_inputs(Words(model, on, **asked))
    settings, pool = inputs.settings, inputs.pool
    changes = {key: value for key, value in engine.items() if value is not None}
    budget = changes.get("max_num_batched_tokens")
    if budget is not None and "max_num_seqs" not in changes:
        changes["max_num_seqs"] = max(1, min(settings.max_num_seqs, budget // settings.tokens_per_decode))
    settings = replace(settings, **changes)
    if kv_tokens is not None or plan.get("block_size") is not None:
        pool = replace(pool, tokens=kv_tokens or pool.tokens, block_size=plan.get("block_size") or pool.block_size)
    longest = 4 * (traffic.input + traffic.output) * (traffic.turns if traffic.kind == "sessions" else 1)
    if traffic.kind == "trace" or traffic.lengths:
        longest = _LONGEST_RECORDED
    table = StepTable.tabulate(
        inputs.step_seconds,
        max_requests=-(-settings.max_num_seqs // settings.pipeline_stages),
        max_context=max(1024, min(settings.max_model_len, pool.tokens, longest)),
        max_prefill=settings.max_num_batched_tokens,
    )
    return Described(Service(table, pool, settings, inputs.front_end), inputs.low, inputs.high, inputs.basis)
