"""Look up the server settings of benchmark campaigns and recipes.

`calibration/settings.csv`, written by `tools/harvest_settings.py` from launch commands, holds launches; an empty cell
is the engine's own default. A setting without a launch, or with different values in launches that fit equally well, is
open. `calibration/protocols.toml` and `calibration/sessions.toml` hold facts of a campaign that its tables of results
do not repeat.
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
from glmplan.catalog.rule_provenance import remaining_rules
from glmplan.errors import SpecError
from glmplan.io.runs.record import Run, Speculation, read_speculation
from glmplan.units import Ratio, TokenCount, Tokens

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
    "launched_experts",
    "other_settings",
    "read_launches",
    "read_sessions",
    "recipe_models",
    "recipe_names",
]


#: settings of a launch that are compared and may be open
SETTINGS: tuple[str, ...] = (
    "kv", "fraction", "budget", "running_limit", "whole_prompts", "reserve", "poll_interval", "gather_steps",
    "batch_wait_steps", "batch_wait_share", "graphs", "attention_backend", "expert_kernels",
)  # fmt: skip
#: columns of the table in order: budgets in [token] and [token/token]
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
#: a speculative chain of any length: longer than that of every launch [token]
_ANY = 1 << 20
#: most alternatives, the most common first
_MOST = 6


@dataclass(frozen=True, slots=True)
class Asked:
    """Key of a look-up of server settings."""

    engine: str
    model: str  # canonical name
    weights: str  # format of the routed experts or of the dense layers
    protocol: str = ""
    recipe: str = ""  # as ``vllm-recipes`` or ``vllm-recipes: single_node_tp``
    accelerator: str = ""  # canonical name
    silicon: str = ""  # compute capability without the minor number
    concurrency: float = 1.0  # requests in flight
    input_tokens: Tokens = 0.0  # nominal
    output_tokens: Tokens = 0.0  # nominal
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    measured_on: str = ""  # date of the run, empty for today
    version: str = ""  # engine version as written
    release: tuple[int, ...] = ()  # the same as numbers
    draft_tokens: int = 0  # speculative tokens of a step


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the table."""

    cells: dict[str, str]  # by column of `COLUMNS`
    #: listed input and output lengths [token], with requests in flight; empty: any load
    loads: tuple[tuple[float, float, frozenset[float]], ...]

    def amount(self, name: str) -> float | None:
        """Return the number in a column, in its unit; None: an empty cell."""
        cell = self.cells[name]
        return float(cell) if cell else None

    def lists(self, asked: Asked) -> bool:
        """Return True if the launch lists a load, or is for any load."""
        lengths = asked.input_tokens, asked.output_tokens
        return not self.loads or any(load[:2] == lengths and asked.concurrency in load[2] for load in self.loads)

    def at(self, asked: Asked) -> dict[str, Any]:
        """Return the launch's value of each of `SETTINGS` under a load.

        None is the engine's default.
        """
        load = (1.0, asked.input_tokens, asked.output_tokens, asked.concurrency)
        budgets = ("budget_tokens", "budget_per_input", "budget_per_output", "budget_per_user")
        limits = ("running_limit", "running_limit_per_user")
        steps = {name: self.amount(name) for name in ("gather_steps", "batch_wait_steps")}
        return {
            "kv": self.cells["kv_cache"] or None,
            "fraction": self.amount("memory_fraction"),
            "budget": self._sum(budgets, load),
            # a number may apply to the listed load alone: it does not hold for another one
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
    """Settings of one server, from launches."""

    values: dict[str, Any]  # None: the engine's default; open settings are absent
    open: tuple[str, ...]  # settings without a launch, or with different values in launches that fit equally well
    source: str = ""  # of the launch; empty: none found


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
    result = [_LOAD.fullmatch(word) for word in cells["loads"].split()]
    if None in result:
        raise bad("is no list of input/output:users", "loads")
    loads = tuple(
        (float(item[1]), float(item[2]), frozenset(map(float, item[3].split(",")))) for item in result if item
    )
    return Launch(cells, loads)


@cache
def _table() -> dict[tuple[str, str], dict[tuple[str, str, str], list[list[str]]]]:
    """Return the shipped rows by campaign, engine and set-up.

    A set-up is a model, an accelerator and a format.
    """
    names = [COLUMNS.index(name) for name in ("campaign", "engine", "model", "accelerator", "weights")]
    result: dict[tuple[str, str], dict[tuple[str, str, str], list[list[str]]]] = {}
    for row in _rows(_file()):
        campaign, engine, *key = (row[place] for place in names)
        result.setdefault((campaign, engine), defaultdict(list))[key[0], key[1], key[2]].append(row)
    return result


@cache
def _of(campaign: str, engine: str, key: tuple[str, str, str]) -> tuple[Launch, ...]:
    """Return the launches of a model on an accelerator in a format.

    They are parsed on first use.
    """
    rows = _table().get((campaign, engine), {}).get(key, [])
    return tuple(_launch(dict(zip(COLUMNS, row, strict=True)), _file()) for row in rows)


def _file() -> Path:
    return data_folder("calibration") / "settings.csv"


def recipe_names() -> tuple[str, ...]:
    """Return the campaigns and recipe collections of the table.

    Examples
    --------
    >>> "vllm-recipes" in recipe_names()
    True
    """
    return tuple(sorted({campaign for campaign, _ in _table()}))


def recipe_models(campaign: str, engine: str, accelerator: str) -> tuple[str, ...]:
    """Return the models that a campaign or collection launched.

    Examples
    --------
    >>> "gpt-oss-120b in mxfp4" in recipe_models("inferencex", "vllm", "b200-sxm")
    True
    """
    held = _table().get((campaign.partition(":")[0].strip(), engine), {})
    return tuple(sorted({f"{model} in {weights}" for model, part, weights in held if part == accelerator}))


def launched(campaign: str, asked: Asked) -> Launched:
    """Return the settings of a campaign or recipe on a server.

    A recipe after a colon in `campaign` (``vllm-recipes: single_node_tp``) selects launches whose own recipe begins so.
    Model, accelerator, engine, format and use of a draft must match. The launch in force on the day counts, else the
    last one before. Version, draft, layout, lengths and concurrency then select, each only if a launch matches.
    Settings that the remaining launches agree on are set; others are open.

    Examples
    --------
    >>> asked = Asked("vllm", "gpt-oss-120b", "mxfp4", accelerator="b200-sxm", measured_on="2026-02-25", tp=1,
    ...               input_tokens=1024, output_tokens=1024, concurrency=64)
    >>> found = launched("inferencex", asked)
    >>> found.values["kv"], found.values["expert_kernels"]
    ('fp8', 'flashinfer-mxfp8')
    """
    result = _found(campaign, asked)
    if not result:
        return Launched({}, SETTINGS)
    told = [launch.at(asked) for launch in result]
    values = {name: told[0][name] for name in SETTINGS if all(launch[name] == told[0][name] for launch in told)}
    return Launched(values, tuple(setting for setting in SETTINGS if setting not in values), result[-1].cells["source"])


def _found(campaign: str, asked: Asked) -> list[Launch]:
    """Return the launches of a server, several where they fit equally well."""
    name, _, recipe = (part.strip() for part in campaign.partition(":"))
    if name not in recipe_names():
        raise SpecError("is no campaign or recipe", field="recipe", value=name, choices=recipe_names())
    same = _of(name, asked.engine, (asked.model, asked.accelerator, asked.weights))
    fit = [
        launch
        for launch in same
        if launch.cells["recipe"].startswith(recipe) and _drafts(launch) == (asked.draft_tokens > 0)
    ]
    return _narrowed(_in_force(fit, asked), asked)


def _drafts(launch: Launch) -> bool:
    return launch.cells["draft_tokens"] != "0"


def _of_version(launches: Iterable[Launch], version: str) -> list[Launch]:
    """Return the launches whose image names a version."""
    if not version:
        return []
    named = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]|rc|post)")
    return [launch for launch in launches if named.search(launch.cells["image"])]


