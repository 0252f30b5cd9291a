"""A site's own runs: a Gaussian update of the shipped hierarchy, not a refit.

What the shipped fit has never seen (this model on this engine, this part with this model, …) and what it cannot see
(this machine) stands at zero with the spread of its level; the site's runs move it as far as they say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.calibrate.crossvalidate import figure_kind
from glmplan.calibrate.design import Design, build_design
from glmplan.calibrate.solve import evaluate, prior_spread
from glmplan.files import write_atomically
from glmplan.hierarchy import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.question import Question
from glmplan.records import Run
from glmplan.site import with_site

__all__ = [
    "SITE_NOISE",
    "SiteFit",
    "calibrate_site",
    "part_of",
    "site_errors",
    "write_site",
]

#: how far the same configuration measured again is off, in logarithms: medians of the 100 repeats in the ledger are
#: 1-2 % for TPOT and 4-14 % for TTFT [-]
SITE_NOISE: dict[str, float] = {"decode": 0.02, "ttft": 0.10, "prefill": 0.05}
#: machines of one configuration differ more than rows of one campaign do: chosen on the sweeps (`site_errors`), where
#: 1 to 2.5 make no difference of more than 0.2 % [-]
_WIDER = 1.5
_CONFIGURATION = LEVELS.index("configuration")
_ROUNDS = 12
#: farthest that a parameter moves in one round, [-]
_FARTHEST = 0.7
#: fewest concurrencies of a sweep that tests the update
_FEWEST = 4


@dataclass(frozen=True)
class SiteFit:
    """What a site's runs say.

    Attributes
    ----------
    values, deviation : dict of str to dict of str to (21,) array
        Level → key → effects on top of the shipped ones, and what their standard deviation still is, [-]
    effects : dict of str to Effects
        Engine → shipped effects with the site's.
    used : tuple of str
        Runs that it rests on.
    refused : tuple of (str, str)
        Runs that it does not, with the reason.
    before, after : (m,) array
        Measured minus predicted in logarithms, before and after, [-]
    domain : dict of str to list of float
        Group → range of concurrency and lengths measured.
    """

    values: dict[str, dict[str, np.ndarray]]
    deviation: dict[str, dict[str, np.ndarray]]
    effects: dict[str, Effects]
    used: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    before: np.ndarray
    after: np.ndarray
    domain: dict[str, list[float]]


def part_of(design: Design, runs: np.ndarray) -> Design:
    """The part of a design that concerns some runs.

    Parameters
    ----------
    design : Design
        The design.
    runs : (k,) array of int
        Places of the runs, ascending, [-]

    Returns
    -------
    Design
        The same table with these runs only.
    """
    place = np.full(len(design.questions), -1)
    place[runs] = np.arange(len(runs))
    nodes = np.flatnonzero(place[design.node_run] >= 0)
    rows = np.flatnonzero(place[design.observation_run] >= 0)
    node_place, row_place = np.full(len(design.node_run), -1), np.full(len(design.observation_run), -1)
    node_place[nodes], row_place[rows] = np.arange(len(nodes)), np.arange(len(rows))
    entries = np.flatnonzero(row_place[design.entry_observation] >= 0)
    return replace(
        design,
        questions=tuple(design.questions[run] for run in runs),
        work=design.work[nodes],
        node_run=place[design.node_run[nodes]],
        figure=design.figure[rows],
        observation_run=place[design.observation_run[rows]],
        log_seconds=design.log_seconds[rows],
        entry_node=node_place[design.entry_node[entries]],
        entry_observation=row_place[design.entry_observation[entries]],
        entry_weight=design.entry_weight[entries],
        keys=design.keys[runs],
    )


@dataclass(frozen=True)
class _Solved:
    """Keys as (level, key), their effects and deviations, and what they leave."""

    keys: list[tuple[int, int]]
    effect: np.ndarray
    deviation: np.ndarray
    residual: np.ndarray


def _update(
    design: Design, base: np.ndarray, keys: list[list[tuple[int, int]]], spread: np.ndarray, use: np.ndarray
) -> _Solved:
    """Move the effects of some keys to the observations in use; Gauss-Newton on the whole posterior."""
    names = sorted({key for row in keys for key in row})
    width = len(COLUMNS)
    place = {key: number for number, key in enumerate(names)}
    member = np.zeros((len(keys), len(names)))
    for run, row in enumerate(keys):
        member[run, [place[key] for key in row]] = 1.0
    sigma = np.concatenate([spread[level] for level, _ in names])
    noise = np.array([SITE_NOISE[figure_kind(name)] for name in design.figure])
    effect = np.zeros((len(names), width))
    inverse = np.eye(len(sigma))
    for _ in range(_ROUNDS):
        log_seconds, slope = evaluate(design, base + member @ effect)
        residual = design.log_seconds - log_seconds
        share = member[design.observation_run]
        jacobian = (share[:, :, None] * slope[:, None, :]).reshape(len(residual), -1)[use] * sigma / noise[use, None]
        target = residual[use] / noise[use] + jacobian @ (effect.ravel() / sigma)
        inverse = np.linalg.inv(jacobian.T @ jacobian + np.eye(len(sigma)))
        move = (inverse @ (jacobian.T @ target) * sigma).reshape(effect.shape) - effect
        effect = effect + np.clip(move, -_FARTHEST, _FARTHEST)
        if np.abs(move).max() < 1e-6:
            break
    log_seconds, _ = evaluate(design, base + member @ effect)
    deviation = (np.sqrt(np.diag(inverse)) * sigma).reshape(effect.shape)
    return _Solved(names, effect, deviation, design.log_seconds - log_seconds)


def calibrate_site(runs: Iterable[Run], *, effects: Callable[[str], Effects] = load_effects) -> SiteFit:
    """Update the shipped fit with a site's runs.

    Parameters
    ----------
    runs : iterable of Run
        The runs.
    effects : callable, optional
        From an engine to what is known so far; the shipped fit by default.

    Returns
    -------
    SiteFit
        Effects of this site and the shipped effects with them.

    Raises
    ------
    SpecError
        If no run can be used; the message gives the reason of the first.

    References
    ----------
    .. [1] Maximum a posteriori of a linear-Gaussian model around its optimum: C. E. Rasmussen, C. K. I. Williams,
       "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    rows = list(runs)
    whole = build_design(rows)
    refused = [(run.id, reason) for run, reason in whole.refused]
    chosen = np.unique(whole.observation_run)
    silent = [question.run.id for n, question in enumerate(whole.questions) if n not in chosen]
    refused += [(name, "has no figure that is predicted") for name in silent]
    design = part_of(whole, chosen)
    base, keys = [], []
    for run, question in enumerate(design.questions):
        # the date and the exact build are not asked for later: what they would explain belongs to the configuration
        names = keys_of(question.deployment)
        total, known = effects(question.deployment.engine).sum_of(names)
        base.append(total)
        keys.append([
            (level, int(design.keys[run, level]))
            for level in range(len(LEVELS) - 1)
            if level == _CONFIGURATION or not known[level]
        ])  # fmt: skip
    solved = _update(design, np.array(base), keys, _site_spread(), np.ones(len(design.figure), dtype=bool))
    before, _ = evaluate(design, np.array(base))
    values: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    deviation: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for number, (level, key) in enumerate(solved.keys):
        values[LEVELS[level]][design.key_names[level][key]] = solved.effect[number]
        deviation[LEVELS[level]][design.key_names[level][key]] = solved.deviation[number]
    domain = _domain(design.questions)
    engines = {question.deployment.engine for question in design.questions}
    return SiteFit(
        values=dict(values),
        deviation=dict(deviation),
        effects={name: with_site(effects(name), dict(values), domain=domain) for name in sorted(engines)},
        used=tuple(question.run.id for question in design.questions),
        refused=tuple(refused),
        before=design.log_seconds - before,
        after=solved.residual,
        domain=domain,
    )


