"""The terminal that an answer is shown on: how wide it is, and whether it shows colours."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

__all__ = ["error_words", "has_colours", "width"]

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
    return f"{name} {message}"
