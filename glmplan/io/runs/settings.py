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

from glmplan.catalog.files import data_folder, read_entries, read_table
from glmplan.catalog.rule_provenance import still_there
from glmplan.errors import SpecError
from glmplan.io.runs.record import Run, Speculation, read_speculation

__all__ = [
    "COLUMNS",
    "SETTINGS",
    "Asked",
    "CampaignSession",
    "CampaignSettings",
    "Launch",
    "Launched",
    "alternatives",
    "campaign_session",
    "campaign_settings",
    "draft_lengths",
    "launched",
    "launched_drafts",
    "other_settings",
    "read_launches",
    "read_sessions",
    "recipe_models",
    "recipe_names",
]


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

        Returns: [unit of the column].
        """
        cell = self.cells[name]
        return float(cell) if cell else None

    def lists(self, asked: Asked) -> bool:
        """Whether its list has the lengths and the requests in flight of a load, or any load is meant."""
        lengths = asked.input_tokens, asked.output_tokens
        return not self.loads or any(one[:2] == lengths and asked.concurrency in one[2] for one in self.loads)

    def at(self, asked: Asked) -> dict[str, Any]:
        """What it sets under a load.

        Returns: One value for each of `SETTINGS`; None is the engine's default.
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

    Examples
    --------
    >>> "vllm-recipes" in recipe_names()
    True
    """
    return tuple(sorted({campaign for campaign, _ in _table()}))


def recipe_models(campaign: str, engine: str, accelerator: str) -> tuple[str, ...]:
    """Return of which models a campaign or collection has launches.

    Examples
    --------
    >>> "gpt-oss-120b in mxfp4" in recipe_models("inferencex", "vllm", "b200-sxm")
    True
    """
    held = _table().get((campaign.partition(":")[0].strip(), engine), {})
    return tuple(sorted({f"{model} in {weights}" for model, part, weights in held if part == accelerator}))


def launched(campaign: str, asked: Asked) -> Launched:
    """What a campaign or recipe set on a server.

    - `campaign`: As in the table; a recipe behind a colon (``vllm-recipes: single_node_tp``) holds only launches
      whose own recipe begins so.
    - Returns: Model, part, engine, format and whether it drafts must be those of a launch. Of several, the one in
      force on the day is taken, else the last before; then, as long as one is left, those of the same version, draft,
      layout, lengths and requests in flight. What those that remain agree about is set, the rest is open.

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

    Returns: Setting → value, for each open one. Where launches disagree, as each of them has it; where none covers
      the server, as launches of the engine until that day set them together, the most common first: of the same model
      on the same part if there are any, else of the model, else of the part, else all.

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

    Returns: Lengths of the drafted chain, sorted; empty where it was launched without only, [token].

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


# What a benchmark campaign set on its servers: facts of the campaign that its tables of results do not repeat.

_CONDITIONS = ("protocol", "engine", "silicon", "accelerator", "model")
_SETTINGS = ("kv", "fraction", "budget", "budget_slack", "gather_steps", "requests_per_user", "running_limit",
             "reserve", "whole_prompts", "prefill_first", "replica", "parts", "one_group", "label_share", "label_frame",
             "output_limit")  # fmt: skip
