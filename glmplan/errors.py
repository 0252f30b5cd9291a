"""Errors that glmplan raises on purpose.

::

    GlmplanError
    ├── SpecError            a file, a field or an argument is wrong (exit code 2)
    │   ├── UnknownName      a model, accelerator, host or engine outside the catalogue; lists the nearest names
    │   ├── UnknownArchitecture   a config whose architecture glmplan cannot compute, with the reason
    │   └── NoServer         no usable server at an address
    └── Infeasible           an answer, not a mistake: nothing satisfies the request (exit code 0)
        ├── DoesNotFit       memory is short on some rank
        └── UnknownFact      a needed value is not published; nothing is invented
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "CONTROLS",
    "DoesNotFit",
    "GlmplanError",
    "Infeasible",
    "NoServer",
    "SpecError",
    "UnknownArchitecture",
    "UnknownFact",
    "UnknownName",
    "nearest",
    "printable",
]

#: most characters of a wrong value in a message
_LONGEST = 300


def nearest(name: str, choices: Iterable[str], count: int = 5, *, alike: float = 0.45) -> list[str]:
    """Return the choices most similar to a name, best first.

    `alike`: least share of common letters, as `difflib` counts it.

    Examples
    --------
    >>> nearest("h20-sxm", ["h200-sxm", "b200-sxm", "mi300x"], 1)
    ['h200-sxm']
    """
    plain = {choice.lower(): choice for choice in sorted(set(choices))}
    return [
        plain[get_close_match]
        for get_close_match in difflib.get_close_matches(name.lower(), sorted(plain), n=count, cutoff=alike)
    ]


#: control characters, invisible ones that change direction or join text, and half characters
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)


def printable(text: object) -> str:
    """Return a text that a terminal shows without other effects.

    Control characters other than line ends and tabs are escaped as in Python.

    Examples
    --------
    >>> printable("red " + chr(27) + "[31m") == "red " + chr(92) + "x1b[31m"
    True
    """
    words = str(text)
    return words if words.isascii() and words.isprintable() else CONTROLS.sub(_written, words)


def _written(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in "\n\t":
        return letter
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def _shown(value: object) -> str:
    """Return a value as Python writes it, cut if long.

    A wrong value may be a whole file.
    """
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class GlmplanError(Exception):
    """Base of all errors that glmplan raises on purpose."""


class SpecError(GlmplanError, ValueError):
    """Wrong input, with file, field, value and nearest valid choice.

    Examples
    --------
    >>> print(SpecError("is not a KV cache format", field="--kv", value="fp9", choices=["fp8", "bf16"]))
    --kv: 'fp9' is not a KV cache format; nearest: fp8
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        value: object = None,
        choices: Iterable[str] = (),
    ) -> None:
        self.message, self.file, self.field, self.value = message, file, field, value
        # the order of a set differs between processes
        self.choices = sorted(choices) if isinstance(choices, set | frozenset) else list(choices)
        where = ": ".join(str(part) for part in (file, field) if part is not None)
        what = f"{_shown(value)} {message}" if value is not None else message
        text = f"{where}: {what}" if where else what
        if self.choices:
            close = nearest(str(value), self.choices) if value is not None else []
            text += f"; nearest: {', '.join(close)}" if close else f"; choices: {', '.join(self.choices[:40])}"
        super().__init__(printable(text))


class UnknownName(SpecError):
    """Name outside the catalogue. Nothing is ever substituted for it."""


class UnknownArchitecture(SpecError):
    """Model config that glmplan cannot compute, with the reason."""


class NoServer(SpecError):
    """No usable server at the given address."""


class Infeasible(GlmplanError):
    """Nothing satisfies the request.

    This is an expected outcome, which callers turn into an answer.
    """


class DoesNotFit(Infeasible):
    """Memory is short on some rank."""


class UnknownFact(Infeasible):
    """A needed value of an accelerator is not published."""
