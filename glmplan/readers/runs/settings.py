"""How campaigns and recipes launched their servers: `calibration/settings.csv`, and the one look-up in it.

`tools/harvest_settings.py` writes the table from launch commands. An empty cell of a setting is the engine's own
default, which is an answer. What no launch covers, and what launches that fit equally well disagree about, is open.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_table
from glmplan.facts.folders import data_folder

__all__ = ["COLUMNS", "SETTINGS", "Asked", "Launch", "Launched", "alternatives", "draft_lengths", "launched",
           "read_launches", "recipe_models", "recipe_names"]  # fmt: skip

#: settings of a launch, as they are compared and left open
SETTINGS: tuple[str, ...] = (
    "kv", "fraction", "budget", "running_limit", "whole_prompts", "reserve", "poll_interval", "gather_steps",
    "batch_wait_steps", "batch_wait_share", "graphs", "attention_backend", "expert_kernels",
)  # fmt: skip
#: columns of the table in order: budgets in [token] and [token/token], limits in [-], steps in [-], shares in [-]
COLUMNS: tuple[str, ...] = (
    "campaign", "recipe", "model", "accelerator", "engine", "image", "weights", "valid_from", "valid_until", "tp", "pp",
    "dp", "ep", "loads", "draft_tokens", "kv_cache", "memory_fraction", "budget_tokens", "budget_per_input",
    "budget_per_output", "budget_per_user", "whole_prompts", "running_limit", "running_limit_per_user", "reserve_share",
    "poll_interval_steps", "gather_steps", "batch_wait_steps", "batch_wait_share", "cuda_graphs", "attention_backend",
    "expert_kernels", "source",
)  # fmt: skip
_FILLED = ("campaign", "model", "accelerator", "engine", "weights", "valid_from", "source")
_COUNTS = ("tp", "pp", "dp", "ep")
_AMOUNTS = ("draft_tokens", "memory_fraction", "budget_tokens", "budget_per_input", "budget_per_output",
            "budget_per_user", "running_limit", "running_limit_per_user", "reserve_share", "poll_interval_steps",
            "gather_steps", "batch_wait_steps", "batch_wait_share")  # fmt: skip
_SHARES = ("memory_fraction", "reserve_share", "batch_wait_share")
_FLAGS = ("whole_prompts", "cuda_graphs")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOAD = re.compile(r"(\d+)/(\d+):(\d+(?:,\d+)*)")
#: a chain of any length: longer than every launch has [token]
_ANY = 1 << 20
#: alternatives that are looked at, the most common first [-]
_MOST = 6


@dataclass(frozen=True, slots=True)
class Asked:
    """What the settings of a server are looked up by.

    Attributes
    ----------
    engine, model, weights : str
        Engine, canonical model, format of the routed experts or of the dense layers.
    protocol, recipe : str
        Protocol of the run; the recipe it names, as ``vllm-recipes`` or ``vllm-recipes: single_node_tp``.
    accelerator, silicon : str
        Canonical part, and compute capability without the minor number.
    concurrency : float
        Requests in flight, [-]
    input_tokens, output_tokens : float
        Nominal lengths, [token]
    tp, pp, dp, ep : int
        Layout, [-]
    measured_on, version : str
        Date of the run, empty for today; engine version as written.
    release : tuple of int
        The same as numbers, [-]
    draft_tokens : int
        Drafted tokens of a step, [token]
    """

    engine: str
    model: str
    weights: str
    protocol: str = ""
    recipe: str = ""
    accelerator: str = ""
    silicon: str = ""
    concurrency: float = 1.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    measured_on: str = ""
    version: str = ""
    release: tuple[int, ...] = ()
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the table.

    Attributes
    ----------
    cells : dict of str to str
        Column → cell, as in `COLUMNS`.
    loads : tuple of (float, float, frozenset of float)
        Listed input and output lengths [token] with the requests in flight [-]; empty for any load.
    """

    cells: dict[str, str]
    loads: tuple[tuple[float, float, frozenset[float]], ...]

    def amount(self, name: str) -> float | None:
        """Number in a column; None where the cell is empty.

        Parameters
        ----------
        name : str
            The column.

        Returns
        -------
        float or None
            [unit of the column]
        """
        cell = self.cells[name]
        return float(cell) if cell else None

    def lists(self, asked: Asked) -> bool:
        """Whether its list has the lengths and the requests in flight of a load, or any load is meant.

        Parameters
        ----------
        asked : Asked
            The load.

        Returns
        -------
        bool
            True if so.
        """
        lengths = asked.input_tokens, asked.output_tokens
        return not self.loads or any(one[:2] == lengths and asked.concurrency in one[2] for one in self.loads)

    def at(self, asked: Asked) -> dict[str, Any]:
        """What it sets under a load.

        Parameters
        ----------
        asked : Asked
            Lengths and requests in flight.

        Returns
        -------
        dict
            One value for each of `SETTINGS`; None is the engine's default.
        """
        load = (1.0, asked.input_tokens, asked.output_tokens, asked.concurrency)
        budgets = ("budget_tokens", "budget_per_input", "budget_per_output", "budget_per_user")
        limits = ("running_limit", "running_limit_per_user")
        steps = {name: self.amount(name) for name in ("gather_steps", "batch_wait_steps")}
        return {
            "kv": self.cells["kv_cache"] or None,
            "fraction": self.amount("memory_fraction"),
            "budget": self._sum(budgets, load),
            # a number may be that of the listed load alone: of another one it says nothing
            "running_limit": self._sum(limits, (1.0, asked.concurrency)) if self.lists(asked) else None,
            "whole_prompts": _flag(self.cells["whole_prompts"]),
            "reserve": self.amount("reserve_share"),
            "poll_interval": int(self.amount("poll_interval_steps") or 1),
            **{name: int(value or 0) for name, value in steps.items()},
            "batch_wait_share": self.amount("batch_wait_share") or 1.0,
            "graphs": _flag(self.cells["cuda_graphs"]),
            "attention_backend": self.cells["attention_backend"] or None,
            "expert_kernels": self.cells["expert_kernels"],
        }

    def _sum(self, names: tuple[str, ...], load: tuple[float, ...]) -> int | None:
        terms = [(self.amount(name), one) for name, one in zip(names, load, strict=True)]
        if all(value is None for value, _ in terms):
            return None
        return max(round(sum((value or 0.0) * one for value, one in terms)), 1)