_REPLICA = ("tp", "pp", "dp", "ep")
_REQUESTS = ("input_tokens", "output_tokens", "lengths")
#: conditions of a session that name what a run must have, one value or several
_NAMED = ("protocol", "engine", "engine_version", "model", "accelerator", "experts_format")
_NUMBERED = ("tp", "ep", "input_tokens", "output_tokens", "concurrency_from", "concurrency_to")
_DATED = ("measured_from", "measured_to")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """Settings of a campaign's servers; None leaves the engine's default.

    Attributes
    ----------
    kv : str or None
        Format of the KV cache.
    fraction : float or None
        Memory fraction, [-]
    budget : int or None
        Tokens that a step may hold, [token]
    poll_interval : int
        Steps between two looks at newly arrived requests, [-]
    gather_steps : int
        Steps that new requests wait for others where attention is data-parallel, [-]
    batch_wait_steps : int
        Steps that new requests wait for others where attention is not data-parallel, [-]
    batch_wait_share : float
        Share of the budget at which that wait ends early, [-]
    lengths : tuple of float or None
        Lengths are uniform between these shares of the stated ones, [-]
    requests_per_user : int or None
        Requests of a run for each one in flight, [-]
    input_tokens, output_tokens : float or None
        Mean prompt and answer of the data set that the protocol prescribes, [token]
    running_limit : int or None
        Requests that one server ran at once, [-]
    reserve : float or None
        Share of the answer that must fit before a request is admitted, [-]
    whole_prompts, prefill_first : bool or None
        Whether prompts are never split over steps, and whether they run in steps of their own.
    replica : tuple of int or None
        Layout (tp, pp, dp, ep) of one of the independent servers that the accelerators were divided into; empty for the
        fewest accelerators that hold the model. None where the accelerators are one server, [-]
    parts : int
        Parts in each accelerator that the table counts: a card may have two, [-]
    one_group : bool
        Whether the accelerators are one tensor-parallel group, whatever the table says of it.
    label_share : float
        Tokens behind each token of a length that is a label and no count, [-]
    label_frame : float
        Tokens around them that the label does not count, [token]
    output_limit : float
        Tokens that are generated in the time that a measurement takes, where tables state a limit that is not reached,
        [token]
    graphs : bool or None
        Whether steps ran from captured graphs.
    attention_backend : str or None
        Kernels of attention.
    expert_kernels : str
        Kernels of the experts that were switched on; empty where nothing was said.
    launched : bool
        Whether this stands in the table of launches, so that what is None was left to the engine unless it is open.
    open : tuple of str
        Settings that the campaign's scripts would say, but none of those known covers this server or they disagree.
    source : str
        Where this is written; empty for no campaign.
    """

    kv: str | None = None
    fraction: float | None = None
    budget: int | None = None
    poll_interval: int = 1
    gather_steps: int = 0
    batch_wait_steps: int = 0
    batch_wait_share: float = 1.0
    lengths: tuple[float, float] | None = None
    requests_per_user: int | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    running_limit: int | None = None
    reserve: float | None = None
    whole_prompts: bool | None = None
    prefill_first: bool | None = None
    replica: tuple[int, ...] | None = None
    parts: int = 1
    one_group: bool = False
    label_share: float = 1.0
    label_frame: float = 0.0
    output_limit: float = float("inf")
    graphs: bool | None = None
    attention_backend: str | None = None
    expert_kernels: str = ""
    launched: bool = False
    open: tuple[str, ...] = ()
    source: str = ""


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    found = read_entries(_file_campaigns(), "settings", {*_CONDITIONS, *_SETTINGS, "release_from"})
    for entry in found:
        layout = entry.get("replica", {})
        if layout != "fewest" and not set(layout) <= set(_REPLICA):
            raise SpecError(
                "is no layout of a server", file=_file_campaigns(), field="replica", value=layout, choices=_REPLICA
            )
    return found


@cache
def _data_sets() -> tuple[dict[str, Any], ...]:
    return read_entries(_file_campaigns(), "requests", {"protocol", "model", "input_between", *_REQUESTS})


@cache
def _launched() -> dict[str, dict[str, Any]]:
    """Protocol → the campaign in the table of launches under which its servers stand."""
    found = read_entries(_file_campaigns(), "launched", {"protocol", "campaign", "models"})
    for entry in found:
        if entry.get("campaign") not in recipe_names():
            said = str(entry.get("campaign"))
            raise SpecError(
                "is in no launch", file=_file_campaigns(), field="campaign", value=said, choices=recipe_names()
            )
    return {entry["protocol"]: entry for entry in found}


def _file_campaigns() -> Path:
    return data_folder("calibration") / "protocols.toml"


def _holds(entry: dict[str, Any], asked: dict[str, Any], conditions: tuple[str, ...] = _CONDITIONS) -> bool:
    """Whether all conditions of an entry hold; one that is a list asks for any of its values."""
    return all(asked[name] in _several(entry[name]) for name in conditions if name in entry)


