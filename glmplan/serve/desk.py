"""Where questions are taken: given to a process, or answered from what was answered before."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import date
from typing import Any

from glmplan.serve.jobs import Jobs
from glmplan.serve.limits import Limits
from glmplan.serve.metrics import Metrics, resident_bytes
from glmplan.serve.workers import Busy, Crowd, Lost, TooLong

__all__ = ["LONG", "Desk"]

#: questions that compute for seconds or minutes; the others are answered at once
LONG = ("simulate", "safe", "sweep", "size", "predict-table", "workbook")
#: answers larger than this are not kept [B]
_LARGE = 256 * 1024
Answer = tuple[int, bytes]


class Desk:
    """Processes, jobs and kept answers of one service.

    Parameters
    ----------
    limits : Limits
        Limits of the service.
    metrics : Metrics
        Where is counted.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.quick = Crowd("quick", limits.quick_workers, limits)
        self.long = Crowd("long", limits.long_workers, limits)
        self.jobs = Jobs(self.long, limits)
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Answer]] = {}

    async def start(self) -> None:
        """Start a first process."""
        await self.quick.start()

    async def close(self) -> None:
        """End jobs and processes."""
        await self.jobs.close()
        await asyncio.gather(self.quick.close(), self.long.close())

    async def answer(self, ask: str, question: dict[str, Any]) -> Answer:
        """Answer a question, once for all who ask the same at the same time.

        Parameters
        ----------
        ask : str
            Which question.
        question : dict
            What is asked, checked.

        Returns
        -------
        tuple of (int, bytes)
            Status of HTTP [-] and the answer as JSON.
        """
        # prices grow old and default to today: an answer is one of its day
        key = json.dumps([ask, question, date.today().isoformat()], sort_keys=True)
        if key in self._kept:
            self._kept.move_to_end(key)
            self.metrics.kept += 1
            return self._kept[key]
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._asked(ask, question))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # whoever goes away does not stop it for the others; its own time does
        return await asyncio.shield(task)

    def _finished(self, key: str, task: asyncio.Task[Answer]) -> None:
        self._under_way.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        status, body = task.result()
        if status in (200, 422) and len(body) <= _LARGE:
            self._kept[key] = status, body
            while len(self._kept) > self.limits.answers:
                self._kept.popitem(last=False)

    async def _asked(self, ask: str, question: dict[str, Any]) -> Answer:
        long = ask in LONG
        crowd, seconds = (self.long, self.limits.long_seconds) if long else (self.quick, self.limits.quick_seconds)
        try:
            return await crowd.ask(ask, question, seconds)
        except TooLong:
            instead = ": ask it as a job (POST /v1/jobs)" if long else ": ask for less"
            return 422, _words("TooLong", f"the answer takes longer than {seconds:g} s{instead}")
        except Busy:
            return 429, _words("Busy", "too many questions wait: ask again in a moment")
        except Lost:
            words = "the process that computed it ended, as it does when memory is short: ask for less"
            return 422, _words("TooLarge", words)

    def gauges(self) -> dict[str, tuple[str, list[tuple[str, float]]]]:
        """What is counted here, for `Metrics.text`."""
        crowds = (self.quick, self.long)
        pids: list[tuple[int | str, str]] = [
            ("self", "service"),
            *((pid, crowd.name) for crowd in crowds for pid in crowd.pids()),
        ]

        def each(value: Callable[[Crowd], int]) -> list[tuple[str, float]]:
            return [(f'{{kind="{crowd.name}"}}', float(value(crowd))) for crowd in crowds]

        memory: dict[str, int] = {}
        for pid, name in pids:
            memory[name] = memory.get(name, 0) + resident_bytes(pid)
        return {
            "glmplan_questions_waiting": ("Questions that wait for a process.", each(lambda crowd: crowd.waiting)),
            "glmplan_questions_running": ("Questions that are computed.", each(lambda crowd: crowd.running)),
            "glmplan_processes": ("Processes that compute.", each(lambda crowd: len(crowd.pids()))),
            "glmplan_processes_ended": ("Processes that were ended.", each(lambda crowd: crowd.ended)),
            "glmplan_jobs": (
                "Jobs by state.",
                [(f'{{state="{state}"}}', float(count)) for state, count in self.jobs.count().items()],
            ),
            "glmplan_answers_kept": ("Answers that are kept.", [("", float(len(self._kept)))]),
            "glmplan_resident_bytes": (
                "Memory that is held.",
                [(f'{{part="{name}"}}', float(size)) for name, size in memory.items()],
            ),
        }


def _words(kind: str, text: str) -> bytes:
    return json.dumps({"error": {"kind": kind, "message": text}}).encode()
