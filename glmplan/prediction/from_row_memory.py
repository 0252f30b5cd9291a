"""Memory of a row's deployment, kept for the many rows that share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from glmplan.errors import GlmplanError, UnknownName
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.models import load_model
from glmplan.facts.catalogue.names import refusal
from glmplan.facts.engines.memory import memory_engines, stated_fraction
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.memory import kv_pool, part_memory
from glmplan.physics.memory.ranks import MemorySettings, rank_memory
from glmplan.physics.points import Layout
from glmplan.prediction.deployment import Deployment, checkpoint_for
from glmplan.readers.runs.record import Run
from glmplan.units import GIB

__all__ = ["MemoryAnswer", "checkpoint_of", "model_of", "run_memory"]

#: before this date an unnamed vLLM is 0.19 or older, whose pool rule differs (hardware_db/engines/memory/vllm.toml)
_VLLM_0_20 = "2026-06"


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Memory of a deployment.

    Attributes
    ----------
    weights_gib : float
        Weights on the fullest accelerator, [GiB]
    pool_tokens, pool_low, pool_high : float
        KV cache of all replicas with its 90 % interval, [token]; 0 when the weights leave no room
    """

    weights_gib: float
    pool_tokens: float
    pool_low: float
    pool_high: float


@lru_cache(maxsize=512)
def checkpoint_of(model: str, weights: str | None, bits: float | None) -> Checkpoint:
    """Checkpoint of a model by the format of its weights.

    Parameters
    ----------
    model : str
        Canonical name.
    weights : str or None
        Format.
    bits : float or None
        Stored bits for each weight, [bit]

    Returns
    -------
    Checkpoint
        The checkpoint.
    """
    return checkpoint_for(model_of(model), weights, bits=bits)


@lru_cache(maxsize=512)
def model_of(name: str) -> ModelSpec:
    """Read a model that is not refused.

    Parameters
    ----------
    name : str
        Canonical name.

    Returns
    -------
    ModelSpec
        The model.

    Raises
    ------
    UnknownName
        If tables use the name for what no cited config describes.
    """
    reason = refusal("models", name)
    if reason is not None:
        raise UnknownName(f"is refused: {reason}", field="model", value=name)
    return load_model(name)


def run_memory(run: Run, deployment: Deployment, length: float, fraction: float | None) -> MemoryAnswer | None:
    """Memory of one server.

    Parameters
    ----------
    run : Run
        The row.
    deployment : Deployment
        What serves.
    length : float
        Tokens of a request, [token]
    fraction : float or None
        Memory fraction that the campaign set, [-]

    Returns
    -------
    MemoryAnswer or None
        None for parts whose memory is not published and for weights that stay in host memory.
    """
    if run.offload or deployment.accelerator.memory is None:
        return None
    d = deployment
    version = ".".join(map(str, d.release)) if d.release else None
    if version is None and d.engine == "vllm" and run.measured_on and run.measured_on < _VLLM_0_20:
        version = "0.19.0"
    longest = float(2 ** np.ceil(np.log2(length + 1)))
    mtp = d.draft_tokens > 0 or "mtp" in (run.checkpoint or "").lower()
    return _memory_of(
        d.model.name, run.weights, run.weights_bits, d.accelerator.name, (d.tp, d.pp, d.dp, d.ep, d.dcp), d.kv,
        d.engine, version, mtp, longest, d.graphs, stated_fraction(run.notes) or fraction, d.indexer,
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _memory_of(
    model: str,
    weights: str | None,
    bits: float | None,
    accelerator: str,
    degrees: tuple[int, int, int, int, int],
    kv: str,
    engine: str,
    version: str | None,
    mtp: bool,
    context: float,
    graphs: bool,
    fraction: float | None,
    indexer: bool,
) -> MemoryAnswer | None:
    part = load_accelerator(accelerator)
    tp, pp, dp, ep, dcp = degrees
    try:
        memory = rank_memory(
            model_of(model),
            checkpoint_of(model, weights, bits),
            layout=Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp),
            kv=kv,
            settings=MemorySettings(
                engine=engine if engine in memory_engines() else "vllm",
                version=version,
                accelerator=part.name,
                fraction=fraction,
                graphs=None if graphs else 0,
                indexer=indexer,
            ),
            mtp=mtp,
            memory=part.memory,
        )
        pool = kv_pool(memory, part_memory(part), context=context)
    except GlmplanError:
        return None
    tokens = [max(float(one[0]), 0.0) for one in (pool.tokens, pool.tokens_low, pool.tokens_high)]
    return MemoryAnswer(float(memory.weights[0]) / GIB, *tokens)
