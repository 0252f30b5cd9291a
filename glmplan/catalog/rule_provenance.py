"""Exclude rules that were motivated by excluded benchmark groups.

The field `in_view` of an entry names the groups (`glmplan.io.runs.ledger.group_key`) or campaigns that were looked at
when it was written; an entry without it rests on its source alone. A prediction of a held-out group must not use the
entries that only this group motivated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["FIELD", "gone", "out_of_view", "remaining_rules", "stands"]

#: field of an entry
FIELD = "in_view"
_OUT: ContextVar[frozenset[str]] = ContextVar("held-out groups", default=frozenset())
_Entry = TypeVar("_Entry", bound=Mapping[str, Any])


def gone(names: Sequence[str], groups: frozenset[str]) -> bool:
    """Return True if all groups that motivated a rule are excluded.

    A rule without groups stays.

    Examples
    --------
    >>> gone(["a", "b"], frozenset({"a"})), gone(["a"], frozenset({"a"})), gone([], frozenset({"a"}))
    (False, True, False)
    """
    return bool(names) and groups.issuperset(names)


def remaining_rules(entries: Sequence[_Entry]) -> tuple[_Entry, ...]:
    """Return the entries that remain under `out_of_view`; otherwise all.

    Examples
    --------
    >>> rules = [{"engine": "a", "in_view": ["one"]}, {"engine": "b"}]
    >>> with out_of_view({"one"}):
    ...     len(remaining_rules(rules))
    1
    """
    return tuple(entry for entry in entries if stands(entry.get(FIELD, ()))) if _OUT.get() else tuple(entries)


def stands(names: Sequence[str]) -> bool:
    """Return True unless all groups that motivated a rule are excluded.

    Examples
    --------
    >>> stands(["a"])
    True
    """
    return not gone(names, _OUT.get())


@contextmanager
def out_of_view(groups: frozenset[str] | set[str]) -> Iterator[None]:
    """Exclude rules that only these groups motivated.

    Results computed before are cached in many places: `glmplan.calibrate.step.crossvalidate` clears the caches.
    """
    token = _OUT.set(frozenset(groups))
    try:
        yield
    finally:
        _OUT.reset(token)
