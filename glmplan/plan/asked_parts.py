"""Parts of a question that are read by themselves: names, servers for prompts, limits of power and of steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.formats import KV_FORMATS
from glmplan.prediction.power import check_limit
from glmplan.units import read_above_zero, read_watts, whole_number

if TYPE_CHECKING:
    from glmplan.readers.machines.resolve import Machine

__all__ = ["bandwidth_of_copies", "check_pieces", "named_cache", "other_name", "power_limit_asked", "servers_apart"]

#: pieces that a prompt is read in at most: a million tokens in steps of 2,048 [-]
_PIECES = 512
_KV_WORDS = {"auto": None, "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp16": "f16", "bfloat16": "bf16", "f8": "fp8"}


def other_name(typed: str, name: str) -> list[str]:
    """Say that a name stands for a model of another name.

    Parameters
    ----------
    typed : str
        What was typed for the model.
    name : str
        Name of the model that it was resolved to.

    Returns
    -------
    list of str
        That the plan has its shape; empty where the name says so, and of files.

    Examples
    --------
    >>> other_name("llama-3.3-70b", "llama-3.1-70b"), other_name("llama-3.1-70b-fp8", "llama-3.1-70b")
    (['llama-3.3-70b: planned as llama-3.1-70b, whose shape it has'], [])
    """
    last = typed.strip().rstrip("/").rpartition("/")[2]
    if last.lower().startswith(name) or Path(typed).suffix in (".json", ".gguf", ".toml", ".safetensors"):
        return []
    return [] if Path(typed).is_dir() else [f"{last}: planned as {name}, whose shape it has"]


def servers_apart(text: str | None, degrees: dict[str, int | None]) -> int:
    """Read how many servers compute prompts and how many decode.

    Parameters
    ----------
    text : str or None
        Both numbers, as in ``1:3``.
    degrees : dict of str to (int or None)
        Degrees as typed, [-]; of servers together it takes the sum.

    Returns
    -------
    int
        Servers for prompts alone, [-]

    Raises
    ------
    SpecError
        If the text is not two numbers, or another number of servers was typed.

    Examples
    --------
    >>> degrees = {"replicas": None}
    >>> servers_apart("1:3", degrees), degrees
    (1, {'replicas': 4})
    """
    if text is None:
        return 0
    parts = text.split(":")
    if len(parts) != 2:
        message = "must be servers for prompts and servers that decode, as in 1:3"
        raise SpecError(message, field="--disaggregated", value=text)
    prefill, decode = (whole_number(one, "--disaggregated") for one in parts)
    if degrees["replicas"] not in (None, prefill + decode):
        message = f"is not the {prefill + decode} servers of --disaggregated {text}; leave it out"
        raise SpecError(message, field="--replicas", value=degrees["replicas"])
    degrees["replicas"] = prefill + decode
    return prefill


def bandwidth_of_copies(given: object) -> float:
    """Read how fast copies of the cache come back from host memory.

    Parameters
    ----------
    given : object
        The bandwidth as typed, or in bytes per second.

    Returns
    -------
    float
        To each data-parallel rank; 0 where nothing was said, [B/s]

    Raises
    ------
    SpecError
        If it is none above zero.

    Examples
    --------
    >>> bandwidth_of_copies("50 GB/s"), bandwidth_of_copies(None)
    (50000000000.0, 0.0)
    """
    return 0.0 if given is None else read_above_zero(given, "--host-bandwidth", "bytes per second")


def power_limit_asked(given: object, machine: Machine, assumed: list[str]) -> float | None:
    """Read a power limit of each accelerator.

    Parameters
    ----------
    given : object
        The limit as typed.
    machine : Machine
        The machine.
    assumed : list of str
        What is taken, which grows.

    Returns
    -------
    float or None
        The limit, [W]; None where it is the rating.

    Raises
    ------
    SpecError
        If it is above the rating.
    UnknownFact
        If nobody measured the part under it.
    """
    part, limit = machine.accelerator, None if given is None else read_watts(given, "--power-limit")
    check_limit(part, limit)
    if limit is None or limit == part.tdp:
        return None
    assumed.append(f"each {part.name} limited to {limit:g} W: as slow as it was measured to be under that limit")
    return limit


def check_pieces(budget: int | None, inputs: int) -> None:
    """Refuse steps so short that a prompt is read in more pieces than any engine makes of one.

    Parameters
    ----------
    budget : int or None
        Tokens of a step as typed, [token]
    inputs : int
        Prompt, [token]

    Raises
    ------
    SpecError
        If there are too many pieces.
    """
    if budget is not None and budget * _PIECES < inputs:
        message = f"makes {-(-inputs // budget):,} steps of a prompt of {inputs:,} tokens: at least"
        raise SpecError(f"{message} {-(-inputs // _PIECES)}", field="--max-num-batched-tokens", value=budget)


def named_cache(text: str) -> str | None:
    """The cache format that a word means.

    Parameters
    ----------
    text : str
        The word.

    Returns
    -------
    str or None
        One of `glmplan.facts.formats.KV_FORMATS`; None where the engine chooses.

    Raises
    ------
    SpecError
        If there is no such format.

    Examples
    --------
    >>> named_cache("FP8_E4M3"), named_cache("auto")
    ('fp8', None)
    """
    word = text.strip().lower()
    key = _KV_WORDS.get(word, word)
    if key is not None and key not in KV_FORMATS:
        raise SpecError("is not a KV cache format", field="--kv", value=text, choices=KV_FORMATS)
    return key