def campaign_settings(asked: Asked) -> CampaignSettings:
    """Settings of the campaign that a run belongs to, or of the recipe that it names.

    Returns: What `calibration/settings.csv` says where a recipe is named or the campaign's scripts are known, else
      those of the first entry of `calibration/protocols.toml` whose conditions all hold; nothing set if there is
      none. The data set has entries of its own.

    Examples
    --------
    >>> campaign_settings(Asked("trtllm", "gpt-oss-120b", "mxfp4", protocol="inferencex", accelerator="b200-sxm",
    ...                         concurrency=64, measured_on="2026-02-05", input_tokens=1024, output_tokens=1024)).budget
    20000
    """
    conditions = {name: getattr(asked, name) for name in _CONDITIONS}
    of_data = ("protocol", "model")
    sets = still_there(_data_sets())
    data = next((one for one in sets if _holds(one, conditions, of_data) and _fits(one, asked)), {})
    fixed: dict[str, Any] = {name: float(data[name]) for name in ("input_tokens", "output_tokens") if name in data}
    if "lengths" in data:
        fixed["lengths"] = tuple(data["lengths"])
    campaign, asked = _campaign_of(asked)
    if campaign:
        found = launched(campaign, asked)
        return replace(CampaignSettings(**fixed), **found.values, launched=True, open=found.open, source=found.source)
    for entry in still_there(_entries()):
        first = tuple(int(part) for part in str(entry.get("release_from", "0")).split("."))
        if (first == (0,) or asked.release >= first) and _holds(entry, conditions):
            return replace(_of_entry(entry, asked, fixed), **fixed, source=str(entry["source"]))
    return CampaignSettings(source=data.get("source", ""), **fixed)


def other_settings(asked: Asked, settings: CampaignSettings) -> tuple[CampaignSettings, ...]:
    """The same with what the campaign set on other servers, for each way in which what is open was set.

    Examples
    --------
    >>> asked = Asked("vllm", "kimi-k2.5", "nvfp4", protocol="inferencex", accelerator="b300-sxm",
    ...               measured_on="2026-04-03", tp=8, input_tokens=1024, output_tokens=1024, concurrency=64)
    >>> {one.fraction for one in other_settings(asked, campaign_settings(asked))} >= {0.9}
    True
    """
    if not settings.open:
        return ()
    campaign, asked = _campaign_of(asked)
    return tuple(replace(settings, **one, open=()) for one in alternatives(campaign, asked))


def launched_drafts(asked: Asked) -> tuple[int, ...]:
    """With how many drafted tokens the campaign of a run launched this server too.

    Returns: Lengths of the drafted chain, sorted; empty where its scripts are not known or never drafted, [token].

    Examples
    --------
    >>> launched_drafts(Asked("vllm", "llama-3.1-70b", "fp8", protocol="inferencex", accelerator="h200-sxm"))
    ()
    """
    campaign, asked = _campaign_of(asked)
    return draft_lengths(campaign, asked) if campaign else ()


def _campaign_of(asked: Asked) -> tuple[str, Asked]:
    """Campaign in the table of launches, and the question with the model that it served; empty where there is none."""
    entry = _launched().get(asked.protocol, {})
    model = entry.get("models", {}).get(asked.model, asked.model)
    return asked.recipe or entry.get("campaign", ""), replace(asked, model=model)


def _fits(entry: dict[str, Any], asked: Asked) -> bool:
    low, high = entry.get("input_between", (0.0, float("inf")))
    return bool(low <= asked.input_tokens <= high)


def _of_entry(entry: dict[str, Any], asked: Asked, fixed: dict[str, Any]) -> CampaignSettings:
    """Settings of an entry of `protocols.toml`."""
    budget = entry.get("budget")
    if "budget_slack" in entry:
        # a whole prompt beside all who decode
        tokens = asked.concurrency + (asked.input_tokens or fixed.get("input_tokens", 0.0))
        budget = max(int(budget or 0), round(tokens) + int(entry["budget_slack"]))
    return CampaignSettings(
        kv=entry.get("kv"),
        fraction=entry.get("fraction"),
        budget=budget,
        gather_steps=int(entry.get("gather_steps", 0)),
        requests_per_user=entry.get("requests_per_user"),
        running_limit=entry.get("running_limit"),
        reserve=entry.get("reserve"),
        whole_prompts=entry.get("whole_prompts"),
        prefill_first=entry.get("prefill_first"),
        replica=_replica(entry),
        parts=int(entry.get("parts", 1)),
        one_group=bool(entry.get("one_group", False)),
        label_share=float(entry.get("label_share", 1.0)),
        label_frame=float(entry.get("label_frame", 0.0)),
        output_limit=float(entry.get("output_limit", "inf")),
    )


def _replica(entry: dict[str, Any]) -> tuple[int, ...] | None:
    layout = entry.get("replica")
    if layout is None:
        return None
    return () if layout == "fewest" else tuple(int(layout.get(name, 1)) for name in _REPLICA)


