"""A progress bar on standard error that stays away when nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from glmplan.cli.screen import console

__all__ = ["bar", "steps"]


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while something runs.

    Parameters
    ----------
    title : str
        What is being done.

    Yields
    ------
    callable
        To be called with how much is done, and of how much, [-]
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def steps(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show what is being done and how far it is, for work of several parts.

    Parameters
    ----------
    title : str
        What is being done, until the first part says so.

    Yields
    ------
    callable
        To be called with the name of the part, how much of it is done, and of how much, [-]
    """
    if not sys.stderr.isatty():
        yield lambda part, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda part, done, total: progress.update(task, description=part, completed=done, total=total)
