"""Errors of the tree as answers of HTTP: what was wrong is told, infeasible is an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glmplan.errors import DoesNotFit, GlmplanError, Infeasible, SpecError, nearest, printable

__all__ = ["first_fault", "infeasible_record", "refusal_record"]

#: what the validator adds to a place where several types may stand
_TYPES = ("int", "float", "str", "bool", "none")


def first_fault(errors: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], str]:
    """The first thing that is wrong with a question, and where.

    Parameters
    ----------
    errors : sequence of mapping
        What the validator found, at least one.

    Returns
    -------
    mapping, str
        Of a value that may be a number or a list of such what is wrong with the number; and its place without the
        types that were tried, empty for the question as a whole.

    Examples
    --------
    >>> wrong = [{"loc": ("users", "list[int]"), "type": "list_type"}, {"loc": ("users", "int"), "type": "less_than"}]
    >>> first_fault(wrong)
    ({'loc': ('users', 'int'), 'type': 'less_than'}, 'users')
    """
    first = errors[0]
    if first["type"] == "list_type":
        same = (one for one in errors[1:] if one["loc"][: len(first["loc"]) - 1] == first["loc"][:-1])
        first = next(same, first)
    places = [part for part in first["loc"] if part not in ("body", "query", "path")]
    names = [str(one) for n, one in enumerate(places) if isinstance(one, int) or not n or not _is_type(one)]
    return first, ".".join(names)


def _is_type(part: str) -> bool:
    return "[" in part or part.startswith("constrained-") or part in _TYPES


def _plain(option: object) -> str | None:
    """A field by the name that it has in a request, which has no dashes."""
    if option is None:
        return None
    text = printable(option)
    return text[2:].replace("-", "_") if text.startswith("--") else text


def refusal_record(error: GlmplanError) -> dict[str, Any]:
    """What was asked wrongly.

    Parameters
    ----------
    error : GlmplanError
        The error.

    Returns
    -------
    dict
        Its kind, the sentence of the command line, and, as far as known, file, field, value and the nearest choices.

    Examples
    --------
    >>> wrong = SpecError("is not a KV cache format", field="--kv", value="fp9", choices=["fp8", "bf16"])
    >>> refusal_record(wrong)["error"]["field"], refusal_record(wrong)["error"]["nearest"]
    ('kv', ['fp8'])
    """
    found: dict[str, Any] = {"kind": type(error).__name__, "message": printable(error)}
    if isinstance(error, SpecError):
        value = None if error.value is None else printable(error.value)[:300]
        close = nearest(value, error.choices) if value is not None else []
        if not error.choices and "nearest: " in error.message:
            # names of the catalogue are told in the sentence, each kind with its own
            close = error.message.rpartition("nearest: ")[2].partition(";")[0].split(", ")
        # nobody names files here: what reads as one is the field in whose words something is wrong
        file = _plain(error.file)
        option = file is not None and file.isidentifier()
        found |= {
            "file": None if option else file,
            "field": file if option else _plain(error.field),
            "value": value,
            "nearest": close or [str(one) for one in error.choices[:40]],
        }
    return {"error": found}


def infeasible_record(answer: Infeasible) -> dict[str, Any]:
    """Nothing satisfies what was asked, which is an answer.

    Parameters
    ----------
    answer : Infeasible
        What is missing.

    Returns
    -------
    dict
        ``does_not_fit`` or ``unknown``, and why.

    Examples
    --------
    >>> infeasible_record(DoesNotFit("12 GiB are short"))
    {'verdict': 'does_not_fit', 'reason': '12 GiB are short'}
    """
    verdict = "does_not_fit" if isinstance(answer, DoesNotFit) else "unknown"
    return {"verdict": verdict, "reason": printable(answer)}