def _in_force(launches: list[Launch], asked: Asked) -> list[Launch]:
    """Return launches in force on a day, else the last before it.

    A run without a day gets those of its version.
    """
    if not asked.measured_on and (result := _of_version(launches, asked.version)):
        return result
    day = asked.measured_on or "9"
    started = [launch for launch in launches if launch.cells["valid_from"] <= day + "~"]
    # a change of script starts a campaign run, so the newer of two launches on one day ran on it
    if result := [launch for launch in started if _end(launch) > day]:
        return result
    last = max((_end(launch) for launch in started), default="")
    return [launch for launch in started if _end(launch) == last]


def _end(launch: Launch) -> str:
    return launch.cells["valid_until"] or "9999"


def _narrowed(launches: list[Launch], asked: Asked) -> list[Launch]:
    """Return the most similar launches.

    Each condition that leaves any is applied, the strongest first.
    """
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
    """Return the launches that list the load, its lengths, or all.

    The first of the three that leaves any.
    """
    lengths = asked.input_tokens, asked.output_tokens
    alike = [launch for launch in launches if any(load[:2] == lengths for load in launch.loads)] or launches
    return [launch for launch in alike if launch.lists(asked)] or alike


def alternatives(campaign: str, asked: Asked) -> tuple[dict[str, Any], ...]:
    """Return the ways in which open settings may have been set.

    setting → value. Where launches disagree, the values of each. Without a launch of the server, the joint values of
    the engine's launches until that day, the most common first: of the same model on the same accelerator if there are
    any, else of the model, else of the accelerator, else all.

    Examples
    --------
    >>> asked = Asked("vllm", "kimi-k2.5", "nvfp4", accelerator="b300-sxm", measured_on="2026-04-03", tp=8,
    ...               input_tokens=1024, output_tokens=1024, concurrency=64)
    >>> len(launched("inferencex", asked).open), len(alternatives("inferencex", asked)) > 0
    (13, True)
    """
    opened = launched(campaign, asked).open
    near = _found(campaign, asked) or _listing(_near(campaign.partition(":")[0].strip(), asked), asked)
    counted = Counter(tuple(launch.at(asked)[name] for name in opened) for launch in near) if opened else Counter()
    return tuple(dict(zip(opened, values, strict=True)) for values, _ in counted.most_common(_MOST))


