"""The measurements that ship with glmplan: every campaign of `calibration/measurements`, one record for each run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_rows, read_toml
from glmplan.facts.folders import data_folder
from glmplan.readers.runs.columns import COLUMNS
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.table import read_runs

__all__ = ["Acceptance", "campaigns", "day_of", "load_acceptance", "load_measurements", "repeats", "row_faults"]

#: what no row that ships may leave out
_FILLED = ("id", "campaign", "model", "speculative", "phase", "protocol")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A cited mean number of tokens that a speculative step yields for each request.

    Attributes
    ----------
    run : str or None
        Id of the run that shows it; None when a page states it by itself.
    model, method, engine, text : str
        Model, draft method, engine and kind of text; empty when not stated.
    draft_tokens, verify_tokens : int or None
        Draft passes and verified tokens of a step, [token]
    concurrency : float or None
        Requests in flight, [-]
    acceptance_length : float
        Mean tokens of a step, [token]
    basis, source : str
        How the length was obtained, and where it stands.
    """

    run: str | None
    model: str
    method: str
    engine: str
    text: str
    draft_tokens: int | None
    verify_tokens: int | None
    concurrency: float | None
    acceptance_length: float
    basis: str
    source: str


@cache
def campaigns() -> dict[str, dict[str, Any]]:
    """Return `calibration/sources.toml`: campaign → where it comes from, how it was measured, its traps.

    Returns
    -------
    dict
        Campaign → its entry.

    Raises
    ------
    SpecError
        If the file cannot be read.

    Examples
    --------
    >>> campaigns()["inferencex"]["rows"]
    1487
    """
    return read_toml(data_folder("calibration") / "sources.toml")


@cache
def _load() -> tuple[Run, ...]:
    folder, sources = data_folder("calibration") / "measurements", campaigns()
    runs = []
    for file in sorted({entry["file"] for entry in sources.values()}):
        for run in read_runs(folder / file):
            entry = sources.get(run.campaign or "")
            if entry is None:
                raise SpecError("has no entry in sources.toml", file=file, field=run.id, value=run.campaign)
            trust = run.trust or entry["trust"]
            source = run.source or entry["address"]
            if run.source and not run.source.startswith("http") and entry["address"].startswith("http"):
                source = f"{entry['address']}/{run.source}"
            runs.append(replace(run, trust=trust, source=source))
    return tuple(runs)


def load_measurements() -> list[Run]:
    """Return every run of every campaign, with trust and source filled in from its campaign.

    Returns
    -------
    list of Run
        In the order of the files and rows.

    Raises
    ------
    SpecError
        If a file is missing or a row belongs to a campaign without an entry in `sources.toml`.

    Examples
    --------
    >>> len(load_measurements())
    8565
    """
    return list(_load())


_DAY = re.compile(r"\d{4}-\d{2}(?:-\d{2})?")


def day_of(run: Run) -> str:
    """Day on which a run was measured, as its row or else its campaign says.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    str
        As ``2026-04-01`` or ``2026-04``, the last one where a campaign names several; empty where no month is known.

    Examples
    --------
    >>> day_of(Run("a", "glm-5", "b200-sxm", measured_on="2026-03-12")), day_of(Run("a", "glm-5", "b200-sxm"))
    ('2026-03-12', '')
    """
    entry = campaigns().get(run.campaign or "", {})
    said = _DAY.findall(run.measured_on or "") or _DAY.findall(str(entry.get("measured", "")))
    return max(said, default="")


def row_faults(row: Mapping[str, str]) -> tuple[str, ...]:
    """Say what keeps a row from being one that ships: its columns, what it must fill, and what its cells may hold.

    Parameters
    ----------
    row : mapping
        Column → cell; empty cells are missing values.

    Returns
    -------
    tuple of str
        What is wrong, each with its column.

    Examples
    --------
    >>> row_faults({"id": "a", "campaign": "b", "model": "c", "speculative": "none", "phase": "decoding",
    ...             "protocol": "single-stream", "tp": "0"})[0]
    "phase: 'decoding' is none of serving, decode, prefill, memory"
    """
    found = [f"{name}: is empty" for name in _FILLED if not row.get(name)]
    found += [f"{name}: is no column of a run" for name in row if name not in COLUMNS]
    told = ((name, COLUMNS[name].fault(text)) for name, text in row.items() if text and name in COLUMNS)
    return (*found, *(f"{name}: {fault}" for name, fault in told if fault))


def load_acceptance() -> list[Acceptance]:
    """Return every cited acceptance length of speculative decoding.

    Returns
    -------
    list of Acceptance
        In the order of `calibration/measurements/acceptance.csv`.

    Examples
    --------
    >>> sorted({row.method for row in load_acceptance()})
    ['', 'eagle3', 'mtp']
    """
    path = data_folder("calibration") / "measurements" / "acceptance.csv"
    return [
        Acceptance(
            run=row["run"] or None,
            model=row["model"],
            method=row["method"],
            engine=row["engine"],
            text=row["text"],
            draft_tokens=int(row["draft_tokens"]) if row["draft_tokens"] else None,
            verify_tokens=int(row["verify_tokens"]) if row["verify_tokens"] else None,
            concurrency=float(row["concurrency"]) if row["concurrency"] else None,
            acceptance_length=float(row["acceptance_length"]),
            basis=row["basis"],
            source=row["source"],
        )
        for row in read_rows(path)
    ]


#: models of equal shapes under whose names the same runs were published
_SAME_SHAPES = {"deepseek-r1": "deepseek-v3"}


def repeats(runs: Iterable[Run]) -> dict[str, str]:
    """Return the runs that repeat another one: the same figures under the same conditions, so not new evidence.

    Several figures count as the same within 0.2 % (rounding), a single one only when equal. DeepSeek-R1 and -V3 have
    equal shapes and share runs. Keep a run and its repetitions in one fold of a cross-validation.

    Parameters
    ----------
    runs : iterable of Run
        The runs.

    Returns
    -------
    dict
        Id of the repetition → id of the first such run.

    Examples
    --------
    >>> twice = repeats(load_measurements())  # MLPerf's 99 and 99.9 rows, DeepSeek-R1 and -V3, carried twice
    >>> 300 < len(twice) < 450
    True
    """
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if run.observed:
            key = (_SAME_SHAPES.get(run.model, run.model), run.accelerator, run.accelerator_count, run.engine,
                   run.weights, run.tp, run.dp, run.ep, run.phase, run.protocol, run.concurrency, run.input_tokens,
                   run.output_tokens, run.context_depth, run.speculation, tuple(sorted(run.observed)))  # fmt: skip
            groups[key].append(run)
    found: dict[str, str] = {}
    for group in groups.values():
        firsts: list[Run] = []
        for run in group:
            slack = 0.002 if len(run.observed) > 1 else 0.0
            same = (f.id for f in firsts if all(abs(run.observed[n] - x) <= slack * x for n, x in f.observed.items()))
            first = next(same, None)
            if first is None:
                firsts.append(run)
            else:
                found[run.id] = first
    return found
