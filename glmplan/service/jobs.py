"""Answer long questions in the background, also after a restart.

Each change of a job is written to an SQLite file before the response. A service that is killed finds its waiting
jobs and its answers again; a running job starts anew, at most `STARTS` times.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from glmplan.errors import SpecError
from glmplan.service.guard import Limits
from glmplan.units import Seconds

__all__ = ["STARTS", "Busy", "Job", "JobFile", "Jobs", "Lost", "Pool", "TooLong", "error_body"]

_LOG = logging.getLogger("glmplan.service")
#: maximum starts of a job: one that ends the service each time is not started again [-]
STARTS = 3
#: version of the table of jobs
_VERSION = 1


class Busy(Exception):
    """The maximum number of questions is waiting."""


class TooLong(Exception):
    """An answer exceeded its time limit."""


class Lost(Exception):
    """A process ended before it answered."""


class Pool(Protocol):
    """Worker processes, as jobs use them."""

    async def ask(
        self,
        ask: str,
        question: dict[str, Any],
        seconds: Seconds,
        report: Callable[[int, int], None] | None = None,
        *,
        accepted: bool = False,
    ) -> tuple[int, bytes]:
        """Return the HTTP status and the answer of a question."""


@dataclass(slots=True, eq=False)
class Job:
    """A long question that is computed in the background."""

    name: str  # random name, which cannot be guessed
    number: int  # order of acceptance
    ask: str  # name of the question
    question: str  # fields of the question as JSON
    state: str = "waiting"  # ``waiting``, ``running``, ``done``, ``refused``, ``failed`` or ``cancelled``
    starts: int = 0  # starts of the computation, [-]
    #: `done`, `total`: finished and total work, [-]
    done: int = 0
    total: int = 0
    #: `begun`, `ended`: monotonic times of start and end; 0 before, [s]
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    answer: bytes = b""  # the answer as JSON

    @property
    def over(self) -> bool:
        """True if the job has ended."""
        return bool(self.ended)

    def record(self) -> dict[str, Any]:
        """Return the job as a record."""
        seconds = (self.ended or time.monotonic()) - self.begun
        found: dict[str, Any] = {"job": self.name, "ask": self.ask, "state": self.state, "seconds": round(seconds, 3)}
        found["progress"] = {"done": self.done, "total": self.total} if self.total else None
        return found


class JobFile:
    """SQLite file of jobs, used by one process at a time.

    - `path`: Path of the file, which is created for this user only; empty for jobs in memory.

    Examples
    --------
    >>> with JobFile("") as file:
    ...     file.put(Job("a", 1, "size", "{}"))
    ...     [job.name for job in file.jobs(3600.0)]
    ['a']
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            if path:
                Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                Path(path).touch(mode=0o600)  # questions are private
            # statements are transactions of their own: the response to a client follows the write
            self._base = sqlite3.connect(path or ":memory:", timeout=0.0, isolation_level=None)
            self._base.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._base.execute("PRAGMA journal_mode=WAL")
            [version] = self._base.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise SpecError(f"was written by another version of glmplan ({version})", field="--jobs", value=path)
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, number INTEGER, ask TEXT, question TEXT, "
                "state TEXT, starts INTEGER, begun REAL, ended REAL, answer BLOB)"
            )
            self._base.execute(f"PRAGMA user_version={_VERSION}")
        except (sqlite3.Error, OSError) as error:
            used = "locked" in str(error)
            reason = "is used by another process" if used else f"cannot be opened as a file of jobs: {error}"
            raise SpecError(reason, field="--jobs", value=path) from None

    def __enter__(self) -> JobFile:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def put(self, job: Job) -> None:
        """Write a job; its times are written by the wall clock."""
        now, clock = time.time(), time.monotonic()
        ended = now - (clock - job.ended) if job.over else None
        self._base.execute(
            "REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (job.name, job.number, job.ask, job.question, job.state, job.starts, now - (clock - job.begun), ended,
             job.answer),
        )  # fmt: skip

    def drop(self, job: Job) -> None:
        """Delete a job."""
        self._base.execute("DELETE FROM jobs WHERE name = ?", (job.name,))

    def jobs(self, kept: Seconds) -> Iterator[Job]:
        """Yield the jobs in the order of acceptance.

        - `kept`: Time until an ended job is deleted. A wall clock that was set back extends it by that time at most.
        """
        now, clock = time.time(), time.monotonic()
        rows = self._base.execute(
            "SELECT name, number, ask, question, state, starts, begun, ended, answer FROM jobs ORDER BY number"
        ).fetchall()
        for name, number, ask, question, state, starts, begun, ended, answer in rows:
            job = Job(name, number, ask, question, state, starts, answer=answer)
            age = 0.0 if ended is None else min(max(now - ended, 0.0), kept + 1.0)
            job.ended = 0.0 if ended is None else clock - age
            job.begun = (job.ended or clock) - max((now if ended is None else ended) - begun, 0.0)
            yield job

    def close(self) -> None:
        """Close the file."""
        self._base.close()