def draft_lengths(campaign: str, asked: Asked) -> tuple[int, ...]:
    """Return a campaign's speculative chain lengths, sorted [token].

    Examples
    --------
    >>> draft_lengths("inferencex", Asked("trtllm", "deepseek-r1", "nvfp4", accelerator="b200-sxm", tp=8,
    ...               measured_on="2026-02-10", input_tokens=1024, output_tokens=1024, concurrency=4))
    (3,)
    """
    result = _found(campaign, replace(asked, draft_tokens=_ANY))
    return tuple(sorted({int(launch.amount("draft_tokens") or 0) for launch in result} - {0}))


def _near(name: str, asked: Asked) -> list[Launch]:
    """Return a campaign's launches of servers similar to one without a launch."""
    keys = list(_table().get((name, asked.engine), {}))
    for model, part in ((True, True), (True, False), (False, True), (False, False)):
        near = [
            launch
            for key in keys
            if (not model or key[0] == asked.model) and (not part or key[1] == asked.accelerator)
            for launch in _of(name, asked.engine, key)
            if launch.cells["valid_from"] <= (asked.measured_on or "9") + "~"
        ]
        if near:
            return [launch for launch in near if _drafts(launch) == (asked.draft_tokens > 0)] or near
    return []


_CONDITIONS = ("protocol", "engine", "silicon", "accelerator", "model")
_SETTINGS = ("kv", "fraction", "budget", "budget_slack", "gather_steps", "requests_per_user", "running_limit",
             "reserve", "whole_prompts", "prefill_first", "replica", "parts", "one_group", "label_share", "label_frame",
             "output_limit")  # fmt: skip
