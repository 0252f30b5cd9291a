"""`glmplan safe`: the largest load that keeps a promise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import serving_options as o
from glmplan.cli.forms import Form

if TYPE_CHECKING:
    from glmplan.serving.safe_load import SafeLoad

__all__ = ["command"]


def command(
    slo: Annotated[str, typer.Option(help="Promise, such as 'ttft p95 < 2 s, tpot p95 < 50 ms'.")],
    model: o.Model = None,
    on: o.On = None,
    traffic: Annotated[
        str | None, typer.Option(help="Kind of traffic, as in simulate; users and Poisson arrivals by default.")
    ] = None,
    input_tokens: o.Input = None,
    output_tokens: o.Output = None,
    jitter: o.Jitter = None,
    input_cv: o.InputCv = None,
    output_cv: o.OutputCv = None,
    lengths: o.Lengths = None,
    think: o.Think = None,
    shared_prefix: o.SharedPrefix = None,
    turns: o.Turns = None,
    tool_wait: o.ToolWait = None,
    engine: o.EngineName = None,
    engine_version: o.EngineVersion = None,
    weights: o.Weights = None,
    kv: o.Kv = None,
    tp: o.Tp = None,
    pp: o.Pp = None,
    dp: o.Dp = None,
    ep: o.Ep = None,
    dcp: o.Dcp = None,
    mtp: o.Mtp = None,
    acceptance: o.AcceptanceLength = None,
    memory_fraction: o.MemoryFraction = None,
    kv_tokens: o.KvTokens = None,
    block_size: o.BlockSize = None,
    kv_bytes: o.KvBytes = None,
    step_time: o.StepTimeOption = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_batched_tokens: o.MaxBatchedTokens = None,
    max_model_len: o.MaxModelLen = None,
    chunked_prefill: o.ChunkedPrefill = None,
    prefix_caching: o.PrefixCaching = None,
    admission: o.Admission = None,
    replicas: o.Replicas = None,
    routing: o.Routing = None,
    prefill_replicas: o.PrefillReplicas = None,
    transfer: o.TransferBandwidth = None,
    most: Annotated[float | None, typer.Option(help="Largest load to look at.")] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="The curve as an HTML page.")] = None,
    form: Annotated[Form, typer.Option("--format", help="What is printed.")] = Form.text,
) -> None:
    """Find the most users and the highest request rate that keep a promise with 95 % probability."""
    given = dict(locals())
    from glmplan.cli.service import described_service, described_traffic
    from glmplan.serving.safe_load import safe_load, speed_factors
    from glmplan.serving.traffic.promises import parse_slo

    targets = parse_slo(slo)
    fields = o.chosen(given, o.TRAFFIC_FIELDS)
    kinds = [described_traffic(spec, fields) for spec in ([traffic] if traffic else ["closed:1", "poisson:1/s"])]
    described = described_service(
        model=model,
        on=on,
        step_time=step_time,
        kv_tokens=kv_tokens,
        link=transfer,
        kv_bytes=kv_bytes,
        plan=o.chosen(given, (*o.PLAN_FIELDS, "block_size")),
        engine=o.chosen(given, o.ENGINE_FIELDS),
        traffic=kinds[0],
    )
    factors = speed_factors(described.low, described.high)
    found = [safe_load(described.service, kind, targets, factors=factors, most=most, seed=seed) for kind in kinds]
    if plot is not None:
        from glmplan.serving.charts import safe_page

        title = f"{model or 'own step time'} on {on or 'own machine'}: {slo}"
        safe_page(found[0], targets, plot, title=title)
    _show(found, form, described.basis, slo)


def _row(answer: SafeLoad) -> dict[str, Any]:
    name = "safe_users" if answer.unit == "users" else f"safe_{answer.unit.replace('/', '_per_').replace(' ', '_')}"
    return {name: answer.load, "breaks_first": answer.breaks_first, "reason": answer.reason}


def _show(found: list[SafeLoad], form: Form, basis: str, slo: str) -> None:
    if form is Form.json:
        content: dict[str, Any] = {"slo": slo, "basis": basis}
        for answer in found:
            row = _row(answer)
            name = next(iter(row))
            points = [
                {
                    "load": point.load,
                    "safe": point.safe,
                    "broken": point.broken,
                    **{k: v if math.isfinite(v) else None for k, v in point.summary.items()},
                }
                for point in answer.points
            ]
            content[name] = row[name]
            content[name.removeprefix("safe_") + "_search"] = {
                "breaks_first": answer.breaks_first,
                "reason": answer.reason,
                "points": points,
            }
        print(json.dumps(content, indent=2))
        return
    if form is Form.csv:
        print("unit,safe,breaks_first,reason")
        for answer in found:
            print(f'{answer.unit},{answer.load:g},"{answer.breaks_first}","{answer.reason}"')
        return
    bar = "| " if form is Form.md else ""
    if form is Form.md:
        print("| safe load | what breaks first |\n|---|---|")
    for answer in found:
        middle, end = (" | ", " |") if form is Form.md else (": ", "")
        print(f"{bar}{answer.load:.4g} {answer.unit}{middle}{answer.reason}{end}")
    if form is Form.text:
        print(f"with 95 % probability over arrivals and the interval of the step time ({basis})")
