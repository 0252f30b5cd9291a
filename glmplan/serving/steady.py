"""Continuous batching in its steady state, without events: many loads at once for sweeps, from the same step times.

Decoding requests share the engine as processor sharing with a speed that depends on how many there are: with n of them
each gets a token every T(n) seconds. Such a queue has a product form that depends on the mean length only [1]_: the
probability of n is proportional to the product over i ≤ n of λ·S·T(i)/i, S being the tokens to decode. Prompts take a
share λ·X of the time; beyond the largest batch the queue is that of as many servers.

References
----------
.. [1] F. Baskett, K. M. Chandy, R. R. Muntz, F. G. Palacios, "Open, closed and mixed networks of queues with different
   classes of customers", Journal of the ACM 22(2), 1975.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.serving.engine.settings import EngineSettings, KvPool
from glmplan.serving.engine.step_table import StepTable

__all__ = ["SteadyState", "steady_closed", "steady_open"]


@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """Means of the steady state; one entry for each load.

    Parameters
    ----------
    ttft : ndarray
        Time to the first token; infinite where the load cannot be carried, [s]
    tpot : ndarray
        Time between further tokens, [s]
    e2e : ndarray
        Time to the last token, [s]
    requests_per_s : ndarray
        Requests answered, [1/s]
    output_tokens_per_s : ndarray
        Tokens written, [token/s]
    batch : ndarray
        Decoding requests, [-]
    load : ndarray
        Share of what the engine can carry, [-]
    kv_tokens : ndarray
        Tokens in the KV cache, [token]
    """

    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    requests_per_s: np.ndarray
    output_tokens_per_s: np.ndarray
    batch: np.ndarray
    load: np.ndarray
    kv_tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class _Work:
    """Times of one request shape: of a decode step, and what its prompt adds."""

    table: StepTable
    settings: EngineSettings
    inputs: np.ndarray
    outputs: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        mean = self.settings.acceptance.mean if self.settings.acceptance else 1.0
        return (self.outputs - 1) / mean

    @property
    def context(self) -> np.ndarray:
        return self.inputs + self.outputs / 2

    def decode(self, n: np.ndarray) -> np.ndarray:
        """Seconds of a step of n requests, without any at least one."""
        zero = np.zeros(1)
        stages = self.settings.pipeline_stages
        return self.table.seconds_at(np.maximum(n, 1.0) / stages, self.context, zero, zero)

    def prompt(self, n: np.ndarray) -> np.ndarray:
        """Seconds that a prompt adds to steps of n decoding requests."""
        settings = self.settings
        stages = settings.pipeline_stages
        room = np.maximum(settings.max_num_batched_tokens * stages - n * settings.tokens_per_decode, 1.0)
        chunks = np.ceil(self.inputs / room)
        tokens, keys = self.inputs / chunks / stages, (self.inputs + 1) / 2
        beside = 0.0 if settings.prefill_first else np.minimum(n, 1e9)
        together = self.table.seconds_at(np.asarray(beside) / stages, self.context, tokens, keys)
        alone = self.table.seconds_at(np.asarray(beside) / stages, self.context, np.zeros(1), keys)
        return chunks * (together - alone)


def _most(pool: KvPool, settings: EngineSettings, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Requests that run at once: the limit of the engine, or of the pool at mean length (full length if reserved)."""
    held = inputs + outputs * (1.0 if settings.admission in ("no-evict", "estimate") else 0.5) + pool.block_size / 2
    return np.maximum(1.0, np.minimum(settings.max_num_seqs, np.floor(pool.blocks * pool.block_size / held)))


