"""A site's own calibration: effects fitted to runs of one place, added to those that ship.

`glmplan calibrate --from my-runs.csv --save site.toml` writes the file; every command that takes ``--calibration``
applies it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from glmplan.errors import SpecError, nearest
from glmplan.facts.files import read_toml
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import COLUMNS, LEVELS, OVERLAY, Effects, keys_of, load_effects, shipped_effects
from glmplan.prediction.step_models import runs_on_accelerators

__all__ = ["load_site", "measured_elsewhere", "site_calibration", "with_site"]

#: ends of a domain: of concurrency, and of two lengths [-]
_BOUNDS = 6
#: an effect, in logarithms, beyond which nothing can be meant: a server 5 × 10⁸ times slower [-]
_FAR = 20.0


def with_site(
    effects: Effects,
    values: dict[str, dict[str, np.ndarray]],
    *,
    domain: dict[str, list[float]] | None = None,
) -> Effects:
    """Add a site's effects to others.

    Parameters
    ----------
    effects : Effects
        What the site was compared with.
    values : dict of str to dict of str to (22,) array
        Level → key → effects on top, [-]
    domain : dict of str to list of float, optional
        Group → range of concurrency and lengths that the site measured.

    Returns
    -------
    Effects
        Both together; configurations that the site measured count as measured there.
    """
    merged = dict(effects.values)
    for level, table in values.items():
        merged[level] = dict(merged.get(level, {}))
        for key, row in table.items():
            merged[level][key] = merged[level].get(key, 0.0) + row
    ranges = dict(effects.domain)
    for group, ends in (domain or {}).items():
        before = ranges.get(group, ends)
        ranges[group] = []
        for place in range(0, len(ends), 2):
            # a range without an end is of runs that do not say
            known = [one[place : place + 2] for one in (before, ends) if one[place + 1] < np.inf] or [[0.0, np.inf]]
            ranges[group] += [min(low for low, _ in known), max(high for _, high in known)]
    site = effects.site | frozenset(values.get("configuration", {}))
    return replace(effects, values=merged, domain=ranges, site=site)


def load_site(path: str | Path, engine: str) -> Effects:
    """Read a site's calibration and add it to the shipped fit.

    Parameters
    ----------
    path : path
        The file that `glmplan calibrate --from … --save` wrote.
    engine : str
        Engine whose effects are wanted.

    Returns
    -------
    Effects
        The shipped effects with the site's.

    Raises
    ------
    SpecError
        If the file is not a site calibration of this version of glmplan.
    """
    table = read_toml(path)
    effects, domain = table.get("effects"), table.get("domain", {})
    whole = (
        table.get("columns") == list(COLUMNS)
        and isinstance(effects, dict)
        and not set(effects) - set(LEVELS)
        and all(_rows(rows, len(COLUMNS), finite=True) for rows in effects.values())
        and _rows(domain, _BOUNDS)
    )
    if not whole:
        raise SpecError(
            "is not a site calibration of this version of glmplan: run `glmplan calibrate --from`", file=path
        )
    values = {
        level: {key: np.array(row) for key, row in rows.items() if key == engine or key.startswith(engine + " ")}
        for level, rows in table["effects"].items()
    }
    return with_site(shipped_effects(engine), values, domain=domain)


def _rows(table: object, length: int, *, finite: bool = False) -> bool:
    """Whether a table holds rows of so many numbers, none of which is NaN, nor infinite where that means nothing."""
    return isinstance(table, dict) and all(
        isinstance(row, list)
        and len(row) == length
        and all(type(one) in (int, float) and one == one and (abs(one) < _FAR or not finite) for one in row)
        for row in table.values()
    )


@contextmanager
def site_calibration(path: str | Path | None) -> Iterator[None]:
    """Apply a site's calibration to every prediction made inside.

    Parameters
    ----------
    path : path or None
        The file; None changes nothing.

    Yields
    ------
    None

    Raises
    ------
    SpecError
        If the file is not a site calibration.
    """
    if path is None:
        yield
        return
    load_site(path, "vllm")  # a wrong file is told at once
    found: dict[str, Effects] = {}

    def effects(engine: str) -> Effects:
        if engine not in found:
            found[engine] = load_site(path, engine)
        return found[engine]

    token = OVERLAY.set(effects)
    try:
        yield
    finally:
        OVERLAY.reset(token)


def measured_elsewhere(deployment: Deployment) -> str:
    """Say that the applied calibration holds no run of a deployment's configuration.

    Parameters
    ----------
    deployment : Deployment
        The deployment.

    Returns
    -------
    str
        What it is and the nearest that the site measured, as the fit names them; empty if the site measured it.

    Examples
    --------
    >>> from glmplan.plan import Words, fit_answer
    >>> measured_elsewhere(fit_answer(Words("glm-5.1", "dgx-b300-8", engine="sglang")).deployment).split(", ")[1]
    'which your calibration did not measure; nearest: none of sglang'
    """
    if not runs_on_accelerators(deployment):
        return "this plan rests on bytes and rates of its host, which your calibration of an engine does not change"
    key = keys_of(deployment)[LEVELS.index("configuration")]
    held = sorted(load_effects(deployment.engine).site)
    if key in held:
        return ""
    close = ", ".join(f"`{one}`" for one in (nearest(key, held, 2) or held[:2])) or f"none of {deployment.engine}"
    return f"this plan is `{key}`, which your calibration did not measure; nearest: {close}"
