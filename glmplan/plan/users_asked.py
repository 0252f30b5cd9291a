"""Users that a plan is asked for, and those for whom plans are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.units import whole_number

if TYPE_CHECKING:
    from glmplan.readers.machines.resolve import Machine

__all__ = ["DEFAULT_USERS", "asked_users", "users_at_once", "usual_users"]

#: users of the table when none are given [-]
DEFAULT_USERS = (1, 4, 8, 16, 32, 64, 128)
#: users for whom plans are compared: at least so many, and so many for each accelerator of larger machines [-]
_USUAL_USERS, _USUAL_EACH = 32, 4
#: users at once that a plan is asked for at most [-]
_MOST_USERS = 4096


def asked_users(given: object, machine: Machine) -> tuple[int, ...]:
    """Read the numbers of users that a table is asked for.

    Parameters
    ----------
    given : object
        Numbers as text with commas, a number, or some of them; None for the usual ones.
    machine : Machine
        The machine.

    Returns
    -------
    tuple of int
        Rising, [-]

    Raises
    ------
    SpecError
        If there is none, or one is no number of users.

    Examples
    --------
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> asked_users("8,1", resolve_machine("8xh200-sxm"))
    (1, 8)
    """
    if given is None:
        return tuple(sorted({*DEFAULT_USERS, usual_users(machine)}))
    if isinstance(given, str):
        words: list[object] = [*given.split(",")] if given.strip() else []
    else:
        words = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping) else [given]
    if not words:
        raise SpecError("is empty; write numbers, as in 1,4,8", field="--users", value=given)
    return tuple(sorted({users_at_once(word, "--users") for word in words}))


def usual_users(machine: Machine) -> int:
    """Users for whom layouts of a machine are compared, whichever rows of a table are asked for.

    Parameters
    ----------
    machine : Machine
        The machine.

    Returns
    -------
    int
        32, and on machines of 16 accelerators or more the power of two at or below four for each of them, [-]

    Examples
    --------
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> usual_users(resolve_machine("8xh200-sxm")), usual_users(resolve_machine("gb200-nvl72"))
    (32, 256)
    """
    return max(_USUAL_USERS, 1 << ((_USUAL_EACH * machine.count).bit_length() - 1))


def users_at_once(given: object, field: str) -> int:
    """Read a number of users.

    Parameters
    ----------
    given : object
        As text or as a number.
    field : str
        What it is called where it was given.

    Returns
    -------
    int
        Users of one deployment, [-]

    Raises
    ------
    SpecError
        If it is no count, or beyond what one deployment is asked.

    Examples
    --------
    >>> users_at_once("8", "--users")
    8
    """
    return whole_number(given, field, most=_MOST_USERS)