@dataclass(frozen=True, slots=True)
class Launched:
    """What launches say of one server.

    Attributes
    ----------
    values : dict
        Setting → value, None for the engine's default. Settings that are open are not in it.
    open : tuple of str
        Settings that no launch says, or that launches which fit equally well disagree about.
    source : str
        Where the launch is written; empty where none was found.
    """

    values: dict[str, Any]
    open: tuple[str, ...]
    source: str = ""


def _flag(cell: str) -> bool | None:
    return cell == "yes" if cell else None


def read_launches(path: str | Path) -> tuple[Launch, ...]:
    """Read a table of launches and check every entry.

    Parameters
    ----------
    path : path
        The table.

    Returns
    -------
    tuple of Launch
        In the order of the file.

    Raises
    ------
    SpecError
        If the columns are others, or a cell is missing or bad.

    Examples
    --------
    >>> launches = read_launches(data_folder("calibration") / "settings.csv")
    >>> "inferencex" in {one.cells["campaign"] for one in launches}
    True
    """
    return tuple(_launch(dict(zip(COLUMNS, row, strict=True)), path) for row in _rows(Path(path)))


def _rows(path: Path) -> list[list[str]]:
    header, *rows = read_table(path) or [[]]
    if tuple(header) != COLUMNS:
        raise SpecError("has other columns than a table of launches", file=path, field=",".join(header))
    return rows


def _launch(cells: dict[str, str], path: str | Path) -> Launch:
    def bad(what: str, field: str) -> SpecError:
        return SpecError(what, file=path, field=field, value=f"{cells[field]} ({cells['campaign']} {cells['recipe']})")

    for name in _FILLED:
        if not cells[name]:
            raise bad("is empty", name)
    for name in (*_COUNTS, *_AMOUNTS):
        if cells[name] and re.fullmatch(r"\d+" if name in _COUNTS else r"\d*\.?\d+", cells[name]) is None:
            raise bad("is no number of zero or more", name)
    for name in _SHARES:
        if cells[name] and not 0.0 < float(cells[name]) <= 1.0:
            raise bad("is no share", name)
    for name in ("valid_from", "valid_until"):
        if cells[name] and _DAY.fullmatch(cells[name]) is None:
            raise bad("is not a date like 2026-01-14", name)
    for name in _FLAGS:
        if cells[name] not in ("", "yes", "no"):
            raise bad("is neither yes, no nor empty", name)
    found = [_LOAD.fullmatch(one) for one in cells["loads"].split()]
    if None in found:
        raise bad("is no list of input/output:users", "loads")
    loads = tuple((float(one[1]), float(one[2]), frozenset(map(float, one[3].split(",")))) for one in found if one)
    return Launch(cells, loads)