@dataclass(frozen=True, slots=True)
class CampaignSession:
    """What a campaign ran on a day with one build of an engine.

    Attributes
    ----------
    speculation : Speculation
        How it drafted; ``unknown`` if it was run both ways and nothing tells which of them a row is.
    source : str
        Where this is written.
    """

    speculation: Speculation
    source: str


def read_sessions(path: str | Path) -> tuple[dict[str, Any], ...]:
    """Read a file of sessions and check every entry.

    Returns: The entries, in the order of the file.

    Examples
    --------
    >>> sessions = read_sessions(data_folder("calibration") / "sessions.toml")
    >>> {entry["protocol"] for entry in sessions}
    {'inferencex'}
    """
    fields = {*_NAMED, *_NUMBERED, *_DATED, "data_parallel", "runs", "speculative"}
    found = read_entries(path, "sessions", fields)
    for entry in found:

        def bad(what: str, field: str, entry: dict[str, Any] = entry) -> SpecError:
            return SpecError(what, file=path, field=field, value=str(entry.get(field)))

        if "protocol" not in entry:
            raise bad("is missing: a session belongs to a campaign", "protocol")
        for name in (*_NAMED, "runs"):
            if not all(isinstance(one, str) and one for one in _several(entry.get(name, []))):
                raise bad("is neither a name nor a list of names", name)
        for name in _NUMBERED:
            if any(isinstance(one, bool) or not isinstance(one, int) for one in _several(entry.get(name, []))):
                raise bad("is not a whole number", name)
        for name in _DATED:
            value = entry.get(name, "2026-01-14")
            if not (isinstance(value, str) and _DATE.fullmatch(value)):
                raise bad("is not a date like 2026-01-14", name)
        if not isinstance(entry.get("data_parallel", True), bool):
            raise bad("is neither true nor false", "data_parallel")
        for low, high in (("measured_from", "measured_to"), ("concurrency_from", "concurrency_to")):
            if low in entry and high in entry and entry[low] > entry[high]:
                raise bad(f"is after {high}", low)
        said = str(entry.get("speculative", ""))
        drafted = read_speculation(said, "", None, None)
        if said not in ("none", "unknown") and not (drafted.method and drafted.draft_tokens):
            raise bad("is neither none, unknown nor a method with its steps, like 'mtp steps=3'", "speculative")
    return found


@cache
def _sessions() -> tuple[dict[str, Any], ...]:
    return read_sessions(data_folder("calibration") / "sessions.toml")


def campaign_session(run: Run, *, model: str, experts_format: str) -> CampaignSession | None:
    """What the campaign of a run is known to have run that day, where the row itself does not say it.

    - `model`, `experts_format`: Canonical model and format of the routed experts.
    - Returns: That of the first entry of `calibration/sessions.toml` whose conditions all hold; None if there is
      none. A condition on what the row does not state, such as its date, does not hold.

    Examples
    --------
    >>> run = Run("one", "deepseek-r1", "b200-sxm", engine="trtllm", engine_version="1.2.0rc6.post3", tp=8, dp=1,
    ...           protocol="inferencex", concurrency=4.0)
    >>> campaign_session(run, model="deepseek-r1", experts_format="nvfp4").speculation.draft_tokens
    3
    """
    named = dict(protocol=run.protocol, engine=run.engine, engine_version=run.engine_version, model=model,
                 accelerator=run.accelerator, experts_format=experts_format, tp=run.tp, ep=run.ep,
                 input_tokens=run.input_tokens, output_tokens=run.output_tokens)  # fmt: skip
    ranges: tuple[tuple[str, Any], ...] = (("measured", run.measured_on), ("concurrency", run.concurrency))
    for entry in still_there(_sessions()):
        if "runs" in entry and run.id not in entry["runs"]:
            continue
        if "data_parallel" in entry and entry["data_parallel"] != ((run.dp or 1) > 1):
            continue
        if not _holds(entry, named, tuple(named)):
            continue
        if all(_within(value, entry.get(f"{name}_from"), entry.get(f"{name}_to")) for name, value in ranges):
            said = read_speculation(entry["speculative"], "", None, None)
            return CampaignSession(said, str(entry["source"]))
    return None


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _within(value: Any, low: Any, high: Any) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or low <= value) and (high is None or value <= high)
