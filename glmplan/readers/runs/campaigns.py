"""What a benchmark campaign set on its servers: facts of the campaign that its tables of results do not repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_entries
from glmplan.facts.folders import data_folder
from glmplan.facts.in_view import still_there
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.settings import Asked, alternatives, draft_lengths, launched, recipe_names
from glmplan.readers.runs.speculation import Speculation, read_speculation

__all__ = ["CampaignSession", "CampaignSettings", "campaign_session", "campaign_settings", "launched_drafts",
           "other_settings", "read_sessions"]  # fmt: skip

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
    found = read_entries(_file(), "settings", {*_CONDITIONS, *_SETTINGS, "release_from"})
    for entry in found:
        layout = entry.get("replica", {})
        if layout != "fewest" and not set(layout) <= set(_REPLICA):
            raise SpecError("is no layout of a server", file=_file(), field="replica", value=layout, choices=_REPLICA)
    return found


@cache
def _data_sets() -> tuple[dict[str, Any], ...]:
    return read_entries(_file(), "requests", {"protocol", "model", "input_between", *_REQUESTS})


@cache
def _launched() -> dict[str, dict[str, Any]]:
    """Protocol → the campaign in the table of launches under which its servers stand."""
    found = read_entries(_file(), "launched", {"protocol", "campaign", "models"})
    for entry in found:
        if entry.get("campaign") not in recipe_names():
            said = str(entry.get("campaign"))
            raise SpecError("is in no launch", file=_file(), field="campaign", value=said, choices=recipe_names())
    return {entry["protocol"]: entry for entry in found}


def _file() -> Path:
    return data_folder("calibration") / "protocols.toml"


def _holds(entry: dict[str, Any], asked: dict[str, Any], conditions: tuple[str, ...] = _CONDITIONS) -> bool:
    """Whether all conditions of an entry hold; one that is a list asks for any of its values."""
    return all(asked[name] in _several(entry[name]) for name in conditions if name in entry)


def campaign_settings(asked: Asked) -> CampaignSettings:
    """Settings of the campaign that a run belongs to, or of the recipe that it names.

    Parameters
    ----------
    asked : Asked
        The server, its load and its day.

    Returns
    -------
    CampaignSettings
        What `calibration/settings.csv` says where a recipe is named or the campaign's scripts are known, else those of
        the first entry of `calibration/protocols.toml` whose conditions all hold; nothing set if there is none. The
        data set has entries of its own.

    Raises
    ------
    SpecError
        If no such recipe is known.

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

    Parameters
    ----------
    asked : Asked
        The server, its load and its day.
    settings : CampaignSettings
        What is known of it.

    Returns
    -------
    tuple of CampaignSettings
        Empty where nothing is open.

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

    Parameters
    ----------
    asked : Asked
        The server, its load and its day.

    Returns
    -------
    tuple of int
        Lengths of the drafted chain, sorted; empty where its scripts are not known or never drafted, [token]

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

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    tuple of dict
        The entries, in the order of the file.

    Raises
    ------
    SpecError
        If an entry has no source, a field that is not known, a bad value, no protocol, or does not say how it drafted.

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

    Parameters
    ----------
    run : Run
        The row.
    model, experts_format : str
        Canonical model and format of the routed experts.

    Returns
    -------
    CampaignSession or None
        That of the first entry of `calibration/sessions.toml` whose conditions all hold; None if there is none. A
        condition on what the row does not state, such as its date, does not hold.

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
