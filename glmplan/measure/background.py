"""Background threads that a program does not wait for when it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

__all__ = ["DaemonThreads"]

Words = ParamSpec("Words")
Answer = TypeVar("Answer")


class DaemonThreads(ThreadPoolExecutor):
    """Executor whose threads may outlive it.

    A silent name server holds a look-up for half a minute. The executors of the standard library are joined when the
    event loop and the interpreter end.

    Examples
    --------
    >>> DaemonThreads().submit(sum, [1, 2]).result()
    3
    """

    def submit(self, call: Callable[Words, Answer], /, *words: Words.args, **named: Words.kwargs) -> Future[Answer]:
        """Start a thread for one call."""
        future: Future[Answer] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*words, **named))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, *unused: Any, **unused_too: Any) -> None:
        """Return at once."""
