"""How well the joint fit knows its effects: the posterior covariance around its optimum.

The posterior of thousands of effects is never formed: the normal equations of the fit give what is asked of it, the
covariance of one key's parameters, and that of an engine's constants, which are sums of a few keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.joint_fit import Solution, linearised
from glmplan.calibrate.step.observations import Design
from glmplan.errors import SpecError
from glmplan.facts.files import read_toml, write_atomically
from glmplan.facts.folders import fits_folder
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["FILE", "Constants", "Posterior", "posterior", "read_constants", "write_covariance"]

#: name of the file beside the fit
FILE = "covariance.toml"


@dataclass(frozen=True)
class Constants:
    """Constants of an engine of which nothing else is known: neither part nor model nor format.

    Attributes
    ----------
    engine : str
        Its name.
    value : (22,) array
        Logarithms of `glmplan.physics.step.time.PARAMETERS` and the two factors, [log s] or [-]
    covariance : (22, 22) array
        Of these, [-]
    """

    engine: str
    value: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True)
class Posterior:
    """What is left open of the effects.

    Attributes
    ----------
    deviation : tuple of (keys, 22) array
        For each level the standard deviation of each effect, [-]
    engines : tuple of Constants
        The constants of every engine.
    """

    deviation: tuple[np.ndarray, ...]
    engines: tuple[Constants, ...]


def posterior(design: Design, solution: Solution, *, spread: np.ndarray | None = None) -> Posterior:
    """Posterior covariance of the effects around the optimum.

    Parameters
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects fitted to them, with the weight that each figure had.
    spread : (levels, columns) array, optional
        Prior standard deviations; those of the fit by default, [-]

    Returns
    -------
    Posterior
        Deviations of all effects, covariance of the engines' constants.

    Notes
    -----
    Laplace's approximation, Gauss-Newton: the figures' curvature is left out, and Student's weights are taken as they
    ended. Not modelled: that spreads and noise are estimates, too; their errors stand in `spreads.toml`.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1
       and equation A.9.
    """
    normal = linearised(design, solution, spread=spread)
    first = normal.cells.first

    def between(one: tuple[int, int], two: tuple[int, int]) -> np.ndarray:
        """Covariance of the effects of two keys, (22, 22)."""
        return normal.covariance(int(first[one[0]]) + one[1], int(first[two[0]]) + two[1])

    deviation = []
    for level, names in enumerate(design.key_names):
        own = [np.diag(between((level, key), (level, key))) for key in range(len(names))]
        deviation.append(np.sqrt(np.maximum(np.array(own), 0.0)))
    engines = []
    place = {name: level for level, name in enumerate(LEVELS)}
    for engine in sorted({question.deployment.engine for question in design.questions}):
        wanted = (("all", "all"), ("engine", engine))
        path = [
            (place[level], design.key_names[place[level]].index(key))
            for level, key in wanted
            if key in design.key_names[place[level]]
        ]
        value = np.sum([solution.effects[level][key] for level, key in path], axis=0)
        covariance = np.sum([between(one, two) for one in path for two in path], axis=0)
        engines.append(Constants(engine, value, (covariance + covariance.T) / 2.0))
    return Posterior(tuple(deviation), tuple(engines))


def _row(values: Iterable[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values)}]"


def write_covariance(found: Posterior, design: Design, file: str | Path, *, head: Iterable[str] = ()) -> Path:
    """Write what is left open; the same posterior gives the same bytes.

    Parameters
    ----------
    found : Posterior
        The posterior.
    design : Design
        The runs, for the names of the keys.
    file : path
        Where to; TOML.
    head : iterable of str, optional
        First lines.

    Returns
    -------
    pathlib.Path
        The file.
    """
    lines = [*head, f"columns = [{', '.join(repr(one) for one in COLUMNS)}]".replace("'", '"'), ""]
    for one in found.engines:
        lines += [f'[engine."{one.engine}"]', f"value = {_row(one.value)}", "lower_triangle = ["]
        lines += [f"  {_row(one.covariance[place, : place + 1])}," for place in range(len(COLUMNS))] + ["]", ""]
    for level, names, rows in zip(LEVELS, design.key_names, found.deviation, strict=True):
        lines += [f"[deviation.{level}]"]
        lines += [f'"{name}" = {_row(row)}' for name, row in sorted(zip(names, rows, strict=True), key=lambda x: x[0])]
        lines += [""]
    path = Path(file)
    write_atomically(path, "\n".join(lines))
    return path


def read_constants(folder: str | Path | None = None) -> tuple[Constants, ...]:
    """Read the constants of engines with their covariance.

    Parameters
    ----------
    folder : path, optional
        Folder of a fit; the shipped one by default.

    Returns
    -------
    tuple of Constants
        By engine.

    Raises
    ------
    SpecError
        If there is no such file or it is of another version of glmplan.

    Examples
    --------
    >>> {one.engine for one in read_constants()} >= {"vllm", "sglang", "trtllm"}
    True
    """
    path = (Path(folder) if folder is not None else fits_folder() / "step") / FILE
    content = read_toml(path)
    if content.get("columns") != list(COLUMNS):
        raise SpecError("was written by another version of glmplan: run `glmplan calibrate`", file=path)
    found = []
    for engine, table in content["engine"].items():
        covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
        for place, row in enumerate(table["lower_triangle"]):
            covariance[place, : place + 1] = covariance[: place + 1, place] = row
        found.append(Constants(engine, np.array(table["value"]), covariance))
    return tuple(found)
