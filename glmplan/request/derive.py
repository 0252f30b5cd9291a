"""Derive the other ways to ask from the request: keyword arguments, their types and questions over HTTP."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel

from glmplan.request.option import Kind, options_of

__all__ = ["keyword_types", "keywords_of", "with_keywords"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: type of a keyword argument of each kind: typed or as text
_PYTHON: dict[Kind, str] = {
    "name": "str | None",
    "whole": "int | str | None",
    "number": "float | str | None",
    "flag": "bool",
    "counts": "int | str | Sequence[int] | None",
    "path": "str | Path | None",
    "power": "float | str | None",
    "bytes": "float | str | None",
    "bandwidth": "float | str | None",
    "time": "float | str | None",
    "table": "str | None",
}


def keywords_of(record: type[BaseModel], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the keyword arguments of a record with their types.

    Examples
    --------
    >>> from glmplan.request.plan import PlanRequest
    >>> keywords_of(PlanRequest)["tp"]
    'int | str | None'
    """
    return {name: _PYTHON[one.kind] for name, one in options_of(record).items() if name not in without}


def keyword_types(title: str, record: type[BaseModel], without: tuple[str, ...] = ()) -> Any:
    """Return the keyword arguments of a record as a TypedDict, all of them optional."""
    return TypedDict(title, dict(keywords_of(record, without)), total=False)  # type: ignore[operator]


def with_keywords(record: type[BaseModel], without: tuple[str, ...] = ()) -> Callable[[_Function], _Function]:
    """Return a decorator that shows the options of a record in the signature, instead of `**keywords`."""

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        taken = {one.name for one in parameters} | set(without)
        for name, kind in keywords_of(record, tuple(taken)).items():
            default = record.model_fields[name].default
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate
