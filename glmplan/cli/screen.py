"""The terminal that an answer is shown on: how wide it is, and whether it shows colours."""

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
    "Section",
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


#: columns where no terminal says how many, and columns below which no page is made [-]
_WIDTH, _LEAST = 100, 60


def width() -> int:
    """Columns to write for.

    Returns: Those of the terminal, but 60 at least; 100 where the output is a file or a pipe.
    """
    return max(shutil.get_terminal_size((_WIDTH, 24)).columns, _LEAST) if sys.stdout.isatty() else _WIDTH


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody asked for none.

    Returns: False for files and pipes, where `NO_COLOR` is set, and on a terminal that calls itself dumb.

    References
    ----------
    .. [1] https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def error_words(message: object) -> str:
    """Write an error as one line for the error stream.

    Returns: The name of the program, red on a terminal, and the message.
    """
    name = "\033[1;31mglmplan:\033[0m" if has_colours(sys.stderr) else "glmplan:"
    return f"{name} {printable(message)}"


class _Painted(str):
    """A text whose escape sequences are our own."""


def painted(text: str) -> str:
    """Mark a text as one whose escape sequences were written by glmplan, so that `say` lets them pass.

    `text`: The text; nothing from outside in it may hold a control character.
    """
    return _Painted(text)


def speak_any_language() -> None:
    """Let the output streams take every letter: one that their encoding lacks is written as in Python."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Write a text to the terminal, where it is shown and does nothing else.

    `text`: Anything, also words of a server or of a file.
    """
    print(text if isinstance(text, _Painted) else printable(text), file=sys.stderr if err else sys.stdout, end=end)


def console(*, stderr: bool = False, columns: int | None = None) -> Console:
    """Return a console of rich that takes no text for markup, emoji or an escape sequence."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **styles: Any) -> Text:
            """Take a text as it is, whatever a caller or a default asks for."""
            kept = {name: styles[name] for name in ("style", "justify", "overflow") if styles.get(name)}
            return Text(printable(text), **kept)

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False, width=columns)


# Forms that commands print their answers in.


class Form(StrEnum):
    """How an answer is shown."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


class Section(StrEnum):
    """Parts of the page of `glmplan fit`, in their order; `tests/cli` holds them against the page's own."""

    memory = "memory"
    traffic = "traffic"
    users = "users"
    layouts = "layouts"
    changes = "changes"
    warnings = "warnings"
    start = "start"
    basis = "basis"


# A progress bar on standard error that stays away when nobody looks.


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while something runs.

    Yields: To be called with how much is done, and of how much.
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

    - `title`: What is being done, until the first part says so.
    - Yields: To be called with the name of the part, how much of it is done, and of how much.
    """
    if not sys.stderr.isatty():
        yield lambda part, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda part, done, total: progress.update(task, description=part, completed=done, total=total)


# Tables of runs that a command is given, and tables that it prints.


def read_table(path: Path) -> Runs:
    """Read a table of runs and say on the error stream what of it is ignored or taken for granted."""
    from glmplan.io.runs.ledger import with_known_names
    from glmplan.io.runs.table import read_runs

    found = with_known_names(read_runs(path))
    for warning in found.warnings:
        say(f"warning: {warning}", err=True)
    return found


def frame_text(frame: pd.DataFrame, form: Form) -> str:
    """A table in one of the forms of `--format`.

    Returns: Text that ends with a line break; figures have six digits.
    """
    if form is Form.json:
        return str(frame.to_json(orient="records", double_precision=6, indent=1)) + "\n"
    if form is Form.md:
        from glmplan.present.tables import digits, markdown_table

        return markdown_table(list(frame.columns), (map(digits, row) for row in frame.itertuples(index=False))) + "\n"
    return str(frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


# Options that are lists: with commas, and said again.


def joined(said: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of what was said once or several times, as one text with commas.

    - `said`: Option → what was said; a sequence where it may be said again.
    - Returns: The same with texts; without options that were not said.

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
