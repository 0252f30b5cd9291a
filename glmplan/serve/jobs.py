"""Questions that take long: begun at once, looked at later, stopped by whoever began them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from glmplan.serve.limits import Limits
from glmplan.serve.workers import Busy, Crowd, Lost, TooLong

__all__ = ["Job", "Jobs"]


@dataclass(slots=True, eq=False)
class Job:
    """One job.

    Attributes
    ----------
    name : str
        Its name, which nobody can guess.
    ask : str
        Which question.
    state : str
        ``waiting``, ``running``, ``done``, ``refused``, ``failed`` or ``cancelled``.
    done, total : int
        How far it is, [-]
    begun, ended : float
        Seconds of a clock that only goes forward; 0 if not yet, [s]
    answer : bytes
        What came out, as JSON.
    """

    name: str
    ask: str
    state: str = "waiting"
    done: int = 0
    total: int = 0
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    answer: bytes = b""

    @property
    def over(self) -> bool:
        """Whether nothing more happens."""
        return bool(self.ended)

    def record(self) -> dict[str, Any]:
        """The job as plain values."""
        seconds = (self.ended or time.monotonic()) - self.begun
        found: dict[str, Any] = {"job": self.name, "ask": self.ask, "state": self.state, "seconds": round(seconds, 3)}
        found["progress"] = {"done": self.done, "total": self.total} if self.total else None
        return found


class Jobs:
    """All jobs of a service.

    Parameters
    ----------
    crowd : Crowd
        Processes that compute them.
    limits : Limits
        Limits of the service.
    """

    def __init__(self, crowd: Crowd, limits: Limits) -> None:
        self._crowd, self._limits = crowd, limits
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, ask: str, question: dict[str, Any]) -> Job:
        """Begin a job.

        Parameters
        ----------
        ask : str
            Which question.
        question : dict
            What is asked, checked.

        Returns
        -------
        Job
            The job, which waits for a process.

        Raises
        ------
        Busy
            If as many jobs are there as may be.
        """
        self._forget()
        if len(self._jobs) >= self._limits.jobs:
            raise Busy
        job = Job(secrets.token_urlsafe(16), ask)
        self._jobs[job.name] = job
        self._tasks[job.name] = asyncio.create_task(self._run(job, question))
        return job

    def _forget(self) -> None:
        """Drop answers that were kept long enough; where there is no room, the oldest that is over."""
        now = time.monotonic()
        over = sorted((job for job in self._jobs.values() if job.over), key=lambda job: job.ended)
        for job in over:
            if now - job.ended > self._limits.kept_seconds or len(self._jobs) >= self._limits.jobs:
                del self._jobs[job.name]

    async def _run(self, job: Job, question: dict[str, Any]) -> None:
        def report(done: int, total: int) -> None:
            job.state, job.done, job.total = "running", done, total

        try:
            status, job.answer = await self._crowd.ask(job.ask, question, self._limits.job_seconds, report)
            job.state = {200: "done", 422: "refused"}.get(status, "failed")
        except TooLong:
            job.state, job.answer = "failed", _words(f"took more than {self._limits.job_seconds:g} s and was stopped")
        except Busy:
            job.state, job.answer = "failed", _words("too many questions wait")
        except Lost:
            job.state, job.answer = "failed", _words("the process that computed it ended: ask for less, or again")
        except asyncio.CancelledError:
            job.state = "cancelled"
        finally:
            job.ended = time.monotonic()
            self._tasks.pop(job.name, None)

    def get(self, name: str) -> Job | None:
        """Find a job.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        Job or None
            The job; None if there is none of that name, or no longer.
        """
        return self._jobs.get(name)

    def cancel(self, job: Job) -> None:
        """Stop a job; what is over stays as it is.

        Parameters
        ----------
        job : Job
            The job.
        """
        task = self._tasks.get(job.name)
        if task is not None:
            task.cancel()
            job.state = "cancelled"

    def count(self) -> dict[str, int]:
        """Jobs by state, [-]"""
        states = [job.state for job in self._jobs.values()]
        return {state: states.count(state) for state in sorted(set(states))}

    async def close(self) -> None:
        """Stop all jobs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _words(text: str) -> bytes:
    return json.dumps({"error": {"kind": "Job", "message": text}}).encode()