def steady_open(
    *,
    table: StepTable,
    pool: KvPool,
    settings: EngineSettings,
    rate: np.ndarray,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
    output_cv: float = 0.0,
) -> SteadyState:
    """Means under Poisson arrivals.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Limits of the engine; replicas share the arrivals equally.
    rate : ndarray
        Arrivals, [1/s]
    input_tokens, output_tokens : ndarray
        Mean lengths, [token]
    output_cv : float, optional
        Coefficient of variation of the answer length, which lengthens the queue beyond the largest batch, [-]

    Returns
    -------
    SteadyState
        Means; infinite times where the load is 1 or more.

    Notes
    -----
    Not modelled: preemption, the prefix cache, disaggregation, percentiles. The simulation has them.

    Examples
    --------
    >>> state = steady_open(table=StepTable.affine(base=0.01), pool=KvPool(10**6), settings=EngineSettings(),
    ...     rate=np.array([1.0, 2.0]), input_tokens=np.array([100]), output_tokens=np.array([101]))
    >>> state.tpot.round(4).tolist()
    [0.01, 0.01]
    """
    rate, inputs, outputs = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(x, dtype=float)) for x in (rate, input_tokens, output_tokens))
    )
    each = rate / (settings.replicas - settings.prefill_replicas)
    most = _most(pool, settings, inputs, outputs)
    width = int(most.max())
    n = np.arange(1.0, width + 1)[:, None]
    work = _Work(table, settings, inputs[None, :], outputs[None, :])
    steps = work.steps
    decode, prompt = work.decode(n), work.prompt(n)
    spare = 1 - each * prompt
    token = np.where(spare > 0, decode / np.maximum(spare, 1e-9), np.inf)  # seconds for each token with n requests
    full = np.minimum(n, most)
    last = np.take_along_axis(token, (most.astype(int) - 1)[None, :], axis=0)
    token = np.where(n <= most, token, last)
    load = (each * steps * last / most)[0]
    stable = load < 1
    growth = each * steps * np.where(stable, token, 0.0) / full
    with np.errstate(divide="ignore"):
        logs = np.cumsum(np.log(growth), axis=0)
    logs = np.where(n <= most, logs, -np.inf)
    top = np.maximum(logs.max(axis=0), 0.0)
    weights = np.exp(logs - top)
    empty = np.exp(-top)
    # beyond the largest batch: a geometric tail
    edge = np.take_along_axis(weights, (most.astype(int) - 1)[None, :], axis=0)[0]
    ratio = np.where(stable, load, 0.0)
    tail = edge * ratio / (1 - ratio)
    total = empty + weights.sum(axis=0) + tail
    chance = weights / total
    beyond = tail / total
    batch = (n * chance).sum(axis=0) + most * beyond
    queue = beyond / (1 - ratio) * (1 + output_cv**2) / 2  # Lee and Longton, as in `queueing.mean_wait`
    decoding = np.where(each > 0, batch / np.maximum(each, 1e-300), (steps * decode[0])[0])
    tpot = np.where(outputs[:] > 1, decoding / np.maximum(outputs - 1, 1), 0.0)
    # the first token: the step under way, then a step with the prompt
    busy = chance.sum(axis=0) + beyond
    idle = 1 - busy
    seen = np.where(
        busy > 0,
        ((decode * chance).sum(axis=0) + np.where(stable, last[0], 0.0) * spare[-1] * beyond) / np.maximum(busy, 1e-12),
        0,
    )
    added = ((prompt * chance).sum(axis=0) + prompt[-1] * beyond) / np.maximum(busy, 1e-12)
    alone = work.table.seconds_at(np.zeros(1), np.ones(1), inputs, (inputs + 1) / 2)
    mixed = seen * (not settings.prefill_first) + added
    share = np.minimum(each * mixed, 1.0)
    left = share * mixed / 2 + np.maximum(busy - share, 0.0) * seen / 2
    crowd = 1 + np.minimum(share, 0.99)  # prompts that arrive in the same step are computed together
    own = idle * alone + busy * (mixed + added * (crowd - 1))
    ttft = np.where(stable, left + own + queue / np.maximum(each, 1e-300), np.inf)
    tpot = np.where(stable, tpot, np.inf)
    done = np.where(stable, rate, rate / np.maximum(load, 1e-300))
    return SteadyState(
        ttft,
        tpot,
        ttft + tpot * (outputs - 1),
        done,
        done * outputs,
        np.where(stable, batch, most),
        load,
        np.where(stable, batch, most) * (inputs + outputs / 2),
    )


def steady_closed(
    *,
    table: StepTable,
    pool: KvPool,
    settings: EngineSettings,
    users: np.ndarray,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
) -> SteadyState:
    """Means of a closed loop after its start-up: every user sends the next request when the last is answered.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Limits of the engine; replicas share the users equally.
    users : ndarray
        Users, [-]
    input_tokens, output_tokens : ndarray
        Mean lengths, [token]

    Returns
    -------
    SteadyState
        Means; the load is the share of the largest batch.

    Examples
    --------
    >>> state = steady_closed(table=StepTable.affine(base=0.01), pool=KvPool(10**6), settings=EngineSettings(),
    ...     users=np.array([1, 8]), input_tokens=np.array([100]), output_tokens=np.array([101]))
    >>> state.e2e.round(4).tolist()
    [1.01, 1.01]
    """
    users, inputs, outputs = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(x, dtype=float)) for x in (users, input_tokens, output_tokens))
    )
    engines = settings.replicas - settings.prefill_replicas
    each = users / engines
    most = _most(pool, settings, inputs, outputs)
    running = np.minimum(each, most)
    work = _Work(table, settings, inputs, outputs)
    others = np.maximum(running - 1, 0.0)
    decode, prompt = work.decode(running), work.prompt(others)
    # one turn of the loop: every running request is prefilled once and decodes its steps beside the others
    beside = np.where(others > 0, work.decode(others), 0.0)
    alone = table.seconds_at(np.zeros(1), np.ones(1), inputs, (inputs + 1) / 2)
    own = np.where(others > 0, beside + prompt, alone)
    decoding = work.steps * decode + others * prompt * work.steps / (work.steps + 1)
    cycle = own + decoding
    waiting = np.maximum(each - most, 0.0) * cycle / running
    tpot = np.where(outputs > 1, decoding / np.maximum(outputs - 1, 1), 0.0)
    rate = engines * running / cycle
    ttft = own + waiting
    return SteadyState(
        ttft, tpot, ttft + decoding, rate, rate * outputs, running, each / most, running * (inputs + outputs / 2)
    )
