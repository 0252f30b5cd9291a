"""What the client itself adds: measured against a server that answers at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from glmplan.measure.client import Client, Endpoint
from glmplan.measure.null_server import null_server_process
from glmplan.measure.request_result import Outcome, RequestRecord

__all__ = ["Overhead", "measure_overhead"]


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the client adds to what it measures.

    Parameters
    ----------
    streams : int
        Streams at once, [-]
    ttft : float
        Added to the first token on average, [s]
    tpot : float
        Added to the time per token on average, [s]
    cpu : float
        Processor time of the client for each second, [-]
    faults : int
        Requests that failed although nothing could, [-]
    """

    streams: int
    ttft: float
    tpot: float
    cpu: float
    faults: int

    def share(self, ttft_ms: float, tpot_ms: float) -> float:
        """Return the larger share of the overhead in two measured means.

        Parameters
        ----------
        ttft_ms, tpot_ms : float
            Measured means, [ms]

        Returns
        -------
        float
            Share, [-]

        Examples
        --------
        >>> Overhead(8, 0.001, 0.0002, 0.1, 0).share(100.0, 10.0)
        0.02
        """
        shares = [o * 1e3 / m for o, m in ((self.ttft, ttft_ms), (self.tpot, tpot_ms)) if m > 0]
        return max(shares, default=0.0)


async def measure_overhead(
    streams: int, *, chat: bool = False, together: bool = False, tokens: int = 40, pace: float = 0.025
) -> Overhead:
    """Measure the client against a null server in a process of its own.

    Parameters
    ----------
    streams : int
        Streams at once, [-]
    chat : bool, optional
        Chat completions.
    together : bool, optional
        Start all streams at once, as a burst does, instead of one after another over the length of an answer.
    tokens : int, optional
        Length of each answer, [token]
    pace : float, optional
        Time between tokens, [s]

    Returns
    -------
    Overhead
        What it adds. The null server's own lateness is in it, so it is an upper bound.
    """
    with null_server_process(pace=pace, chat=chat) as url:
        async with Client(Endpoint(url, "null", chat=chat)) as client:
            await client.send("warm up", 2)
            apart = 0.0 if together else tokens * pace / streams

            async def one(number: int) -> RequestRecord:
                await asyncio.sleep(number * apart)
                return await client.send("a b c d", tokens)

            begin, busy = time.perf_counter(), time.process_time()
            records = await asyncio.gather(*(one(number) for number in range(streams)))
            wall, busy = time.perf_counter() - begin, time.process_time() - busy
    done = [record for record in records if record.outcome is Outcome.DONE]
    count = max(len(done), 1)
    return Overhead(
        streams,
        sum(record.ttft for record in done) / count,
        max(sum(record.tpot or 0.0 for record in done) / count - pace, 0.0),
        busy / max(wall, 1e-9),
        len(records) - len(done),
    )
