"""What a benchmark campaign set on its servers: facts of the campaign that its tables of results do not repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_entries
from glmplan.facts.folders import data_folder
from glmplan.facts.in_view import still_there
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.speculation import Speculation, read_speculation

__all__ = ["CampaignSession", "CampaignSettings", "campaign_session", "campaign_settings", "read_sessions"]

_CONDITIONS = ("protocol", "engine", "silicon", "accelerator", "model", "experts_format", "input_tokens",
               "output_tokens", "drafting")  # fmt: skip
#: conditions that a quantity is at least so much, or less than so much: name → (quantity, whether at least)
_BOUNDS = {"tp_below": ("tp", False), "concurrency_from": ("concurrency", True),
           "measured_before": ("measured_on", False)}  # fmt: skip
_SETTINGS = ("kv", "fraction", "budget", "budget_slack", "budget_drafts", "budget_inputs", "budget_lengths",
             "poll_interval", "poll_interval_small", "small_below", "gather_steps", "batch_wait_steps",
             "batch_wait_share", "lengths", "requests_per_user", "running_limit", "reserve", "whole_prompts",
             "prefill_first", "replica", "parts", "one_group", "label_share", "label_frame",
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
    source: str = ""


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    fields = {*_CONDITIONS, *_BOUNDS, *_SETTINGS, "release_from"}
    found = read_entries(_file(), "settings", fields)
    for entry in found:
        layout = entry.get("replica", {})
        if layout != "fewest" and not set(layout) <= set(_REPLICA):
            raise SpecError("is no layout of a server", file=_file(), field="replica", value=layout, choices=_REPLICA)
        if ("poll_interval_small" in entry) != ("small_below" in entry):
            raise SpecError("stands without poll_interval_small, or that without it", file=_file(), field="small_below")
    return found


@cache
def _data_sets() -> tuple[dict[str, Any], ...]:
    return read_entries(_file(), "requests", {"protocol", "model", "input_between", *_REQUESTS})


def _file() -> Path:
    return data_folder("calibration") / "protocols.toml"


def _holds(entry: dict[str, Any], asked: dict[str, Any], conditions: tuple[str, ...] = _CONDITIONS) -> bool:
    """Whether all conditions of an entry hold; one that is a list asks for any of its values."""
    return all(asked[name] in _several(entry[name]) for name in conditions if name in entry)


def campaign_settings(
    *,
    protocol: str,
    engine: str,
    silicon: str,
    model: str,
    experts_format: str,
    concurrency: float,
    accelerator: str = "",
    input_tokens: float = 0.0,
    output_tokens: float = 0.0,
    tp: int = 1,
    measured_on: str | None = None,
    release: tuple[int, ...] | None = None,
    draft_tokens: int = 0,
    ranks: int = 1,
) -> CampaignSettings:
    """Settings of the campaign that a run belongs to.

    Parameters
    ----------
    protocol, engine, silicon, model, experts_format : str
        Protocol and engine of the run, compute capability without the minor number, model, format of the weights.
    concurrency : float
        Requests in flight, [-]
    accelerator : str, optional
        Canonical name of the part.
    input_tokens, output_tokens : float, optional
        Nominal lengths, by which some scripts set the budget and how prompts wait, [token]
    tp : int, optional
        Accelerators that share a layer, [-]
    measured_on : str, optional
        Date of the run; scripts change. One without is taken as late.
    release : tuple of int, optional
        Engine version, [-]
    draft_tokens : int, optional
        Drafted tokens of a step; scripts of runs that draft differ, [token]
    ranks : int, optional
        Ranks with requests of their own (data-parallel attention), [-]

    Returns
    -------
    CampaignSettings
        Those of the first entry whose conditions all hold; nothing set if there is none. The data set has entries of
        its own.

    Examples
    --------
    >>> campaign_settings(protocol="inferencex", engine="trtllm", silicon="10", model="gpt-oss-120b",
    ...                   experts_format="mxfp4", concurrency=64).budget
    20000
    """
    asked: dict[str, Any] = dict(
        protocol=protocol, engine=engine, silicon=silicon, accelerator=accelerator, model=model,
        experts_format=experts_format, input_tokens=input_tokens, output_tokens=output_tokens, tp=tp,
        concurrency=concurrency, measured_on=measured_on or "9999", drafting=draft_tokens > 0,
    )  # fmt: skip
    users = concurrency / max(ranks, 1)
    of_data = ("protocol", "model")
    sets = still_there(_data_sets())
    data = next((one for one in sets if _holds(one, asked, of_data) and _between(one, input_tokens)), {})
    input_tokens = input_tokens or data.get("input_tokens", 0.0)
    output_tokens = output_tokens or data.get("output_tokens", 0.0)
    fixed: dict[str, Any] = {name: float(data[name]) for name in ("input_tokens", "output_tokens") if name in data}
    for entry in still_there(_entries()):
        first = tuple(int(part) for part in str(entry.get("release_from", "0")).split("."))
        if first > (0,) and (release or (0,)) < first:
            continue
        bounds = [(asked[what] >= entry[name]) is least for name, (what, least) in _BOUNDS.items() if name in entry]
        if all(bounds) and _holds(entry, asked):
            small = "poll_interval_small" in entry and concurrency < entry["small_below"]
            lengths = entry.get("lengths", data.get("lengths"))
            return CampaignSettings(
                kv=entry.get("kv"),
                fraction=entry.get("fraction"),
                budget=_budget(entry, concurrency, input_tokens, output_tokens, (draft_tokens + 1) * users),
                poll_interval=int(entry.get("poll_interval_small" if small else "poll_interval", 1)),
                gather_steps=int(entry.get("gather_steps", 0)),
                batch_wait_steps=int(entry.get("batch_wait_steps", 0)),
                batch_wait_share=float(entry.get("batch_wait_share", 1.0)),
                lengths=tuple(lengths) if lengths else None,
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
                source=str(entry["source"]),
                **fixed,
            )
    spread = tuple(data["lengths"]) if "lengths" in data else None
    return CampaignSettings(lengths=spread, source=data.get("source", ""), **fixed)


def _between(entry: dict[str, Any], input_tokens: float) -> bool:
    low, high = entry.get("input_between", (0.0, float("inf")))
    return bool(low <= input_tokens <= high)


def _replica(entry: dict[str, Any]) -> tuple[int, ...] | None:
    layout = entry.get("replica")
    if layout is None:
        return None
    return () if layout == "fewest" else tuple(int(layout.get(name, 1)) for name in _REPLICA)


def _budget(
    entry: dict[str, Any], users: float, input_tokens: float, output_tokens: float, verified: float
) -> int | None:
    if "budget_drafts" in entry:
        # one whole prompt beside the tokens that are verified, in multiples of 64
        return 64 * -(-round(verified + input_tokens + int(entry["budget_drafts"])) // 64)
    if "budget_inputs" in entry:
        return max(round(float(entry["budget_inputs"]) * input_tokens), 1)
    if "budget_lengths" in entry:
        return max(round(float(entry["budget_lengths"]) * (input_tokens + output_tokens)), 1)
    if "budget_slack" in entry:
        # a whole prompt beside all who decode
        return max(int(entry.get("budget", 0)), round(users + input_tokens) + int(entry["budget_slack"]))
    return entry.get("budget")


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
