"""Processes that answer: as many questions at once as there are processes, others wait, too many are turned away."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from glmplan.serve.limits import Limits

__all__ = ["Busy", "Crowd", "Lost", "TooLong"]

_LOG = logging.getLogger("glmplan.serve")
#: time for a process to start: imports, and the first question it asks itself [s]
_START = 300.0
#: questions after which a process is replaced: whatever a library keeps for itself goes with it [-]
_LIFE = 20_000


class Busy(Exception):
    """As many questions wait as may."""


class TooLong(Exception):
    """An answer took longer than it may."""


class Lost(Exception):
    """A process ended before it answered."""


class Crowd:
    """Processes for one kind of question.

    Parameters
    ----------
    name : str
        Of the kind, for the log and the metrics.
    count : int
        Processes, [-]
    limits : Limits
        Limits of the service.
    """

    def __init__(self, name: str, count: int, limits: Limits) -> None:
        self.name, self.count, self.limits = name, count, limits
        self.waiting = self.running = self.ended = 0
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._places = asyncio.Semaphore(count)
        # files that somebody names by accident are not found from here
        self._folder = tempfile.TemporaryDirectory(prefix="glmplan-")
        self._closed = False

    async def start(self) -> None:
        """Start one process, so that the first question does not wait for it."""
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
        self, ask: str, question: dict[str, Any], seconds: float, report: Callable[[int, int], None] | None = None
    ) -> tuple[int, bytes]:
        """Have a question answered.

        Parameters
        ----------
        ask : str
            Which of `glmplan.serve.answers.QUESTIONS`.
        question : dict
            What is asked.
        seconds : float
            Longest time for the answer, once a process has it, [s]
        report : callable, optional
            Called with how much is done, and of how much; with 0 of 0 when a process has the question.

        Returns
        -------
        int
            Status of HTTP, [-]
        bytes
            The answer as JSON.

        Raises
        ------
        Busy
            If too many wait.
        TooLong
            If it took longer.
        Lost
            If the process ended.
        """
        if self.waiting >= self.limits.waiting:
            raise Busy
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._asked(ask, question, seconds, report)
        finally:
            self._places.release()

    async def _asked(
        self, ask: str, question: dict[str, Any], seconds: float, report: Callable[[int, int], None] | None
    ) -> tuple[int, bytes]:
        worker = await self._worker()
        self.running += 1
        done = False
        if report is not None:
            report(0, 0)  # begun: whoever looks need not wait for the first part to be done
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
            # also when whoever asked no longer waits: what is computed for nobody is ended
            if done and worker.asked < _LIFE and not self._closed:
                self._idle.append(worker)
            else:
                await asyncio.shield(self._end(worker))

    async def _end(self, worker: _Worker) -> None:
        self.ended += 1
        self._all.discard(worker)
        await worker.end()

    def pids(self) -> list[int]:
        """Processes that are there, [-]"""
        return [worker.pid for worker in self._all]

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        await asyncio.gather(*(self._end(worker) for worker in list(self._all)))
        self._folder.cleanup()


class _Worker:
    """One process, and the lines to and from it."""

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
        said = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GLMPLAN_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "glmplan.serve.worker", str(limits.memory), limits.calibration,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=folder, env=kept | said,
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
