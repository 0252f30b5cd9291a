"""Prompts of an exact number of tokens, with unique or shared beginnings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from glmplan.catalog.files import parse_json
from glmplan.errors import SpecError
from glmplan.measure.client import Client, Outcome, Prompt
from glmplan.units import TokenCount

__all__ = ["PromptMaker", "prepare_prompts"]

#: Short words that nearly every vocabulary holds whole, with a space before them.
# fmt: off
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you", "were",
    "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more",
    "if", "out", "so", "up", "what", "about", "can", "time", "some", "could", "them", "other", "than", "then", "now",
    "only", "its", "over", "also", "new", "after", "first", "man", "well", "two", "may", "way", "our", "work",
)
# fmt: on


#: tokens of a chat template, at most; published default prompts have some thousands
_TEMPLATE = 8192
#: time limit of one way to learn lengths: twelve words in requests of one token [s]
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Make prompts of known length."""

    words: tuple[str, ...]  # of equal cost
    cost: TokenCount  # of a word with the space before it
    frame: TokenCount  # besides words: begin token, chat template
    method: str  # how lengths are known
    filler: tuple[str, ...] = ()  # texts of one token, to fill up where words cost several

    def make(self, tokens: TokenCount, chance: random.Random, *, shared: TokenCount = 0) -> Prompt:
        """Return one prompt; `shared` tokens at its start are common to all.

        Examples
        --------
        >>> maker = PromptMaker(("a", "b"), 1, 2, "test")
        >>> len(maker.make(10, random.Random(0)).split())
        8
        """
        room = max(tokens - self.frame, 1)
        count, rest = divmod(room, self.cost)
        same = min(max(shared - self.frame, 0) // self.cost, count)
        # the shared beginning does not depend on this prompt's seed
        begin = random.Random(same and 7).choices(self.words, k=same)
        words = begin + chance.choices(self.words, k=count - same)
        words += chance.choices(self.filler, k=rest) if self.filler else []
        return " " + " ".join(words) if words else " " + self.words[0]


async def prepare_prompts(client: Client, *, tokenizer: str | None = None) -> PromptMaker:
    """Return a prompt maker with exact lengths for a server.

    Tried in this order: the server's `/tokenize` (vLLM, SGLang, llama.cpp), a local tokenizer (file or folder of the
    `tokenizers` package), `usage` of a few requests of one token.
    """
    ways: list[tuple[str, Callable[[str], Awaitable[int | None]]]] = []
    if tokenizer is not None:
        ways.append(("local tokenizer", _local(tokenizer)))
    ways += [
        ("server tokenizer", lambda text: _served(client, text)),
        ("measured", lambda text: _measured(client, text)),
    ]
    for method, count in ways:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                maker = await _learn(client, count, method)
            if maker is not None:
                return maker
    raise SpecError("tells no prompt length, neither by a tokenizer page nor in usage; give --tokenizer", field="--url")


async def _learn(client: Client, count: Callable[[str], Awaitable[int | None]], method: str) -> PromptMaker | None:
    """Return a prompt maker from token counts of whole texts."""
    frame_by_usage = method != "measured"
    candidates = _WORDS if frame_by_usage else _WORDS[:12]
    costs: dict[str, int] = {}
    for word in candidates:
        few, many = await count(f" {word}" * 4), await count(f" {word}" * 12)
        if few is None or many is None:
            return None
        if (many - few) % 8 == 0 and many > few:
            costs[word] = (many - few) // 8
    if not costs:
        return None
    cheapest = min(costs.values())
    words = tuple(word for word, cost in costs.items() if cost == cheapest)
    sample = " " + " ".join((words * 32)[:32])
    total = await (_measured(client, sample) if frame_by_usage else count(sample))
    if total is None:
        total = await count(sample)
    if total is None:
        return None
    frame = total - 32 * cheapest
    filler: list[str] = []
    for piece in (".", ",", "a", "x", "?", "0") if cheapest > 1 else ():
        longer = await count(sample + f" {piece}")
        shorter = await count(sample)
        if longer is not None and shorter is not None and longer - shorter == 1:
            filler.append(piece)
    return PromptMaker(words, cheapest, max(frame, 0), method, tuple(filler))


async def _served(client: Client, text: str) -> int | None:
    for body in ({"model": client.endpoint.model, "prompt": text}, {"content": text}):
        try:
            status, content = await client.page(f"{client.endpoint.root}/tokenize", body=body)
            value = parse_json(content) if status == 200 else None
        except (httpx.HTTPError, OSError, TimeoutError, ValueError):
            return None
        if not isinstance(value, dict):
            continue
        tokens, count = value.get("tokens"), value.get("count")
        # a token has at least a byte, and templates are short
        limit = len(text.encode()) + _TEMPLATE
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= limit:
            return count
        if isinstance(tokens, list) and 0 < len(tokens) <= limit:
            return len(tokens)
    return None


async def _measured(client: Client, text: str) -> int | None:
    record = await client.send(text, 1)
    answered = record.outcome in (Outcome.DONE, Outcome.EMPTY)
    plausible = answered and 0 < record.input_tokens <= len(text.encode()) + _TEMPLATE
    return record.input_tokens if plausible else None


def _local(path: str) -> Callable[[str], Awaitable[int | None]]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SpecError("needs the package 'tokenizers'", field="--tokenizer", value=path) from None
    from pathlib import Path

    file = Path(path)
    try:
        loaded = Tokenizer.from_file(str(file / "tokenizer.json" if os.path.isdir(file) else file))
    except Exception as error:  # the package raises bare Exception
        raise SpecError(f"cannot be read: {error}", field="--tokenizer", value=path) from None

    async def count(text: str) -> int | None:
        return len(loaded.encode(text, add_special_tokens=False).ids)

    return count
