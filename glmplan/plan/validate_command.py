"""The `glmplan validate` command that measures a plan: one writer for plans, purchases and reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glmplan.plan.engine_limits import Terms

__all__ = ["DEGREES", "degrees_of", "degrees_set", "validate_command"]

#: degrees of a layout that a measured run is told
DEGREES = ("tp", "pp", "dp", "ep", "dcp")


def degrees_set(degrees: Mapping[str, int]) -> dict[str, int]:
    """The degrees of a layout that a measured run has to be told.

    Parameters
    ----------
    degrees : mapping of str to int
        Degree of each of `DEGREES`, [-]

    Returns
    -------
    dict of str to int
        Those that are not 1, and the tensor-parallel degree.

    Examples
    --------
    >>> degrees_set({"tp": 1, "pp": 3, "dp": 1, "ep": 1, "dcp": 1})
    {'tp': 1, 'pp': 3}
    """
    return {name: degrees[name] for name in DEGREES if degrees[name] > 1 or name == "tp"}


def degrees_of(terms: Terms) -> dict[str, int]:
    """The same of a planned layout.

    Parameters
    ----------
    terms : Terms
        The layout.

    Returns
    -------
    dict of str to int
        As `degrees_set` gives them, [-]
    """
    return degrees_set({name: getattr(terms, name) for name in DEGREES})


def validate_command(
    model: str, on: str, facts: Mapping[str, object], *, users: Iterable[int], lengths: tuple[int, int], more: str = ""
) -> str:
    """Write the command that measures a delivered machine.

    Parameters
    ----------
    model, on : str
        As in the question.
    facts : mapping of str to object
        Columns of a run that say what is served.
    users : iterable of int
        Steps of the ladder, [-]
    lengths : (int, int)
        Prompt and answer, [token]
    more : str, optional
        Further options.

    Returns
    -------
    str
        A line for a shell.

    Examples
    --------
    >>> validate_command("m", "2xh100-sxm", {"tp": 2}, users=(1, 8), lengths=(2048, 512))
    'glmplan validate m --url http://MACHINE:8000/v1 --on 2xh100-sxm --set tp=2 --users 1,8 --input 2048 --output 512
    --out acceptance'
    """
    told = " ".join(shlex.join(["--set", f"{name}={value}"]) for name, value in facts.items())
    steps = ",".join(map(str, users))
    return (
        f"glmplan validate {shlex.quote(model)} --url http://MACHINE:8000/v1 --on {shlex.quote(on)} {told} "
        f"--users {steps} --input {lengths[0]} --output {lengths[1]} {more + ' ' if more else ''}--out acceptance"
    )