def _site_spread() -> np.ndarray:
    """Spread of each level; the configuration also carries what builds and machines of one configuration differ by."""
    spread = prior_spread()
    spread[_CONFIGURATION] = np.hypot(spread[_CONFIGURATION], spread[-1])
    # what a request costs the host is in the engine's code; two rows cannot tell it, and it grows with the load
    spread[:, COLUMNS.index("request_seconds")] *= 0.1
    return _WIDER * spread + 1e-9


def _domain(questions: Iterable[Question]) -> dict[str, list[float]]:
    found: dict[str, list[list[float]]] = defaultdict(list)
    for question in questions:
        load = question.load
        asked = [load.concurrency, load.input_tokens + load.context, load.output_tokens]
        found[keys_of(question.deployment)[LEVELS.index("group")]].append(asked)
    ends = {key: (np.min(rows, axis=0), np.max(rows, axis=0)) for key, rows in found.items()}
    return {key: np.stack(pair, axis=1).ravel().tolist() for key, pair in sorted(ends.items())}


def site_errors(design: Design, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Test the update on every sweep: two points of it are measured, the others predicted.

    A sweep is one build on one day: model, accelerator, engine and its release, weights, layout and lengths, at four
    concurrencies or more. Its lowest and its middle concurrency are given to the update.

    Parameters
    ----------
    design : Design
        The runs.
    base : (runs, 21) array
        Effects from a fit that has not seen the sweep's model on its part and engine, [-]

    Returns
    -------
    (m,) array, (m,) array of int
        Measured minus predicted in logarithms, NaN for observations that are no such point [-]; number of the sweep
    """
    sweeps: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, question in enumerate(design.questions):
        run, d, load = question.run, question.deployment, question.load
        if run.protocol == "inferencex":
            key = (d.model.name, d.accelerator.name, d.engine, d.weights, str(d.layout), load.input_tokens,
                   load.output_tokens, d.draft_tokens, run.engine_version, run.measured_on)  # fmt: skip
            sweeps[key].append(place)
    errors, sweep = np.full(len(design.figure), np.nan), np.full(len(design.figure), -1)
    levels = [level for level in range(len(LEVELS) - 1) if LEVELS[level] in ("engine_model", "group", "configuration")]
    for number, members in enumerate(sweeps.values()):
        users = sorted({design.questions[place].load.concurrency for place in members})
        if len(users) < _FEWEST:
            continue
        runs = np.array(sorted(members))
        part = part_of(design, runs)
        first: dict[float, int] = {}
        for place, question in enumerate(part.questions):
            if question.load.concurrency in (users[0], users[len(users) // 2]):
                first.setdefault(question.load.concurrency, place)
        use = np.isin(part.observation_run, list(first.values()))
        keys = [[(level, int(row[level])) for level in levels] for row in part.keys]
        solved = _update(part, base[runs], keys, _site_spread(), use)
        rows = np.flatnonzero(np.isin(design.observation_run, runs))
        errors[rows[~use]], sweep[rows[~use]] = solved.residual[~use], number
    return errors, sweep


def write_site(found: SiteFit, path: str | Path) -> Path:
    """Write a site's calibration for `glmplan.site.load_site`.

    Parameters
    ----------
    found : SiteFit
        The calibration.
    path : path
        The file.

    Returns
    -------
    pathlib.Path
        The file; the same runs give the same bytes.
    """

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def table(title: str, rows: dict[str, np.ndarray]) -> list[str]:
        lines = [f"{quoted(key)} = [{', '.join(f'{x:.4f}' for x in row)}]" for key, row in sorted(rows.items())]
        return [f"[{title}]", *lines, ""]

    lines = [
        "# Written by `glmplan calibrate --from`, for `--calibration`. Effects come on top of the shipped ones.",
        f"runs = [{', '.join(quoted(name) for name in found.used)}]",
        f"columns = [{', '.join(quoted(name) for name in COLUMNS)}]",
        "",
    ]
    for level in LEVELS:
        if level in found.values:
            lines += table(f"effects.{level}", found.values[level])
            lines += table(f"deviation.{level}", found.deviation[level])
    lines += ["[domain]", *(f"{quoted(key)} = {ends}" for key, ends in found.domain.items()), ""]
    lines += ["[refused]", *(f"{quoted(name)} = {quoted(reason)}" for name, reason in found.refused), ""]
    file = Path(path)
    write_atomically(file, "\n".join(lines))
    return file
