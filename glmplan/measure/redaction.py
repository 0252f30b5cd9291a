"""Redact external text: remove secrets first, then cut the text.

Server output passes `Outside.clean` on entry; all records pass `Outside.plain` on exit. Guarantees and tests:
`SECURITY.md`.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from glmplan.errors import CONTROLS, SpecError, printable

__all__ = ["Outside", "api_key"]

_KEYS = ("GLMPLAN_API_KEY", "OPENAI_API_KEY")
#: shorter words (EMPTY, none, dummy) are not secrets
_LEAST = 6
#: length of a fragment of a secret that is redacted anywhere
_PART = 8
#: length of a secret's start that is redacted at the end of a text, where it may have been cut
_BEGIN = 4
#: characters that are read; kept text is far shorter
_MOST = 1 << 14
_DEEPEST = 12
#: length of cached redactions: the same few short texts are in every journal line
_SHORT = 64
_BLOT = "***"
_WITHHELD = "*** (withheld: the key in another writing)"
_ESCAPED = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")


def api_key() -> str | None:
    """Return the API key from the environment, for a header only."""
    name = next((name for name in _KEYS if os.environ.get(name, "").strip()), None)
    if name is None:
        return None
    key = os.environ[name].strip()
    wrong = next((place for place, letter in enumerate(key, 1) if not "!" <= letter <= "~"), None)
    if wrong is not None:
        raise SpecError(f"has a character at place {wrong} that no header can carry", field=name)
    return key


class Outside:
    """Redact secrets: complete, in fragments and in other encodings.

    Secrets below 6 characters are ignored.

    Examples
    --------
    >>> outside = Outside(["sk-not-to-be-seen"])
    >>> outside.clean("no such key: sk-not-to-be-seen")
    'no such key: ***'
    >>> outside.clean("begins with sk-not-to-b...")
    'begins with ***...'
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _LEAST for form in _forms(secret)}
        self._begins = {form[:length] for form in forms for length in range(_BEGIN, min(len(form), _PART) + 1)}
        self._parts: dict[int, set[str]] = {}
        for form in forms:
            width = min(len(form), _PART)
            parts = self._parts.setdefault(width, set())
            parts.update(form[place : place + width] for place in range(len(form) - width + 1))
        self._short = lru_cache(maxsize=1024)(self.blot)

    def blot(self, text: str) -> str:
        """Return a text without secrets, withheld if one is encoded in it.

        The text may be cut at its end only.
        """
        if not self._parts or not text:
            return text
        redacted = self._marked(text)
        if redacted == text and any(self._marked(other) != other for other in _readings(text)):
            return _WITHHELD
        if redacted != text and any(self._marked(other) != other for other in _readings(redacted)):
            return _WITHHELD
        return redacted

    def clean(self, text: object, most: int = 300) -> str:
        """Return external text redacted, without control characters, then cut."""
        # control characters inside a secret must not hide it
        redacted = printable(self.blot(str(text)[:_MOST])).replace("\n", " ").replace("\t", " ")
        return redacted if len(redacted) <= most else redacted[: most - 1] + "…"

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a value for a JSON record: texts redacted, numbers finite.

        None replaces NaN and infinity; at most 12 levels deep.
        """
        if isinstance(value, str):
            return printable(self._short(value) if len(value) <= _SHORT else self.blot(value))
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if depth >= _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {self.plain(str(name)): self.plain(held, depth + 1) for name, held in value.items()}
        if isinstance(value, Iterable):
            return [self.plain(held, depth + 1) for held in value]
        return self.plain(str(value))

    def _marked(self, text: str) -> str:
        """Return the text with fragments of a secret redacted, in any case."""
        lower = text.lower()
        if len(lower) != len(text):
            lower = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
        spans = [
            (place, place + width)
            for width, parts in self._parts.items()
            for place in range(len(lower) - width + 1)
            if lower[place : place + width] in parts
        ]
        spans += [
            (len(lower) - length, len(lower))
            for length in range(_BEGIN, min(_PART, len(lower) + 1))
            if lower[len(lower) - length :] in self._begins
        ]
        out, last = [], 0
        for begin, end in _joined(sorted(spans)):
            out += [text[last:begin], _BLOT]
            last = end
        return "".join([*out, text[last:]])


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield overlapping or touching spans merged."""
    current: tuple[int, int] | None = None
    for begin, end in spans:
        if current is not None and begin <= current[1]:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current
        current = begin, end
    if current is not None:
        yield current


def _forms(secret: str) -> Iterator[str]:
    """Yield the encodings of a secret in lower case."""
    raw = secret.encode(errors="replace")
    written = [secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], html.escape(secret)]
    written += [repr(secret)[1:-1], raw.hex()]
    for shift in range(3):
        # in base64 of a longer text, the outer letters depend on the neighbours: they are left out, except at the end
        # of the text
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(bytes(shift) + raw).decode()[(8 * shift + 5) // 6 :]
            written += [encoded, encoded.rstrip("=")[:-1]]
    yield from {form.lower() for form in written if len(form) >= _LEAST}


def _readings(text: str) -> Iterator[str]:
    """Yield decodings of a text: without escapes, without separators."""
    once = text
    for _ in range(3):
        once = html.unescape(unquote_plus(_ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), once)))
    yield once
    yield re.sub(r"[\s\\\"'+,]", "", CONTROLS.sub("", once))