_REPLICA = ("tp", "pp", "dp", "ep")
_REQUESTS = ("input_tokens", "output_tokens", "lengths")
#: conditions of a session on a run, one value or several
_NAMED = ("protocol", "engine", "engine_version", "model", "accelerator", "experts_format")
_NUMBERED = ("tp", "ep", "input_tokens", "output_tokens", "concurrency_from", "concurrency_to")
_DATED = ("measured_from", "measured_to")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """Settings of a campaign's servers; None leaves the engine's default."""

    kv: str | None = None  # format of the KV cache
    fraction: float | None = None  # of memory
    budget: TokenCount | None = None  # of a step
    poll_interval: int = 1  # steps between two checks for new requests
    gather_steps: int = 0  # steps that new requests wait for others with data-parallel attention
    batch_wait_steps: int = 0  # the same without data-parallel attention
    batch_wait_share: Ratio = 1.0  # of the budget at which that wait ends early
    lengths: tuple[float, float] | None = None  # lengths are uniform between these shares of the stated ones
    requests_per_user: int | None = None  # requests of a run for each one in flight
    input_tokens: float | None = None  # mean of the prescribed data set
    output_tokens: float | None = None  # mean of the prescribed data set
    running_limit: int | None = None  # requests that one server ran at once
    reserve: float | None = None  # share of the output that must fit before a request is admitted
    whole_prompts: bool | None = None  # True: prompts are never split over steps
    prefill_first: bool | None = None  # True: prompts run in steps of their own
    #: (tp, pp, dp, ep) of one of several independent servers; empty: the fewest accelerators that hold the model; None:
    #: one server
    replica: tuple[int, ...] | None = None
    parts: int = 1  # dies in each accelerator that the table counts
    one_group: bool = False  # True: one tensor-parallel group, whatever the table says
    label_share: Ratio = 1.0  # tokens of each token of a length that is a label and no count
    label_frame: Tokens = 0.0  # around them, not counted by the label
    #: generated in the time of a measurement, where tables state a limit that is not reached
    output_limit: Tokens = float("inf")
    graphs: bool | None = None  # True: steps ran from captured graphs
    attention_backend: str | None = None  # kernels of attention
    expert_kernels: str = ""  # requested kernels; empty: none stated
    prefix_cache: bool = True  # False: its servers keep no prefixes
    launched: bool = False  # True: in the table of launches, so None is the engine's default unless open
    #: settings of the campaign's scripts, but no known script covers this server or they disagree
    open: tuple[str, ...] = ()
    source: str = ""  # empty: no campaign


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    result = read_entries(_file_campaigns(), "settings", {*_CONDITIONS, *_SETTINGS, "release_from"})
    for entry in result:
        layout = entry.get("replica", {})
        if layout != "fewest" and not set(layout) <= set(_REPLICA):
            raise SpecError(
                "is no layout of a server", file=_file_campaigns(), field="replica", value=layout, choices=_REPLICA
            )
    return result


@cache
def _data_sets() -> tuple[dict[str, Any], ...]:
    return read_entries(_file_campaigns(), "requests", {"protocol", "model", "input_between", *_REQUESTS})


@cache
def _launched() -> dict[str, dict[str, Any]]:
    """Return protocol → its campaign in the table of launches."""
    result = read_entries(_file_campaigns(), "launched", {"protocol", "campaign", "models", "prefix_cache"})
    for entry in result:
        if entry.get("campaign") not in recipe_names():
            said = str(entry.get("campaign"))
            raise SpecError(
                "is in no launch", file=_file_campaigns(), field="campaign", value=said, choices=recipe_names()
            )
    return {entry["protocol"]: entry for entry in result}


def _file_campaigns() -> Path:
    return data_folder("calibration") / "protocols.toml"


def _holds(entry: dict[str, Any], asked: dict[str, Any], conditions: tuple[str, ...] = _CONDITIONS) -> bool:
    """Return True if all conditions of an entry hold.

    A list holds with any of its values.
    """
    return all(asked[name] in _several(entry[name]) for name in conditions if name in entry)


def campaign_settings(asked: Asked) -> CampaignSettings:
    """Return the settings of a run's campaign, or of the recipe that it names.

    From `calibration/settings.csv` where a recipe is named or the campaign's scripts are known, else from the first
    entry of `calibration/protocols.toml` whose conditions all hold; nothing is set without one. The data set has
    entries of its own.

    Examples
    --------
    >>> campaign_settings(Asked("trtllm", "gpt-oss-120b", "mxfp4", protocol="inferencex", accelerator="b200-sxm",
    ...                         concurrency=64, measured_on="2026-02-05", input_tokens=1024, output_tokens=1024)).budget
    20000
    """
    conditions = {name: getattr(asked, name) for name in _CONDITIONS}
    of_data = ("protocol", "model")
    sets = remaining_rules(_data_sets())
    data = next((item for item in sets if _holds(item, conditions, of_data) and _fits(item, asked)), {})
    fixed: dict[str, Any] = {name: float(data[name]) for name in ("input_tokens", "output_tokens") if name in data}
    if "lengths" in data:
        fixed["lengths"] = tuple(data["lengths"])
    campaign, asked = _campaign_of(asked)
    if campaign:
        result = launched(campaign, asked)
        return replace(
            CampaignSettings(**fixed, prefix_cache=_launched().get(asked.protocol, {}).get("prefix_cache", True)),
            **result.values,
            launched=True,
            open=result.open,
            source=result.source,
        )
    for entry in remaining_rules(_entries()):
        first = tuple(int(part) for part in str(entry.get("release_from", "0")).split("."))
        if (first == (0,) or asked.release >= first) and _holds(entry, conditions):
            return replace(_of_entry(entry, asked, fixed), **fixed, source=str(entry["source"]))
    return CampaignSettings(source=data.get("source", ""), **fixed)


