"""Runs of a few thousand plain requests: each replica is one loop over lists of numbers, preemptions included.

That is what a search for a safe load asks for again and again. `SkippingEngine` does the same for requests of every
kind, and says whose rules these are; `plain_loop` does it for any number of requests as long as blocks suffice.
"""

from __future__ import annotations

import math

import numpy as np

from glmplan.simulation.engine.admission import block_period
from glmplan.simulation.engine.few_first import serving_prompts_first
from glmplan.simulation.engine.few_loop import Few, serving
from glmplan.simulation.engine.plain import Served
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable, clock_of
from glmplan.simulation.traffic.sources import Chunk

__all__ = ["FewRequests"]

_NEVER = math.inf


class FewRequests:
    """Plain requests that are all known, served by alike replicas.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Settings that `serves` knows.
    chunk : Chunk
        The requests, every one of which fits.
    users : ndarray or None
        Arrivals of the first request of each user of a closed loop; None when arrivals are given, [s]
    lag : float, optional
        Time of the front end between an answer and the next request of the same user, [s]

    Examples
    --------
    >>> chunk = Chunk(np.array([1.0]), np.array([100]), np.array([3]))
    >>> few = FewRequests(StepTable.affine(base=0.01), KvPool(10_000), EngineSettings(), chunk, None)
    >>> few.run()
    >>> few.served(np.array([0])).records["finish"].round(9).tolist()
    [1.03]
    """

    def __init__(
        self,
        table: StepTable,
        pool: KvPool,
        settings: EngineSettings,
        chunk: Chunk,
        users: np.ndarray | None,
        lag: float = 0.0,
    ) -> None:
        inputs, outputs, size = chunk.input_tokens, chunk.output_tokens, pool.block_size
        count, period = len(inputs), block_period(size, 1.0)
        arrivals = np.zeros(count) if chunk.arrival is None else np.array(chunk.arrival, dtype=float)
        if users is not None:
            arrivals[: len(users)] = users[:count]
        phase = inputs % size * period // size
        most = -(-inputs // size) + (phase + outputs - 2) // period - (phase - 1) // period
        self._inputs, self._outputs = inputs, outputs
        self._replica = [0] * count
        self._few = Few(
            clock=clock_of(table, settings.pipeline_stages),
            pool=pool,
            settings=settings,
            period=period,
            lag=lag,
            closed=users is not None,
            released=min(len(users), count) if users is not None else count,
            arrival=arrivals.tolist(),
            prompt=inputs.tolist(),
            left=(outputs - 1).tolist(),
            phase=phase.tolist(),
            most=most.tolist(),
            started=[-1.0] * count,
            first=[-1.0] * count,
            finish=[-1.0] * count,
            preempted=[0] * count,
            cached=[0] * count,
            loads=[0] * settings.replicas,
        )

    @staticmethod
    def serves(settings: EngineSettings, closed: bool) -> bool:
        """Whether this form knows all that an engine with these settings does to plain requests.

        Returns: False of engines that compute prompts elsewhere, draft, or put those who wait in another order.

        Examples
        --------
        >>> FewRequests.serves(EngineSettings(), True), FewRequests.serves(EngineSettings(prefill_first=True), True)
        (True, False)
        """
        if settings.prefill_first:
            alike = settings.admission == "estimate"
        else:
            alike = settings.admission in ("chunk", "max-utilization", "slot") and not settings.prefill_max_requests
        return (
            alike
            and settings.chunked_prefill
            and settings.order == "fcfs"
            and not (settings.in_slots or settings.prefill_replicas or settings.acceptance)
            and not (settings.long_prefill_token_threshold or settings.host_tokens)
            and (settings.replicas == 1 or not closed)
        )

    def run(self) -> None:
        """Serve all of them."""
        few, loads = self._few, self._few.loads
        loop = serving_prompts_first if few.settings.prefill_first else serving
        if len(loads) == 1:
            alone = loop(few, 0, list(range(few.released)))
            next(alone)
            alone.send(_NEVER)
            return
        lines: list[list[int]] = [[] for _ in loads]
        replicas = [loop(few, number, line) for number, line in enumerate(lines)]
        ends, in_turn = [next(replica) for replica in replicas], few.settings.routing == "round-robin"
        for which, at in enumerate(few.arrival):
            for number, end in enumerate(ends):
                if end < at:
                    ends[number] = replicas[number].send(at)
            target = which % len(loads) if in_turn else loads.index(min(loads))
            lines[target].append(which)
            loads[target] += 1
            self._replica[which] = target
            ends[target] = at  # a run may end sooner now, and who else arrives now is seen by the same step
        for number, end in enumerate(ends):
            if end < _NEVER:
                replicas[number].send(_NEVER)

    def served(self, numbers: np.ndarray) -> Served:
        """What has finished.

        Returns: Records in the order of arrival, runs of equal steps, and gaps of those who were preempted.
        """
        few = self._few
        finish = np.array(few.finish)
        done = np.flatnonzero(finish >= 0)
        nothing = np.zeros(len(done), dtype=np.int64)
        records = {"number": numbers[done], "session": nothing - 1, "turn": nothing, "priority": nothing}
        records |= {"input_tokens": self._inputs[done], "output_tokens": self._outputs[done], "finish": finish[done]}
        counts = {"preemptions": few.preempted, "cached": few.cached, "replica": self._replica}
        records |= {name: np.array(column, dtype=np.int64)[done] for name, column in counts.items()}
        times = {"arrival": few.arrival, "started": few.started, "first": few.first}
        records |= {name: np.array(column)[done] for name, column in times.items()}
        segments = np.fromiter(few.segments, float, len(few.segments)).reshape(-1, 8).T.copy()
        return Served(records, segments, np.array(few.stalls).reshape(-1, 2).T)