@cache
def _table() -> dict[tuple[str, str], dict[tuple[str, str, str], list[list[str]]]]:
    """Rows of the shipped table by campaign and engine, then by model, part and format."""
    names = [COLUMNS.index(name) for name in ("campaign", "engine", "model", "accelerator", "weights")]
    found: dict[tuple[str, str], dict[tuple[str, str, str], list[list[str]]]] = {}
    for row in _rows(_file()):
        campaign, engine, *key = (row[place] for place in names)
        found.setdefault((campaign, engine), defaultdict(list))[key[0], key[1], key[2]].append(row)
    return found


@cache
def _of(campaign: str, engine: str, key: tuple[str, str, str]) -> tuple[Launch, ...]:
    """Launches of a model on a part in a format; they are read when somebody asks for them."""
    rows = _table().get((campaign, engine), {}).get(key, [])
    return tuple(_launch(dict(zip(COLUMNS, row, strict=True)), _file()) for row in rows)


def _file() -> Path:
    return data_folder("calibration") / "settings.csv"


def recipe_names() -> tuple[str, ...]:
    """Return the campaigns and collections of recipes that the table holds.

    Returns
    -------
    tuple of str
        Their names, sorted.

    Examples
    --------
    >>> "vllm-recipes" in recipe_names()
    True
    """
    return tuple(sorted({campaign for campaign, _ in _table()}))


def recipe_models(campaign: str, engine: str, accelerator: str) -> tuple[str, ...]:
    """Return of which models a campaign or collection has launches.

    Parameters
    ----------
    campaign : str
        As for `launched`.
    engine, accelerator : str
        Engine and canonical part.

    Returns
    -------
    tuple of str
        Model and format, sorted.

    Examples
    --------
    >>> "gpt-oss-120b in mxfp4" in recipe_models("inferencex", "vllm", "b200-sxm")
    True
    """
    held = _table().get((campaign.partition(":")[0].strip(), engine), {})
    return tuple(sorted({f"{model} in {weights}" for model, part, weights in held if part == accelerator}))


def launched(campaign: str, asked: Asked) -> Launched:
    """What a campaign or recipe set on a server.

    Parameters
    ----------
    campaign : str
        As in the table; a recipe behind a colon (``vllm-recipes: single_node_tp``) holds only launches whose own
        recipe begins so.
    asked : Asked
        The server.

    Returns
    -------
    Launched
        Model, part, engine, format and whether it drafts must be those of a launch. Of several, the one in force on the
        day is taken, else the last before; then, as long as one is left, those of the same version, draft, layout,
        lengths and requests in flight. What those that remain agree about is set, the rest is open.

    Raises
    ------
    SpecError
        If the table does not hold the campaign.

    Examples
    --------
    >>> asked = Asked("vllm", "gpt-oss-120b", "mxfp4", accelerator="b200-sxm", measured_on="2026-02-25", tp=1,
    ...               input_tokens=1024, output_tokens=1024, concurrency=64)
    >>> found = launched("inferencex", asked)
    >>> found.values["kv"], found.values["expert_kernels"]
    ('fp8', 'flashinfer-mxfp8')
    """
    found = _found(campaign, asked)
    if not found:
        return Launched({}, SETTINGS)
    told = [one.at(asked) for one in found]
    values = {name: told[0][name] for name in SETTINGS if all(one[name] == told[0][name] for one in told)}
    return Launched(values, tuple(one for one in SETTINGS if one not in values), found[-1].cells["source"])


def _found(campaign: str, asked: Asked) -> list[Launch]:
    """Launches of a server: several where they fit equally well."""
    name, _, recipe = (part.strip() for part in campaign.partition(":"))
    if name not in recipe_names():
        raise SpecError("is no campaign or recipe", field="recipe", value=name, choices=recipe_names())
    same = _of(name, asked.engine, (asked.model, asked.accelerator, asked.weights))
    fit = [one for one in same if one.cells["recipe"].startswith(recipe) and _drafts(one) == (asked.draft_tokens > 0)]
    return _narrowed(_in_force(fit, asked), asked)


def _drafts(launch: Launch) -> bool:
    return launch.cells["draft_tokens"] != "0"


def _of_version(launches: Iterable[Launch], version: str) -> list[Launch]:
    """Launches whose image names a version."""
    if not version:
        return []
    named = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]|rc|post)")
    return [one for one in launches if named.search(one.cells["image"])]


