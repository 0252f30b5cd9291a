"""Cache results by the identity of records.

Records cannot change, but they are too deep to hash for each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

__all__ = ["remembered"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def remembered(*, records: int = 1, most: int = 64) -> Callable[[_Function], _Function]:
    """Return a decorator that caches by identity of the first arguments.

    The values of the other arguments complete the key. `records`: number of first arguments that are records. Arguments
    are positional, errors are not cached, `cache_clear` clears.

    Examples
    --------
    >>> @remembered()
    ... def total(numbers: list[int], more: int) -> int:
    ...     print("added")
    ...     return sum(numbers) + more
    >>> record = [1, 2]
    >>> total(record, 3), total(record, 3), total([1, 2], 3)
    added
    added
    (6, 6, 6)
    """

    def decorate(function: _Function) -> _Function:
        known: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

        @wraps(function)
        def answer(*given: Any) -> Any:
            key = (*map(id, given[:records]), *given[records:])
            result = known.get(key)
            if result is None:
                # records are held with their result, so that their ids are not reused
                result = (given[:records], function(*given))
                while len(known) >= most:
                    oldest: Any = next(iter(known), None)
                    known.pop(oldest, None)
                known[key] = result
            return result[1]

        answer.cache_clear = known.clear  # type: ignore[attr-defined]
        return answer  # type: ignore[return-value]

    return decorate
