"""The terminal that an answer is shown on: how wide it is, and whether it shows colours."""

from __future__ import annotations

import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

from glmplan.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "error_words", "has_colours", "painted", "say", "speak_any_language", "width"]

#: columns where no terminal says how many, and columns below which no page is made [-]
_WIDTH, _LEAST = 100, 60


def width() -> int:
    """Columns to write for.

    Returns
    -------
    int
        Those of the terminal, but 60 at least; 100 where the output is a file or a pipe, [-]
    """
    return max(shutil.get_terminal_size((_WIDTH, 24)).columns, _LEAST) if sys.stdout.isatty() else _WIDTH


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody asked for none.

    Parameters
    ----------
    stream : text stream
        Where something is written.

    Returns
    -------
    bool
        False for files and pipes, where `NO_COLOR` is set, and on a terminal that calls itself dumb.

    References
    ----------
    .. [1] https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def error_words(message: object) -> str:
    """Write an error as one line for the error stream.

    Parameters
    ----------
    message : object
        The error.

    Returns
    -------
    str
        The name of the program, red on a terminal, and the message.
    """
    name = "\033[1;31mglmplan:\033[0m" if has_colours(sys.stderr) else "glmplan:"
    return f"{name} {printable(message)}"


class _Painted(str):
    """A text whose escape sequences are our own."""


def painted(text: str) -> str:
    """Mark a text as one whose escape sequences were written by glmplan, so that `say` lets them pass.

    Parameters
    ----------
    text : str
        The text; nothing from outside in it may hold a control character.

    Returns
    -------
    str
        The same text.
    """
    return _Painted(text)


def speak_any_language() -> None:
    """Let the output streams take every letter: one that their encoding lacks is written as in Python."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Write a text to the terminal, where it is shown and does nothing else.

    Parameters
    ----------
    text : object, optional
        Anything, also words of a server or of a file.
    err : bool, optional
        Write to the error stream.
    end : str, optional
        What follows.
    """
    print(text if isinstance(text, _Painted) else printable(text), file=sys.stderr if err else sys.stdout, end=end)


def console(*, stderr: bool = False, columns: int | None = None) -> Console:
    """Return a console of rich that takes no text for markup, emoji or an escape sequence.

    Parameters
    ----------
    stderr : bool, optional
        Write to the error stream.
    columns : int, optional
        Width; that of the terminal by default, [-]

    Returns
    -------
    Console
        The console.
    """
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **styles: Any) -> Text:
            """Take a text as it is, whatever a caller or a default asks for."""
            kept = {name: styles[name] for name in ("style", "justify", "overflow") if styles.get(name)}
            return Text(printable(text), **kept)

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False, width=columns)
