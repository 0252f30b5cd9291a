"""Write answers to the terminal: width, colours, tables, progress."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from glmplan.errors import printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from glmplan.io.runs.record import Runs

__all__ = [
    "Form",
    "RecordForm",
    "bar",
    "console",
    "error_words",
    "frame_text",
    "has_colours",
    "joined",
    "painted",
    "read_table",
    "say",
    "speak_any_language",
    "steps",
    "width",
]


#: default columns without a terminal, and smallest width of a page [-]
_WIDTH, _LEAST = 100, 60


def width() -> int:
    """Return the columns of the terminal, at least 60; 100 for a file or pipe."""
    return max(shutil.get_terminal_size((_WIDTH, 24)).columns, _LEAST) if sys.stdout.isatty() else _WIDTH


def has_colours(stream: TextIO) -> bool:
    """Return True if a stream is a terminal that shows colours.

    The result is False for files, pipes and dumb terminals, and if `NO_COLOR` is set [1]_.

    References
    ----------
    .. [1] https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def error_words(message: object) -> str:
    """Return an error as one line, with the program name in red."""
    name = "\033[1;31mglmplan:\033[0m" if has_colours(sys.stderr) else "glmplan:"
    return f"{name} {printable(message)}"


class _Painted(str):
    """Text whose escape sequences were written by glmplan."""


def painted(text: str) -> str:
    """Return a text whose escape sequences `say` prints.

    Parts of the text from files or servers must not contain control characters.
    """
    return _Painted(text)


def speak_any_language() -> None:
    """Let the output streams escape letters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text with escaped control characters.

    The text may come from a server or a file.
    """
    print(text if isinstance(text, _Painted) else printable(text), file=sys.stderr if err else sys.stdout, end=end)


def console(*, stderr: bool = False, columns: int | None = None) -> Console:
    """Return a rich console without markup, emoji and escape sequences."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **styles: Any) -> Text:
            """Return the plain text; options of the caller are ignored."""
            kept = {name: styles[name] for name in ("style", "justify", "overflow") if styles.get(name)}
            return Text(printable(text), **kept)

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False, width=columns)


# Output formats of commands.


class RecordForm(StrEnum):
    """Output format of an entry of the catalogue."""

    text = "text"
    json = "json"
    toml = "toml"


class Form(StrEnum):
    """Output format of an answer."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


# A progress bar on standard error, shown only on a terminal.


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; yield a function of the work done and in total."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def steps(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of work in several parts, named `title` at first.

    Yield a function of the name of a part, its work done and its work in total.
    """
    if not sys.stderr.isatty():
        yield lambda part, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda part, done, total: progress.update(task, description=part, completed=done, total=total)


# Tables of runs as input, and printed tables.


def read_table(path: Path) -> Runs:
    """Return a table of runs; print its warnings on the error stream."""
    from glmplan.io.runs.ledger import with_known_names
    from glmplan.io.runs.table import read_runs

    found = with_known_names(read_runs(path))
    for warning in found.warnings:
        say(f"warning: {warning}", err=True)
    return found


def frame_text(frame: pd.DataFrame, form: Form) -> str:
    """Return a table in a format of `--format`; numbers have six digits."""
    if form is Form.json:
        return str(frame.to_json(orient="records", double_precision=6, indent=1)) + "\n"
    if form is Form.md:
        from glmplan.present.tables import digits, markdown_table

        return markdown_table(list(frame.columns), (map(digits, row) for row in frame.itertuples(index=False))) + "\n"
    from glmplan.catalog.tables import csv_of

    return csv_of(frame)


# Options that are lists: with commas, or repeated.


def joined(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with repeated values joined by commas.

    Options without a value are left out.

    Examples
    --------
    >>> joined({"model": ["a,b", "c"], "on": [], "most": 5, "engine": None})
    {'model': 'a,b,c', 'most': 5}
    """
    texts = {name: _text(value) for name, value in said.items()}
    return {name: value for name, value in texts.items() if value is not None}


def _text(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(value) if value else None
    return value
