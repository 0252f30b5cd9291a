"""Dispatcher of questions: worker processes and cached answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from asyncio.subprocess import Process
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import date
from typing import Any

from glmplan.service.guard import Limits, Metrics, resident_bytes
from glmplan.service.jobs import Busy, Jobs, Lost, TooLong, error_body
from glmplan.units import Seconds

__all__ = ["LONG", "Dispatcher", "WorkerPool"]


_LOG = logging.getLogger("glmplan.service")
#: maximum time of a process start: imports and the warm-up question [s]
_START = 300.0
#: questions after which a process is replaced, which frees the caches of libraries [-]
_LIFE = 20_000


class WorkerPool:
    """Worker processes for one kind of question.

    Each process answers one question at a time; others wait, up to `Limits.waiting`.

    - `name`: Name of the kind in the log and the metrics.
    - `count`: Number of processes, [-]
    - `limits`: Limits of the service.
    """

    def __init__(self, name: str, count: int, limits: Limits) -> None:
        self.name, self.count, self.limits = name, count, limits
        self.waiting = self.running = self.ended = 0
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._free = asyncio.Semaphore(count)
        # an empty working directory: relative paths in questions find no file
        self._folder = tempfile.TemporaryDirectory(prefix="glmplan-")
        self._closed = False

    async def start(self) -> None:
        """Start one process before the first question."""
        worker = await self._worker()
        self._idle.append(worker)

    async def _worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._all.discard(worker)
        worker = await _Worker.started(self._folder.name, self.limits)
        self._all.add(worker)
        if self._closed:
            await self._end(worker)
            raise Lost
        return worker

    async def ask(
        self,
        ask: str,
        question: dict[str, Any],
        seconds: Seconds,
        report: Callable[[int, int], None] | None = None,
        *,
        accepted: bool = False,
    ) -> tuple[int, bytes]:
        """Return the HTTP status and the answer of a question.

        - `seconds`: Time limit of the computation, without waiting for a process.
        - `report`: Called with the finished and the total work; with 0 of 0 when the computation starts.
        - `accepted`: The question waits however many others do.
        """
        if not accepted and self.waiting >= self.limits.waiting:
            raise Busy
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._asked(ask, question, seconds, report)
        finally:
            self._free.release()

    async def _asked(
        self, ask: str, question: dict[str, Any], seconds: float, report: Callable[[int, int], None] | None
    ) -> tuple[int, bytes]:
        worker = await self._worker()
        self.running += 1
        done = False
        if report is not None:
            report(0, 0)  # the job shows "running" before the first part is finished
        try:
            async with asyncio.timeout(seconds):
                answer = await worker.ask(ask, question, report)
            done = True
            return answer
        except TimeoutError:
            raise TooLong from None
        except (OSError, EOFError, ValueError) as error:
            if not self._closed:
                _LOG.error("a process of %s ended: %s", self.name, type(error).__name__)
            raise Lost from None
        finally:
            self.running -= 1
            # a cancelled question ends its process: its answer is not needed
            if done and worker.asked < _LIFE and not self._closed:
                self._idle.append(worker)
            else:
                await asyncio.shield(self._end(worker))

    async def _end(self, worker: _Worker) -> None:
        self.ended += 1
        self._all.discard(worker)
        await worker.end()

    def pids(self) -> list[int]:
        """Return the ids of the processes."""
        return [worker.pid for worker in self._all]

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        await asyncio.gather(*(self._end(worker) for worker in list(self._all)))
        self._folder.cleanup()


class _Worker:
    """One process with its pipes."""

    def __init__(self, process: Process, limits: Limits) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._limits = asdict(limits)
        self.asked = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def started(cls, folder: str, limits: Limits) -> _Worker:
        paths = os.pathsep.join(os.path.abspath(path or ".") for path in sys.path)
        # one thread for linear algebra: the processes already use the cores
        own = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GLMPLAN_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "glmplan.service.worker", str(limits.memory), limits.calibration,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=folder, env=inherited | own,
            start_new_session=True,
        )  # fmt: skip
        worker = cls(process, limits)
        try:
            async with asyncio.timeout(_START):
                await worker._head()
        except BaseException as error:
            await worker.end()
            if isinstance(error, TimeoutError | EOFError | OSError | ValueError):
                raise Lost from None
            raise
        return worker

    async def ask(
        self, ask: str, question: dict[str, Any], report: Callable[[int, int], None] | None
    ) -> tuple[int, bytes]:
        self.asked += 1
        line = json.dumps({"ask": ask, "question": question, "limits": self._limits})
        self._in.write(line.encode() + b"\n")
        await self._in.drain()
        while True:
            head = await self._head()
            if "status" in head:
                return head["status"], await self._out.readexactly(head["size"])
            if report is not None:
                report(head["done"], head["total"])

    async def _head(self) -> dict[str, Any]:
        line = await self._out.readline()
        if not line:
            raise EOFError
        return dict(json.loads(line))

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self._process.wait()


#: questions that compute for seconds or minutes; others take milliseconds
LONG = ("simulate", "safe", "sweep", "size", "predict-table", "workbook")
#: answers larger than this are not cached [B]
_LARGE = 256 * 1024
Answer = tuple[int, bytes]


class Dispatcher:
    """Processes, jobs and cached answers of one service.

    - `limits`: Limits of the service.
    - `metrics`: Counters.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.quick = WorkerPool("quick", limits.quick_workers, limits)
        self.long = WorkerPool("long", limits.long_workers, limits)
        self.batch = WorkerPool("job", limits.job_workers, limits)
        self.jobs = Jobs(self.batch, limits)
        self._pools = (self.quick, self.long, self.batch)
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Answer]] = {}

    async def start(self) -> None:
        """Start the first process and the jobs that a previous service left."""
        await self.quick.start()
        self.jobs.resume()

    async def close(self) -> None:
        """End jobs and processes."""
        await self.jobs.close()
        await asyncio.gather(*(pool.close() for pool in self._pools))

    async def answer(self, ask: str, question: dict[str, Any]) -> Answer:
        """Return the HTTP status and the answer of a question as JSON.

        Equal questions at the same time are computed once.
        """
        # the default date of prices is today, so an answer is cached for one day
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
        # a client that disconnects does not stop the computation: other clients may wait for it
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
        pool, seconds = (self.long, self.limits.long_seconds) if long else (self.quick, self.limits.quick_seconds)
        try:
            return await pool.ask(ask, question, seconds)
        except TooLong:
            instead = ": send it as a job (POST /v1/jobs)" if long else ": reduce the question"
            return 422, error_body("TooLong", f"the answer takes longer than {seconds:g} s{instead}")
        except Busy:
            return 429, error_body("Busy", "too many questions are waiting: try again later")
        except Lost:
            text = "the worker process ended, probably out of memory: reduce the question"
            return 422, error_body("TooLarge", text)

    def gauges(self) -> dict[str, tuple[str, list[tuple[str, float]]]]:
        """Return the gauges of the dispatcher for `Metrics.text`."""
        pools = self._pools
        pids: list[tuple[int | str, str]] = [
            ("self", "service"),
            *((pid, pool.name) for pool in pools for pid in pool.pids()),
        ]

        def each(value: Callable[[WorkerPool], int]) -> list[tuple[str, float]]:
            return [(f'{{kind="{pool.name}"}}', float(value(pool))) for pool in pools]

        memory: dict[str, int] = {}
        for pid, name in pids:
            memory[name] = memory.get(name, 0) + resident_bytes(pid)
        return {
            "glmplan_questions_waiting": ("Questions waiting for a process.", each(lambda pool: pool.waiting)),
            "glmplan_questions_running": ("Questions being computed.", each(lambda pool: pool.running)),
            "glmplan_processes": ("Worker processes.", each(lambda pool: len(pool.pids()))),
            "glmplan_processes_ended": ("Worker processes ended.", each(lambda pool: pool.ended)),
            "glmplan_jobs": (
                "Jobs by state.",
                [(f'{{state="{state}"}}', float(count)) for state, count in self.jobs.count().items()],
            ),
            "glmplan_answers_kept": ("Cached answers.", [("", float(len(self._kept)))]),
            "glmplan_resident_bytes": (
                "Resident memory.",
                [(f'{{part="{name}"}}', float(size)) for name, size in memory.items()],
            ),
        }