class Jobs:
    """All jobs of a service.

    - `pool`: Processes that compute them.
    - `limits`: Limits of the service, with the path of the file.
    """

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self._pool, self._limits = pool, limits
        self._file = JobFile(limits.job_file)
        self._jobs = {job.name: job for job in self._file.jobs(limits.kept_seconds)}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing = False

    def resume(self) -> None:
        """Start the jobs that a previous service did not end."""
        self._forget()
        for job in self._jobs.values():
            if not job.over:
                job.state = "waiting"
                self._tasks[job.name] = asyncio.create_task(self._run(job))

    def begin(self, ask: str, question: dict[str, Any]) -> Job:
        """Start a job and return it.

        Raises `Busy` when too many jobs wait, or when answers fill all places; `sqlite3.Error` when the file cannot be
        written.
        """
        self._forget(room=True)
        if len(self._jobs) >= self._limits.jobs or len(self._waiting()) >= self._limits.waiting:
            raise Busy
        last = max((job.number for job in self._jobs.values()), default=0)
        job = Job(secrets.token_urlsafe(16), last + 1, ask, json.dumps(question))
        self._file.put(job)
        self._jobs[job.name] = job
        self._tasks[job.name] = asyncio.create_task(self._run(job))
        return job

    def _waiting(self) -> list[Job]:
        """Return the waiting jobs, the next one first."""
        return [job for job in self._jobs.values() if job.state == "waiting"]

    def record(self, job: Job) -> dict[str, Any]:
        """Return a job as a record; `place` is 1 for the next waiting job."""
        waiting = self._waiting()
        return job.record() | {"place": waiting.index(job) + 1 if job in waiting else None, "waiting": len(waiting)}

    def _forget(self, *, room: bool = False) -> None:
        """Delete expired jobs.

        - `room`: At the maximum of jobs the oldest ended one without an answer goes too.
        """
        now = time.monotonic()
        over = sorted((job for job in self._jobs.values() if job.over), key=lambda job: job.ended)
        for job in over:
            full = room and len(self._jobs) >= self._limits.jobs and job.state != "done"
            if full or now - job.ended > self._limits.kept_seconds:
                self._drop(job)

    def _drop(self, job: Job) -> None:
        self._jobs.pop(job.name, None)
        with suppress(sqlite3.Error):  # deleted again at the next start
            self._file.drop(job)

    async def _run(self, job: Job) -> None:
        def report(done: int, total: int) -> None:
            if job.state == "waiting":
                job.state, job.starts = "running", job.starts + 1
                self._put(job)
            job.done, job.total = done, total

        limits = self._limits
        try:
            if job.starts >= STARTS:
                raise Lost
            asked = json.loads(job.question)
            status, job.answer = await self._pool.ask(job.ask, asked, limits.job_seconds, report, accepted=True)
            job.state = {200: "done", 422: "refused"}.get(status, "failed")
        except TooLong:
            job.state = "failed"
            job.answer = error_body("Job", f"stopped after the time limit of {limits.job_seconds:g} s")
        except Lost:
            if self._closing:
                return
            job.state = "failed"
            job.answer = error_body("Job", "the worker process ended: reduce the question, or try again")
        except asyncio.CancelledError:
            return
        self._end(job)

    def _end(self, job: Job) -> None:
        self._tasks.pop(job.name, None)
        job.ended = time.monotonic()
        self._put(job)

    def _put(self, job: Job) -> None:
        """Write a job; without space on the disk it lives in memory only."""
        try:
            self._file.put(job)
        except sqlite3.Error as error:
            _LOG.error("a job cannot be written: %s", error)

    def get(self, name: str) -> Job | None:
        """Return the job of a name; None if there is none or it was deleted."""
        self._forget()
        return self._jobs.get(name)

    def cancel(self, job: Job) -> None:
        """Stop a job; delete one that has ended, whose place is then free."""
        if job.over:
            self._drop(job)
        else:
            # a task that has not begun runs no code of its own when it is cancelled
            self._tasks[job.name].cancel()
            job.state = "cancelled"
            self._end(job)

    def count(self) -> dict[str, int]:
        """Return the number of jobs by state, [-]."""
        states = [job.state for job in self._jobs.values()]
        return {state: states.count(state) for state in sorted(set(states))}

    async def close(self) -> None:
        """Stop all jobs; the next service starts unfinished ones again."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in self._jobs.values():
            if job.state == "running":  # an ordered end is no failed start
                job.starts -= 1
                self._put(job)
        self._file.close()


def error_body(kind: str, text: str) -> bytes:
    """Return an error as the JSON of a response.

    Examples
    --------
    >>> error_body("Busy", "try again later")
    b'{"error": {"kind": "Busy", "message": "try again later"}}'
    """
    return json.dumps({"error": {"kind": kind, "message": text}}).encode()
