"""What a table of runs says of speculative decoding → method, drafted tokens, verified tokens, acceptance."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Speculation", "read_speculation"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a run drafted.

    Attributes
    ----------
    state : str
        ``none``, ``unknown`` (the source does not say) or ``yes``.
    method : str or None
        ``mtp``, ``eagle``, ``eagle3``, ``dspark`` or ``draft-model``.
    draft_tokens : int or None
        Draft passes for each step, [token]
    verify_tokens : int or None
        Tokens that each step verifies for each request, the last accepted one included, [token]
    acceptance_length : float or None
        Mean tokens that a step yields for each request, [token]
    acceptance_range : tuple of float or None
        Lowest and highest value of a whole page where the run has none of its own, [token]
    """

    state: str = "unknown"
    method: str | None = None
    draft_tokens: int | None = None
    verify_tokens: int | None = None
    acceptance_length: float | None = None
    acceptance_range: tuple[float, float] | None = None


_STEPS = re.compile(r"(?:steps=|num-steps[= ])(\d+)")
_DRAFT = re.compile(r"(?:draft=|num-draft-tokens[= ])(\d+)")
_CHAIN = re.compile(r"\b(\d+)-(\d+)-(\d+)\b")  # steps-topk-draft
_COUNT = re.compile(r"(?:mtp|nextn|eagle3?)(?: depth)?[ -]+(\d+)\b|num_speculative_tokens\D{1,4}(\d+)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)% draft acceptance")
_COMMAND = re.compile(r"--speculative|speculative-config|speculative_config")
_SERVER = re.compile(r"launch_server|sglang serve|vllm serve|trtllm-serve|--max-model-len|--context-length")
_RATE = re.compile(r"accept_rate=(\d\.\d+)")
_RANGE = re.compile(r"accept len (\d+\.\d+)-(\d+\.\d+)")
_RATIO = re.compile(r"ITL/TPOT=(\d+(?:\.\d+)?)")
_LIMIT = re.compile(r"disabled above (\d+) tok")


#: word in the cell → method, first match
_METHODS = {
    "dspark": "dspark",
    "eagle3": "eagle3",
    "mtp": "mtp",
    "nextn": "mtp",
    "draft model": "draft-model",
    "draft-model": "draft-model",
    "eagle": "eagle",
}


def _method(text: str) -> str | None:
    return next((method for word, method in _METHODS.items() if word in text), None)


def read_speculation(cell: str, notes: str, acceptance: float | None, context: float | None) -> Speculation:
    """Read what a row says of speculative decoding.

    Parameters
    ----------
    cell : str
        The `speculative` cell.
    notes : str
        The notes, which may carry the server command.
    acceptance : float or None
        The `acceptance_length` cell, [token]
    context : float or None
        Real context of the run: some servers stop drafting above a limit, [token]

    Returns
    -------
    Speculation
        What is known. A row whose server command has no speculative option is ``none``; a row that says nothing is
        ``unknown``.

    Examples
    --------
    >>> read_speculation("EAGLE3 3-1-4", "", None, None)
    Speculation(state='yes', method='eagle3', draft_tokens=3, verify_tokens=4, acceptance_length=None,
    acceptance_range=None)
    >>> read_speculation("eagle3-3 (disabled above 7000 tok)", "", None, 10480).state
    'none'
    """
    said = cell.strip().lower()
    limit = _LIMIT.search(said)
    if said.startswith("none") or (limit and context is not None and context > float(limit.group(1))):
        return Speculation("none")
    if said in ("unknown", "yes", ""):
        command = notes.lower()
        if not _COMMAND.search(command):
            if said == "" and acceptance is None and _SERVER.search(command):
                return Speculation("none")
            return Speculation("yes" if said == "yes" or acceptance else "unknown", acceptance_length=acceptance)
        said = command[_COMMAND.search(command).start() :]  # type: ignore[union-attr]
    steps, draft, chain, count = (pattern.search(said) for pattern in (_STEPS, _DRAFT, _CHAIN, _COUNT))
    if chain and not steps:
        tokens, verify = int(chain.group(1)), int(chain.group(3))
    elif steps:
        tokens, verify = int(steps.group(1)), int(draft.group(1)) if draft else int(steps.group(1)) + 1
    elif count:
        tokens = int(count.group(1) or count.group(2))
        verify = tokens + 1
    else:
        return Speculation("yes", _method(said), None, None, acceptance)
    if found := _RANGE.search(said):
        # the column repeats the low end of the page's range for every cell
        span = (float(found.group(1)), float(found.group(2)))
        return Speculation("yes", _method(said), tokens, verify, None, span)
    if acceptance is None and (rate := _RATE.search(notes)):
        acceptance = round(float(rate.group(1)) * verify, 3)  # SGLang: accepted length over draft tokens
    if acceptance is None and (share := _SHARE.search(f"{said} {notes}")):
        acceptance = 1 + tokens * float(share.group(1)) / 100
    if acceptance is None and (ratio := _RATIO.search(notes)):
        acceptance = float(ratio.group(1))
    return Speculation("yes", _method(said), tokens, verify, acceptance)
