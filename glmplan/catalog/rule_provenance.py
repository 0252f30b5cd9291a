"""Rules that were written with measured runs in view, and what is left of them where those runs are left out.

An entry of a file of rules names in `in_view` what was looked at when it was written: groups of runs
(`glmplan.io.runs.ledger.group_key`) or campaigns; an entry without it rests on its source alone. Who predicts a
group as if nobody had measured it must do so without the entries that only this group led to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["FIELD", "gone", "out_of_view", "stands", "still_there"]

#: field of an entry
FIELD = "in_view"
_OUT: ContextVar[frozenset[str]] = ContextVar("groups that nobody has seen", default=frozenset())
_Entry = TypeVar("_Entry", bound=Mapping[str, Any])


def gone(names: Sequence[str], groups: frozenset[str]) -> bool:
    """Whether an entry would not have been written without some groups.

    - `names`: What was in view when it was written.
    - Returns: True where all of it is left out; an entry that names nothing stays.

    Examples
    --------
    >>> gone(["a", "b"], frozenset({"a"})), gone(["a"], frozenset({"a"})), gone([], frozenset({"a"}))
    (False, True, False)
    """
    return bool(names) and groups.issuperset(names)


def still_there(entries: Sequence[_Entry]) -> tuple[_Entry, ...]:
    """Entries that would have been written without the groups that are out of view.

    Returns: All of them unless `out_of_view` is in force.

    Examples
    --------
    >>> rules = [{"engine": "a", "in_view": ["one"]}, {"engine": "b"}]
    >>> with out_of_view({"one"}):
    ...     len(still_there(rules))
    1
    """
    return tuple(one for one in entries if stands(one.get(FIELD, ()))) if _OUT.get() else tuple(entries)


def stands(names: Sequence[str]) -> bool:
    """Whether an entry would have been written without the groups that are out of view.

    - `names`: What was in view when it was written.
    - Returns: True unless `out_of_view` is in force and holds all of it.

    Examples
    --------
    >>> stands(["a"])
    True
    """
    return not gone(names, _OUT.get())


@contextmanager
def out_of_view(groups: frozenset[str] | set[str]) -> Iterator[None]:
    """Look rules up as if some groups had never been measured.

    What was computed from the rules before is remembered in many places: `glmplan.calibrate.step.crossvalidate`
    forgets it.

    Yields: While entries that only these groups led to are not there.
    """
    token = _OUT.set(frozenset(groups))
    try:
        yield
    finally:
        _OUT.reset(token)
