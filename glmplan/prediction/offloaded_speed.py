"""What a deployment does with weights in host memory: decode and prompt speed, and what it asks of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glmplan.physics.network.host_transfers import host_transfer_rate
from glmplan.physics.offload.time import (
    HostSide,
    Mode,
    OffloadFit,
    OffloadWork,
    Placement,
    accelerator_seconds,
    host_seconds,
    host_side,
    load_offload_fit,
    offload_step_seconds,
    offload_work,
)
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.predict import Figure

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["OffloadLoad", "OffloadSpeed", "offload_speed", "share_for"]

#: bytes of an activation that crosses PCIe to the host and back, BF16 [B]
_ACTIVATION = 2.0


@dataclass(frozen=True, slots=True)
class OffloadLoad:
    """What is asked of it.

    Attributes
    ----------
    requests : float
        Requests that decode together, [-]
    context : float
        Cached tokens of each, [token]
    prompt_tokens : float
        Length of a prompt, [token]
    chunk : float
        Prompt tokens of one step, [token]
    """

    requests: float = 1.0
    context: float = 0.0
    prompt_tokens: float = 2048.0
    chunk: float = 8192.0


@dataclass(frozen=True, slots=True)
class OffloadSpeed:
    """What comes of it, with 90 % intervals.

    Attributes
    ----------
    user_rate, decode_rate : Figure
        Tokens per second of one request and of all together, [token/s]
    prefill_rate : Figure
        Prompt tokens per second, [token/s]
    prompt_mode : str
        Who computes the offloaded part of prompts: ``cpu`` or ``stream``, whichever is faster.
    step : float
        One step of decoding, [s]
    shares : dict of str to float
        Share of the step on the ``host``, on the ``accelerators`` and in ``launch`` and hand-over, [-]
    host_bytes : float
        Weights in host memory; page-locked where they are streamed, [B]
    host_transfer : float
        Sustained transfer between host memory and each accelerator while decoding, [B/s]
    links_busy : float
        Share of what the links pass while all accelerators transfer, [-]
    note : str
        What was not known.
    """

    user_rate: Figure
    decode_rate: Figure
    prefill_rate: Figure
    prompt_mode: Mode
    step: float
    shares: dict[str, float]
    host_bytes: float
    host_transfer: float
    links_busy: float
    note: str


def share_for(deployment: Deployment, host_bytes: float, *, unit: str = "experts") -> Placement:
    """Placement that leaves a number of bytes in host memory.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    host_bytes : float
        Weights that are to stay in host memory, [B]
    unit : str, optional
        ``experts``, ``expert-layers`` or ``layers``.

    Returns
    -------
    Placement
        Computed on the CPU; everything of the unit when that is less.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "glm-5.1", "weights": "nvfp4", "accelerator": "rtx-pro-6000-ws",
    ...        "accelerator_count": "4", "engine": "sglang"}
    >>> round(share_for(question_of(run_from_row(row)).deployment, 160e9).share, 2)
    0.39
    """
    one = np.ones(1)
    every = Placement(1.0, unit)  # type: ignore[arg-type]
    work = offload_work(deployment.model, deployment.checkpoint, every, tokens=one, sequences=one, context=0.0 * one)
    return Placement(min(host_bytes / max(work.held_bytes, 1.0), 1.0), every.unit)


def _side(host: Host, placement: Placement, count: int, cores: int | None, kernel: str) -> tuple[HostSide, str]:
    if placement.mode == "cpu" or host.host_memory_bandwidth is not None:
        return host_side(host, count, cores=cores, kernel=kernel), ""
    link = count * host_transfer_rate(host, count=count)
    return HostSide(float("inf"), link=link), f"{host.name}: the host's memory is not known; only its links count"


def offload_speed(
    deployment: Deployment,
    host: Host,
    placement: Placement,
    load: OffloadLoad,
    *,
    cores: int | None = None,
    kernel: str = "avx512",
) -> OffloadSpeed:
    """Predict decode and prompt speed with a part of the weights in host memory.

    Parameters
    ----------
    deployment : Deployment
        Model, accelerators and layout.
    host : Host
        The machine.
    placement : Placement
        What stays in host memory, and who computes it while decoding.
    load : OffloadLoad
        What is asked of it.
    cores : int, optional
        CPU cores that compute; those of the host by default, [-]
    kernel : str, optional
        ``amx``, ``avx512`` or ``generic``.

    Returns
    -------
    OffloadSpeed
        Speeds with intervals, and what `glmplan.plan.hazards.PlanFacts` needs.

    Raises
    ------
    UnknownFact
        If the memory bandwidth of the host is not known and the CPU is to compute, or a link is not known.

    Notes
    -----
    Prompts are computed on the CPU or from streamed weights, whichever is faster, as engines with a threshold do.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "glm-5.1", "weights": "nvfp4", "accelerator": "rtx-pro-6000-ws",
    ...        "accelerator_count": "4", "engine": "sglang"}
    >>> deployment = question_of(run_from_row(row)).deployment
    >>> away = Placement(share_for(deployment, 160e9).share, mode="stream")
    >>> found = offload_speed(deployment, load_host("six-cards-and-display-gpu"), away, OffloadLoad(requests=64))
    >>> found.links_busy > 0.9
    True
    """
    fit = load_offload_fit()
    count = deployment.count
    side, note = _side(host, placement, count, cores, kernel)
    users = np.array([load.requests])
    decode = _work(deployment, placement, users, users, np.array([load.context]))
    part = deployment.accelerator
    step = offload_step_seconds(decode, side, part, count=count, mode=placement.mode, fit=fit)
    seconds = float(step[0])
    chunks = max(int(np.ceil(load.prompt_tokens / load.chunk)), 1)
    size = np.full(chunks, load.prompt_tokens / chunks)
    prompt = _work(deployment, placement, size, np.ones(chunks), np.full(chunks, load.prompt_tokens / 2))
    mode, prompts = _prompts(prompt, side, deployment, placement.mode, fit)
    on_host = 0.0
    if decode.held_bytes > 0:
        on_host = float(host_seconds(decode, side, mode=placement.mode, prompt=False, fit=fit)[0])
    own = float(accelerator_seconds(decode, part, count=count, mode=placement.mode, fit=fit)[0])
    moved = {"stream": decode.held_bytes, "touched": float(decode.host_bytes[0])}.get(
        placement.mode, 2.0 * load.requests * deployment.model.hidden * _ACTIVATION * decode.host_layers
    )

    def figure(value: float, kind: str) -> Figure:
        low, high = fit.intervals[kind]
        return Figure(value, value * float(np.exp(low)), value * float(np.exp(high)))

    return OffloadSpeed(
        user_rate=figure(1.0 / seconds, "decode"),
        decode_rate=figure(load.requests / seconds, "decode"),
        prefill_rate=figure(load.prompt_tokens / prompts, "prefill"),
        prompt_mode=mode,
        step=seconds,
        shares={
            "host": on_host / seconds,
            "accelerators": own / seconds,
            "launch": max(seconds - on_host - own, 0.0) / seconds,
        },
        host_bytes=decode.held_bytes,
        host_transfer=moved / seconds / count,
        links_busy=moved / seconds / side.link if side.link else 0.0,
        note=note,
    )


def _work(
    deployment: Deployment, placement: Placement, tokens: np.ndarray, sequences: np.ndarray, context: np.ndarray
) -> OffloadWork:
    model, checkpoint = deployment.model, deployment.checkpoint
    return offload_work(
        model, checkpoint, placement, tokens=tokens, sequences=sequences, context=context, kv=deployment.kv
    )  # fmt: skip


def _prompts(
    work: OffloadWork, side: HostSide, deployment: Deployment, decode_mode: Mode, fit: OffloadFit
) -> tuple[Mode, float]:
    """The faster way to compute the offloaded part of prompts, and its time, [s]."""
    modes: list[Mode] = ["stream"] if side.link > 0 else []
    if decode_mode == "cpu":
        modes.append("cpu")
    times: dict[Mode, float] = {
        mode: float(
            offload_step_seconds(
                work, side, deployment.accelerator, count=deployment.count, mode=mode, prompt=True, fit=fit
            ).sum()
        )
        for mode in modes
    }
    best = min(times, key=lambda mode: times[mode])
    return best, times[best]
