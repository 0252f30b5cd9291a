"""How many tokens a request had: what the server says of it, held against what can be."""

from __future__ import annotations

from glmplan.measure.request_result import RequestRecord
from glmplan.measure.server_sent_events import Chunk

__all__ = ["count_tokens", "least_prompt_tokens", "most_prompt_tokens"]

#: tokens of a prompt beyond those sent that a template may add [token]
_TEMPLATE = 64
#: prompts too short to be held against what usage tells [token]
_SHORT = 32


def count_tokens(record: RequestRecord, usage: Chunk | None, asked: int) -> None:
    """Decide how many tokens there were.

    Parameters
    ----------
    record : RequestRecord
        The request, which gets its counts.
    usage : Chunk or None
        What the server says it used.
    asked : int
        Tokens that were asked for, [token]

    Notes
    -----
    A chunk holds one token or more, so fewer tokens than chunks is impossible. More chunks than tokens asked for are
    impossible too, but for one that ends the answer, and so are prompts of far more or far fewer tokens than were
    sent: then nobody knows what was measured, and ``doubt`` says why.

    Examples
    --------
    >>> from glmplan.measure.request_result import Outcome
    >>> record = RequestRecord(0.0, Outcome.DONE, input_tokens=64)
    >>> count_tokens(record, Chunk(False, False, prompt_tokens=1_000_000, completion_tokens=1), 1)
    >>> record.doubt
    'usage tells of 1,000,000 prompt tokens where 64 were sent'
    """
    if usage is None or usage.completion_tokens is None:
        record.output_tokens, record.counted_by = record.chunks, "chunks"
    elif not record.chunks - 1 <= usage.completion_tokens <= max(asked, 1) or usage.completion_tokens < 1:
        record.output_tokens, record.counted_by = record.chunks, "chunks, usage is wrong"
    else:
        record.output_tokens = usage.completion_tokens
    if record.chunks > asked + 1:
        record.doubt = f"{record.chunks} chunks with text for {asked} tokens"
    prompt, cached = (usage.prompt_tokens or 0, usage.cached_tokens or 0) if usage is not None else (0, 0)
    if prompt > most_prompt_tokens(record.input_tokens):
        told = f"{prompt:,}" if prompt < 10**12 else "10¹² or more"
        record.doubt = f"usage tells of {told} prompt tokens where {record.input_tokens:,} were sent"
    elif 0 < prompt < least_prompt_tokens(record.input_tokens):
        record.doubt = f"usage tells of {prompt:,} prompt tokens where {record.input_tokens:,} were sent"
    elif prompt > 0:
        record.input_tokens = prompt
    if 0 < cached <= record.input_tokens:
        record.cached_tokens = cached
    elif cached > record.input_tokens and not record.doubt:
        record.doubt = "usage tells of more cached tokens than the prompt has"


def most_prompt_tokens(sent: int) -> float:
    """Return what a prompt can have in tokens at most, the server's template included.

    Parameters
    ----------
    sent : int
        Tokens that were sent, as counted with the server's tokenizer; 0 where that is not known, [token]

    Returns
    -------
    float
        Bound, [token]

    Examples
    --------
    >>> most_prompt_tokens(64)
    144.0
    """
    return 1.25 * sent + _TEMPLATE if sent > 0 else 1e9


def least_prompt_tokens(sent: int) -> float:
    """Return what a prompt must have in tokens at least: prompts are words whose cost this server's own counts told.

    Parameters
    ----------
    sent : int
        Tokens that were sent; 0 where that is not known, [token]

    Returns
    -------
    float
        Bound; 0 for prompts so short that a begin token more or less is a large part of them, [token]

    Examples
    --------
    >>> least_prompt_tokens(1000), least_prompt_tokens(8)
    (800.0, 0.0)
    """
    return sent / 1.25 if sent >= _SHORT else 0.0
