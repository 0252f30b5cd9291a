"""A second process that takes every other piece of work, where the machine has a core for it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

__all__ = ["Beside", "beside"]

Job = TypeVar("Job")
Done = TypeVar("Done")


class Beside(Generic[Job, Done]):
    """A copy of this process that does the second of two jobs while this one does the first.

    Parameters
    ----------
    work : callable
        What is done with a job. The copy has all that this process had when it was made, and learns nothing of what
        happens here since but by its jobs.
    copied : bool, optional
        Whether there is a copy; without, this process does both.

    Notes
    -----
    Whatever goes wrong in the copy, this process does the job itself, so that errors are those of one process.
    """

    def __init__(self, work: Callable[[Job], Done], copied: bool = False) -> None:
        self._work, self._copy = work, 0
        if copied:
            self._split()

    def both(self, one: Job, other: Job) -> tuple[Done, Done]:
        """Do two jobs.

        Parameters
        ----------
        one, other : object
            The jobs; the other can be pickled, and so can what comes of it.

        Returns
        -------
        tuple
            What comes of them.
        """
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
            # other threads may hold locks for ever in a copy: those of numpy see to it themselves, and no others run
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
        """What the copy does until nobody asks any more; it never returns."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever made it ends it
            with os.fdopen(jobs, "rb") as asked, os.fdopen(answers, "wb") as told:
                while True:
                    pickle.dump((self._work(pickle.load(asked)),), told, pickle.HIGHEST_PROTOCOL)
                    told.flush()
        finally:
            os._exit(0)  # without what this process does at its end, which the other will do

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
def beside(work: Callable[[Any], Any], *, copied: bool) -> Iterator[Beside[Any, Any]]:
    """A second process for every other job, as long as the block lasts.

    Parameters
    ----------
    work : callable
        What is done with a job.
    copied : bool
        Whether a process may be made; one is where the system can copy processes and has a second core.

    Yields
    ------
    Beside
        Takes two jobs at a time.

    Examples
    --------
    >>> with beside(lambda number: number * number, copied=True) as two:
    ...     two.both(3, 4)
    (9, 16)
    """
    able = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
    two = Beside[Any, Any](work, copied and able)
    try:
        yield two
    finally:
        two.close()
