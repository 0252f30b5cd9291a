"""What a benchmark campaign set on its servers: facts of the campaign that its tables of results do not repeat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.datafolders import data_folder
from glmplan.files import read_entries

__all__ = ["CampaignSettings", "campaign_settings"]

_CONDITIONS = ("protocol", "engine", "silicon", "model", "experts_format", "engine_version", "input_tokens",
               "output_tokens")  # fmt: skip
#: conditions that a quantity is at least so much, or less than so much: name → (quantity, whether at least)
_BOUNDS = {"tp_below": ("tp", False), "concurrency_from": ("concurrency", True),
           "measured_before": ("measured_on", False)}  # fmt: skip
_SETTINGS = ("kv", "fraction", "budget", "budget_slack", "budget_inputs", "budget_lengths", "poll_interval",
             "poll_interval_small", "gather_steps", "batch_wait_steps", "batch_wait_share", "lengths",
             "requests_per_user")  # fmt: skip
#: concurrency from which the scripts of InferenceX take the longer polling interval [-]
_MANY = 16


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
    source: str = ""


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    fields = {*_CONDITIONS, *_BOUNDS, *_SETTINGS, "release_from"}
    return read_entries(data_folder("calibration") / "protocols.toml", "settings", fields)


def campaign_settings(
    *,
    protocol: str,
    engine: str,
    silicon: str,
    model: str,
    experts_format: str,
    concurrency: float,
    input_tokens: float = 0.0,
    output_tokens: float = 0.0,
    tp: int = 1,
    measured_on: str | None = None,
    engine_version: str | None = None,
    release: tuple[int, ...] | None = None,
) -> CampaignSettings:
    """Settings of the campaign that a run belongs to.

    Parameters
    ----------
    protocol, engine, silicon, model, experts_format : str
        Protocol and engine of the run, compute capability without the minor number, model, format of the weights.
    concurrency : float
        Requests in flight, [-]
    input_tokens, output_tokens : float, optional
        Nominal lengths, by which some scripts set the budget and how prompts wait, [token]
    tp : int, optional
        Accelerators that share a layer, [-]
    measured_on : str, optional
        Date of the run; scripts change. One without is taken as late.
    engine_version : str, optional
        Engine version as it is written.
    release : tuple of int, optional
        Engine version, [-]

    Returns
    -------
    CampaignSettings
        Those of the first entry whose conditions all hold; nothing set if there is none.

    Examples
    --------
    >>> campaign_settings(protocol="inferencex", engine="trtllm", silicon="10", model="gpt-oss-120b",
    ...                   experts_format="mxfp4", concurrency=64).budget
    20000
    """
    asked: dict[str, Any] = dict(
        protocol=protocol, engine=engine, silicon=silicon, model=model, experts_format=experts_format,
        input_tokens=input_tokens, output_tokens=output_tokens, tp=tp, concurrency=concurrency,
        measured_on=measured_on or "9999", engine_version=engine_version,
    )  # fmt: skip
    for entry in _entries():
        first = tuple(int(part) for part in str(entry.get("release_from", "0")).split("."))
        if first > (0,) and (release or (0,)) < first:
            continue
        bounds = [(asked[what] >= entry[name]) is least for name, (what, least) in _BOUNDS.items() if name in entry]
        if all(bounds) and all(entry[name] == asked[name] for name in _CONDITIONS if name in entry):
            small = concurrency < _MANY and "poll_interval_small" in entry
            return CampaignSettings(
                kv=entry.get("kv"),
                fraction=entry.get("fraction"),
                budget=_budget(entry, concurrency, input_tokens, output_tokens),
                poll_interval=int(entry.get("poll_interval_small" if small else "poll_interval", 1)),
                gather_steps=int(entry.get("gather_steps", 0)),
                batch_wait_steps=int(entry.get("batch_wait_steps", 0)),
                batch_wait_share=float(entry.get("batch_wait_share", 1.0)),
                lengths=tuple(entry["lengths"]) if "lengths" in entry else None,
                requests_per_user=entry.get("requests_per_user"),
                source=str(entry["source"]),
            )
    return CampaignSettings()


def _budget(entry: dict[str, Any], users: float, input_tokens: float, output_tokens: float) -> int | None:
    if "budget_inputs" in entry:
        return max(round(float(entry["budget_inputs"]) * input_tokens), 1)
    if "budget_lengths" in entry:
        return max(round(float(entry["budget_lengths"]) * (input_tokens + output_tokens)), 1)
    if "budget_slack" in entry:
        # a whole prompt beside all who decode
        return max(int(entry["budget"]), round(users + input_tokens) + int(entry["budget_slack"]))
    return entry.get("budget")
