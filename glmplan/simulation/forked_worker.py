"""A second process for every other job of a search, given a second core."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

__all__ = ["ForkedWorker", "forked_worker"]

Job = TypeVar("Job")
Done = TypeVar("Done")


class ForkedWorker(Generic[Job, Done]):
    """A forked copy of this process that runs the second of two jobs.

    - `work`: Runs a job. The copy has the state of this process at the fork; later changes reach it only through jobs.
    - `copied`: Fork a copy; otherwise this process runs both jobs.

    Notes
    -----
    If the copy fails, this process runs the job itself, so errors are the same as with one process.
    """

    def __init__(self, work: Callable[[Job], Done], copied: bool = False) -> None:
        self._work, self._copy = work, 0
        if copied:
            self._split()

    def both(self, one: Job, other: Job) -> tuple[Done, Done]:
        """Return the results of two jobs; the second job must be picklable."""
        asked = self._ask(other)
        first = self._work(one)
        second = self._answer() if asked else None
        return first, self._work(other) if second is None else second[0]

    def close(self) -> None:
        """End the copy."""
        if self._copy:
            self._to.close()
            self._from.close()
            with suppress(OSError):
                os.waitpid(self._copy, 0)
            self._copy = 0

    def _split(self) -> None:
        jobs, answers = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            # Python warns that locks of other threads stay held after a fork; numpy resets its own, and no others run
            warnings.simplefilter("ignore", DeprecationWarning)
            self._copy = os.fork()
        if not self._copy:
            os.close(jobs[1])
            os.close(answers[0])
            self._serve(jobs[0], answers[1])
        os.close(jobs[0])
        os.close(answers[1])
        self._to, self._from = os.fdopen(jobs[1], "wb"), os.fdopen(answers[0], "rb")

    def _serve(self, jobs: int, answers: int) -> None:
        """Run jobs in the copy until the pipe closes; never returns."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it
            with os.fdopen(jobs, "rb") as asked, os.fdopen(answers, "wb") as told:
                while True:
                    pickle.dump((self._work(pickle.load(asked)),), told, pickle.HIGHEST_PROTOCOL)
                    told.flush()
        finally:
            os._exit(0)  # skips the exit handlers, which belong to the parent

    def _ask(self, job: Job) -> bool:
        if not self._copy:
            return False
        try:
            pickle.dump(job, self._to, pickle.HIGHEST_PROTOCOL)
            self._to.flush()
        except OSError:
            self.close()
            return False
        return True

    def _answer(self) -> tuple[Done] | None:
        try:
            found: tuple[Done] = pickle.load(self._from)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            return None
        return found


@contextmanager
def forked_worker(work: Callable[[Any], Any], *, copied: bool) -> Iterator[ForkedWorker[Any, Any]]:
    """Yield a worker that runs every second job in a forked process.

    `copied`: Allow the fork; it is made on Linux with a second core.

    Examples
    --------
    >>> with forked_worker(lambda number: number * number, copied=True) as two:
    ...     two.both(3, 4)
    (9, 16)
    """
    able = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
    two = ForkedWorker[Any, Any](work, copied and able)
    try:
        yield two
    finally:
        two.close()