def other_settings(asked: Asked, settings: CampaignSettings) -> tuple[CampaignSettings, ...]:
    """Return variants with settings of the campaign's other servers.

    One for each way to set the open ones.

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
    return tuple(replace(settings, **alternative, open=()) for alternative in alternatives(campaign, asked))


def launched_drafts(asked: Asked) -> tuple[int, ...]:
    """Return the chain lengths of a run's own server, sorted [token].

    The run's campaign launched it. Empty where its scripts are not known or never drafted.

    Examples
    --------
    >>> launched_drafts(Asked("vllm", "llama-3.1-70b", "fp8", protocol="inferencex", accelerator="h200-sxm"))
    ()
    """
    campaign, asked = _campaign_of(asked)
    return draft_lengths(campaign, asked) if campaign else ()


def launched_experts(asked: Asked) -> int | None:
    """Return the expert parallelism of a run's own server.

    By its campaign's scripts. None without a script, or where scripts that fit equally well differ.

    Examples
    --------
    >>> launched_experts(Asked("vllm", "minimax-m2.5", "fp8-block", protocol="inferencex", accelerator="h200-sxm", tp=8,
    ...                        measured_on="2026-03-28", input_tokens=1024, output_tokens=1024, concurrency=4))
    8
    """
    campaign, asked = _campaign_of(asked)
    found = {int(launch.amount("ep") or 1) for launch in (_found(campaign, asked) if campaign else [])}
    return found.pop() if len(found) == 1 else None


def _campaign_of(asked: Asked) -> tuple[str, Asked]:
    """Return the campaign and model key in the table of launches.

    Empty: none.
    """
    entry = _launched().get(asked.protocol, {})
    model = entry.get("models", {}).get(asked.model, asked.model)
    return asked.recipe or entry.get("campaign", ""), replace(asked, model=model)


def _fits(entry: dict[str, Any], asked: Asked) -> bool:
    low, high = entry.get("input_between", (0.0, float("inf")))
    return bool(low <= asked.input_tokens <= high)


def _of_entry(entry: dict[str, Any], asked: Asked, fixed: dict[str, Any]) -> CampaignSettings:
    """Return the settings of an entry of `protocols.toml`."""
    budget = entry.get("budget")
    if "budget_slack" in entry:
        # a whole prompt beside all decoding requests
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
    """Speculation of a campaign on a day with one build of an engine."""

    speculation: Speculation  # ``unknown`` if it ran both ways and nothing tells the rows apart
    source: str


def read_sessions(path: str | Path) -> tuple[dict[str, Any], ...]:
    """Read a file of sessions and check every entry.

    Examples
    --------
    >>> sessions = read_sessions(data_folder("calibration") / "sessions.toml")
    >>> {entry["protocol"] for entry in sessions}
    {'inferencex'}
    """
    fields = {*_NAMED, *_NUMBERED, *_DATED, "data_parallel", "runs", "speculative"}
    result = read_entries(path, "sessions", fields)
    for entry in result:

        def bad(what: str, field: str, entry: dict[str, Any] = entry) -> SpecError:
            return SpecError(what, file=path, field=field, value=str(entry.get(field)))

        if "protocol" not in entry:
            raise bad("is missing: a session belongs to a campaign", "protocol")
        for name in (*_NAMED, "runs"):
            if not all(isinstance(item, str) and item for item in _several(entry.get(name, []))):
                raise bad("is neither a name nor a list of names", name)
        for name in _NUMBERED:
            if any(isinstance(item, bool) or not isinstance(item, int) for item in _several(entry.get(name, []))):
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
    return result


@cache
def _sessions() -> tuple[dict[str, Any], ...]:
    return read_sessions(data_folder("calibration") / "sessions.toml")


def campaign_session(run: Run, *, model: str, experts_format: str) -> CampaignSession | None:
    """Return the known session of a run whose row does not state it, or None.

    The first entry of `calibration/sessions.toml` whose conditions all hold. A condition on something that the row does
    not state, such as its date, does not hold.

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
    for entry in remaining_rules(_sessions()):
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