def _in_force(launches: list[Launch], asked: Asked) -> list[Launch]:
    """Launches in force on a day, else those that ended last before it; without a day those of the run's version."""
    if not asked.measured_on and (found := _of_version(launches, asked.version)):
        return found
    day = asked.measured_on or "9"
    started = [one for one in launches if one.cells["valid_from"] <= day + "~"]
    # a change of script makes a campaign run, so that the newer of two that meet on a day ran on it
    if found := [one for one in started if _end(one) > day]:
        return found
    last = max((_end(one) for one in started), default="")
    return [one for one in started if _end(one) == last]


def _end(launch: Launch) -> str:
    return launch.cells["valid_until"] or "9999"


def _narrowed(launches: list[Launch], asked: Asked) -> list[Launch]:
    """Those launches that are most alike: each condition that leaves any is applied, the most telling first."""
    count = asked.tp * asked.pp * asked.dp
    launches = _of_version(launches, asked.version) or launches

    def is_like(name: str, value: bool) -> Callable[[Launch], bool]:
        return lambda one: ((one.amount(name) or 1) > 1) == value

    conditions: tuple[Callable[[Launch], bool], ...] = (
        lambda one: one.amount("draft_tokens") == asked.draft_tokens,
        lambda one: (one.amount("tp") or 0) * (one.amount("pp") or 1) * (one.amount("dp") or 1) == count,
        is_like("dp", asked.dp > 1),
        is_like("ep", asked.ep > 1),
    )
    for holds in conditions:
        launches = [one for one in launches if holds(one)] or launches
    return _listing(launches, asked)


def _listing(launches: list[Launch], asked: Asked) -> list[Launch]:
    """Launches that list the load, else those that list its lengths, else all."""
    lengths = asked.input_tokens, asked.output_tokens
    alike = [one for one in launches if any(load[:2] == lengths for load in one.loads)] or launches
    return [one for one in alike if one.lists(asked)] or alike


def alternatives(campaign: str, asked: Asked) -> tuple[dict[str, Any], ...]:
    """In which ways settings that are open may have been set.

    Parameters
    ----------
    campaign : str
        As for `launched`.
    asked : Asked
        The server.

    Returns
    -------
    tuple of dict
        Setting → value, for each open one. Where launches disagree, as each of them has it; where none covers the
        server, as launches of the engine until that day set them together, the most common first: of the same model on
        the same part if there are any, else of the model, else of the part, else all.

    Examples
    --------
    >>> asked = Asked("vllm", "kimi-k2.5", "nvfp4", accelerator="b300-sxm", measured_on="2026-04-03", tp=8,
    ...               input_tokens=1024, output_tokens=1024, concurrency=64)
    >>> len(launched("inferencex", asked).open), len(alternatives("inferencex", asked)) > 0
    (13, True)
    """
    opened = launched(campaign, asked).open
    near = _found(campaign, asked) or _listing(_near(campaign.partition(":")[0].strip(), asked), asked)
    counted = Counter(tuple(one.at(asked)[name] for name in opened) for one in near) if opened else Counter()
    return tuple(dict(zip(opened, values, strict=True)) for values, _ in counted.most_common(_MOST))


def draft_lengths(campaign: str, asked: Asked) -> tuple[int, ...]:
    """With how many drafted tokens a campaign launched a server, where it did.

    Parameters
    ----------
    campaign : str
        As for `launched`.
    asked : Asked
        The server.

    Returns
    -------
    tuple of int
        Lengths of the drafted chain, sorted; empty where it was launched without only, [token]

    Examples
    --------
    >>> draft_lengths("inferencex", Asked("trtllm", "deepseek-r1", "nvfp4", accelerator="b200-sxm", tp=8,
    ...               measured_on="2026-02-10", input_tokens=1024, output_tokens=1024, concurrency=4))
    (3,)
    """
    found = _found(campaign, replace(asked, draft_tokens=_ANY))
    return tuple(sorted({int(one.amount("draft_tokens") or 0) for one in found} - {0}))


def _near(name: str, asked: Asked) -> list[Launch]:
    """Launches of a campaign for servers that are like one that it does not cover."""
    keys = list(_table().get((name, asked.engine), {}))
    for model, part in ((True, True), (True, False), (False, True), (False, False)):
        near = [
            one
            for key in keys
            if (not model or key[0] == asked.model) and (not part or key[1] == asked.accelerator)
            for one in _of(name, asked.engine, key)
            if one.cells["valid_from"] <= (asked.measured_on or "9") + "~"
        ]
        if near:
            return [one for one in near if _drafts(one) == (asked.draft_tokens > 0)] or near
    return []
