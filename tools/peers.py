"""Write docs/peers.md: errors of AISimulate and of glmplan on the same public runs.

AISimulate runs in an environment of its own, which `make peers` installs: `tools/peers.py PYTHON`. That interpreter
starts this file with `--answer`, reads questions as lines of JSON and writes its estimates.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmplan.prediction.from_row import RunCase

PAGE = Path(__file__).resolve().parents[1] / "docs" / "peers.md"
#: accelerator of the catalogue → system of AISimulate
SYSTEMS = {
    "a100-80gb-sxm": "a100_sxm",
    "arc-pro-b60": "b60",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}
#: format of the weights → its names for dense layers and for experts, for checkpoints that AISimulate does not bring
FORMATS = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp8": ("fp8", "fp8"),
    "fp8-block": ("fp8_block", "fp8_block"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": (None, "w4a16_mxfp4"),
    "int4": ("int4_wo", "int4_wo"),
    "int4-g32": (None, "int4_wo"),
    "int4-g128": ("int4_wo", "int4_wo"),
}
ENGINES = ("vllm", "sglang", "trtllm")
#: metric of the page → columns of a run, field of an estimate
METRICS = {
    "TPOT": (("tpot_mean_ms", "tpot_p50_ms"), "tpot"),
    "TTFT, mean": (("ttft_mean_ms",), "ttft"),
    "TTFT, median": (("ttft_p50_ms",), "ttft"),
    "output rate": (("output_tokens_per_s",), "rate"),
}
#: fallback → its line on the page
WAYS = {
    "other checkpoint": "another checkpoint of the model with the format of the run",
    "other version": "another engine version",
    "formula in gaps": "formulas in gaps of its tables",
    "formula": "formulas alone",
    "batch larger than its memory": "as many requests at once as fit its memory",
    "weights larger than its memory": "its verdict that the plan does not fit even one request is ignored",
}


# ------------------------------------------------------------------ with the interpreter of AISimulate


def answer(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the estimate of each question, or the reason that there is none."""
    import logging
    from functools import cache
    from importlib.metadata import version

    import yaml
    from aisimulate.legacy_cli.api import cli_estimate  # type: ignore[import-not-found,unused-ignore]
    from aisimulate.sdk.inference_summary import InferenceSummary  # type: ignore[import-not-found,unused-ignore]
    from aisimulate_core.sdk import perf_database  # type: ignore[import-not-found,unused-ignore]
    from aisimulate_core.sdk.common import DefaultHFModels  # type: ignore[import-not-found,unused-ignore]

    logging.disable(logging.CRITICAL)
    yaml.safe_load = lambda text: yaml.load(text, Loader=yaml.CSafeLoader)  # the same, ten times as fast
    known_tables: Any = cache(perf_database.get_supported_databases)  # reads 200 files each time
    perf_database.get_supported_databases = known_tables
    full: list[bool] = []
    checks = InferenceSummary.check_oom, InferenceSummary.check_kv_cache_oom

    def let_pass(summary: Any) -> bool:
        full.append(any(check(summary) for check in checks))
        return False

    InferenceSummary.check_oom = let_pass
    known = {_short(name): name for name in sorted(DefaultHFModels)}
    refused: dict[str, str] = {}  # question without its load → reason
    estimates: dict[str, tuple[float, float, float, bool]] = {}

    def estimate(words: dict[str, Any]) -> tuple[float, float, float, bool]:
        key = json.dumps(words, sort_keys=True)
        if key not in estimates:
            full.clear()
            found = cli_estimate(**words)
            estimates[key] = float(found.tpot), float(found.ttft), float(found.raw["tokens/s"]), any(full)
        return estimates[key]

    yield {"version": version("aisimulate")}
    for line in lines:
        question = json.loads(line)
        reason = "its list of models lacks this one"
        for words, ways in attempts(question, known):
            key = json.dumps(words, sort_keys=True)
            if key in refused:
                reason = refused[key]
                continue
            try:
                load = dict(question["load"])
                tpot, ttft, rate, over = asked = estimate(words | load)
                while over and load["batch_size"] > 1:
                    load["batch_size"] //= 2
                    tpot, ttft, rate, over = estimate(words | load)
            except Exception as error:  # whatever it cannot answer
                reason = refused[key] = f"its estimate raises {type(error).__name__}"
                continue
            if over:
                tpot, ttft, rate, _ = asked
                ways = [*ways, "weights larger than its memory"]
            elif load != question["load"]:
                ways = [*ways, "batch larger than its memory"]
            if question["waiting"] or load != question["load"]:
                ttft = 0.0  # it has no queue
            yield {"id": question["id"], "tpot": tpot, "ttft": ttft, "rate": rate * question["replicas"], "ways": ways}
            break
        else:
            yield {"id": question["id"], "refused": reason}


def _short(repository: str) -> str:
    """Return the name of a model without maker and words that do not change its speed."""
    name = repository.rsplit("/", maxsplit=1)[-1].lower()
    for word in ("meta-", "-instruct", "-it"):
        name = name.replace(word, "")
    return name


def attempts(question: dict[str, Any], known: dict[str, str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield arguments from the closest to the question on, with the names of the fallbacks."""
    files: list[tuple[dict[str, Any], list[str]]] = []
    for place, repository in enumerate(question["repositories"]):
        name = known.get(_short(repository))
        if name is None:
            continue
        if place < question.get("own", 1):
            files.append(({"model_path": name}, []))
        elif question["weights"] in FORMATS:
            gemm, moe = FORMATS[question["weights"]]
            modes = {"model_path": name, "gemm_quant_mode": gemm, "moe_quant_mode": moe}
            files.append(({key: value for key, value in modes.items() if value}, ["other checkpoint"]))
    caches = [{"kvcache_quant_mode": question["kv"]}, {}] if question["kv"] else [{}]
    versions = [{"backend_version": question["version"]}] if question["version"] else []
    for mode, of_mode in (("SILICON", []), ("HYBRID", ["formula in gaps"]), ("EMPIRICAL", ["formula"])):
        for version in (*versions, {}):
            for model, of_file in files:
                for cache in caches:
                    words = question["plan"] | model | cache | version | {"database_mode": mode}
                    yield words, [*of_file, *(["other version"] if not version else []), *of_mode]


# ------------------------------------------------------------------ with glmplan


def question_for(case: RunCase) -> dict[str, Any] | str:
    """Return the question of a run for AISimulate, or the reason that it has no words for it."""
    from glmplan.costs.blocks.stack import routed_blocks
    from glmplan.prediction.deployment import bulk_format

    deployment, load, run = case.deployment, case.load, case.run
    if deployment.engine not in ENGINES:
        return "its list of engines lacks this one"
    if deployment.accelerator.name not in SYSTEMS:
        return "its list of accelerators lacks this one"
    if run.offload or deployment.dcp > 1 or load.prefix_cached or load.context:
        return "offloading, context parallelism or a cached prompt"
    plan = {
        "system_name": SYSTEMS[deployment.accelerator.name],
        "backend_name": deployment.engine,
        "tp_size": deployment.tp,
        "pp_size": deployment.pp,
        "attention_dp_size": deployment.dp,
    }
    ranks = deployment.tp * deployment.dp
    if routed_blocks(deployment.model):
        plan |= {"moe_ep_size": deployment.ep, "moe_tp_size": ranks // deployment.ep}
    if deployment.draft_tokens:
        taken = min(max(load.tokens_per_step - 1, 0.0), float(deployment.draft_tokens))
        plan |= {"nextn": deployment.draft_tokens, "nextn_accepted": round(taken, 3)}
    each = load.concurrency / load.replicas
    share = (load.shortest + load.longest) / 2
    files = deployment.model.checkpoints
    # a run may name the model in place of the files that it served
    own = [name for name in (run.checkpoint,) if name not in {one.repository for one in files}]
    same = [
        deployment.checkpoint.repository,
        *(one.repository for one in files if bulk_format(one) == deployment.weights),
    ]
    others = [one.repository for one in files]
    first = list(dict.fromkeys(name for name in own + same if name))
    return {
        "id": run.id,
        "plan": plan,
        "load": {
            "isl": max(round(load.input_tokens * share), 1),
            "osl": max(round(load.output_tokens * share), 2),
            "batch_size": max(math.ceil(min(each, load.max_requests) / deployment.dp), 1),
        },
        "waiting": each > load.max_requests,
        "replicas": load.replicas,
        "repositories": list(dict.fromkeys([*first, *(name for name in others if name)])),
        "own": len(first),
        "weights": deployment.weights,
        "version": run.engine_version,
        "kv": "fp8" if deployment.kv.startswith("fp8") else None,
    }


@dataclass(frozen=True)
class Pair:
    """One measured metric with both errors, log(predicted / measured)."""

    metric: str
    group: str  # engine, accelerator, model shape and format
    engine: str
    accelerator: str
    day: str
    peer: float
    own: float


def pairs_of(cases: Sequence[RunCase], estimates: dict[str, dict[str, Any]]) -> list[Pair]:
    """Return both errors of each metric that a run measured and both predict.

    Those of glmplan are predictions of the run's group by a fit without this group.
    """
    from glmplan.calibrate.step.crossvalidate import MODES
    from glmplan.calibrate.step.write import read_left_out
    from glmplan.io.runs.ledger import group_key

    left_out = read_left_out()
    residual = left_out.errors[MODES.index("group")].residual.tolist()
    errors = dict(zip(zip(left_out.run, left_out.figure.tolist(), strict=True), residual, strict=True))
    found = []
    for case in cases:
        run, estimate = case.run, estimates.get(case.run.id, {})
        for metric, (columns, field) in METRICS.items():
            column = next((name for name in columns if name in run.observed), "")
            error = errors.get((run.id, column), math.nan)
            if math.isnan(error) or not estimate.get(field, 0.0) > 0:
                continue
            own = error if field == "rate" else -error  # residuals are of seconds
            peer = math.log(estimate[field] / run.observed[column])
            place = case.deployment.engine, case.deployment.accelerator.name
            found.append(Pair(metric, group_key(run), *place, run.measured_on or "", peer, own))
    return found


def by_group(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the median absolute error of AISimulate and of glmplan in each group [-]"""
    groups: dict[str, list[Pair]] = {}
    for one in pairs:
        groups.setdefault(one.group, []).append(one)
    peer, own = zip(*([median(one) for one in _by_row(rows)] for rows in groups.values()), strict=True)
    return list(peer), list(own)


def _by_row(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the absolute errors of AISimulate and of glmplan [-]."""
    peer, own = ([abs(math.expm1(getattr(one, field))) for one in pairs] for field in ("peer", "own"))
    return peer, own


def _first(errors: Sequence[float]) -> str:
    return f"{100 * median(errors):.1f} %"


def _three(errors: Sequence[float]) -> str:
    """Return median, mean and 90th percentile in percent."""
    tenths = quantiles(errors, n=10, method="inclusive") if len(errors) > 1 else [*errors]
    return " / ".join(f"{100 * value:.1f}" for value in (median(errors), fmean(errors), tenths[-1]))


def _line(name: str, pairs: Sequence[Pair]) -> str:
    """Return a line of the table of groups."""
    peer, own = by_group(pairs)
    better = sum(mine < its for mine, its in zip(own, peer, strict=True))
    return f"| {name} | {len(peer)} | {len(pairs)} | {_three(peer)} | {_three(own)} | {better} |"


_HEAD = (
    "| | groups | rows | AISimulate | glmplan | groups in which glmplan is closer |",
    "|---|---:|---:|---:|---:|---:|",
)


#: link to the chart of the page
CHART = "![Median to 90th percentile of the errors of groups, by metric, engine and accelerator](accuracy/peers.svg)"


def chart(text: str) -> bytes:
    """Return the chart of a page: its tables of groups, both errors of each line."""
    import altair as alt

    from glmplan.present.charts import chart_svg, log_axis, rows_chart, standalone

    parts, names = [], {"TPOT by engine and accelerator": 1, "All metrics": 0}
    tables = [part.split("\n\n")[0].splitlines() for part in text.split("\n".join(_HEAD) + "\n")[1:]]
    for title, place in sorted(names.items(), key=lambda one: one[1]):
        values = []
        for line in tables[place]:
            name, groups, _, *errors = (cell.strip() for cell in line.strip("|").split("|"))
            for who, error in zip(("AISimulate", "glmplan"), errors, strict=False):
                middle, _, most = (float(one) for one in error.split(" / "))
                values.append({"of": f"{name} ({groups})", "who": who, "median": middle, "p90": most})
        order = list(dict.fromkeys(str(one["of"]) for one in values))
        base = rows_chart(values).encode(
            y=alt.Y("of:N", title=None, sort=order), yOffset="who:N", color=alt.Color("who:N", title=None)
        )
        axis = log_axis("median", "error of groups, median to 90th percentile [%]", domain=[5, 1000], clamp=True)
        rule = base.mark_rule(opacity=0.5).encode(x=alt.X(**axis), x2="p90:Q")
        spot = base.mark_point(filled=True, size=40).encode(x=alt.X(**axis))
        parts.append(
            (rule + spot).properties(width=260, height=alt.Step(26, **{"for": "position"}), title=f"{title} (groups)")
        )
    label = "Errors of AISimulate and glmplan on the same runs"
    return standalone(chart_svg(alt.hconcat(*parts), label)).encode()


def page(pairs: Sequence[Pair], counts: Counter[str], ways: Counter[str], day: str, versions: dict[str, str]) -> str:
    """Return docs/peers.md."""
    tpot = [one for one in pairs if one.metric == "TPOT"]
    groups, rows = by_group(tpot), _by_row(tpot)
    lines = [
        "# Beside AISimulate",
        "",
        "<!-- Written by `make peers`; do not edit. -->",
        "",
        f"AISimulate {versions['aisimulate']} and the fits of glmplan at {versions['glmplan']}, {day}. Both predict "
        f"the same public runs: {counts['answered']:,} of {counts['asked']:,} serving runs outside the "
        "[held-out groups](accuracy-holdout.md) have an estimate of both.",
        "",
        f"Median error of TPOT: {_first(groups[0])} for AISimulate and {_first(groups[1])} for glmplan with one vote "
        f"for each group, {_first(rows[0])} and {_first(rows[1])} with one for each row.",
        "",
        "AISimulate adds up kernel times that its maker measured, and has seen none of these runs. The predictions of "
        "glmplan are from the cross-validation of the shipped fit: the group of a run (engine, accelerator, model "
        "shape, format) is left out of the fit with the rules that only it motivated. The formulas of glmplan were "
        "chosen with the errors on these runs known, which favours glmplan; "
        "[held-out groups](accuracy-holdout.md) have its errors without that.",
        "",
        "## Errors",
        "",
        CHART,
        "",
        "Each group has one vote: the median absolute error of its rows. Median / mean / 90th percentile over the "
        "groups, in %.",
        "",
        *_HEAD,
        *(_line(name, mine) for name in METRICS if (mine := [one for one in pairs if one.metric == name])),
        "",
        "The same over rows, each with one vote:",
        "",
        "| | rows | AISimulate | glmplan |",
        "|---|---:|---:|---:|",
    ]
    for name in METRICS:
        if mine := [one for one in pairs if one.metric == name]:
            peer, own = _by_row(mine)
            lines.append(f"| {name} | {len(mine)} | {_three(peer)} | {_three(own)} |")
    lines += ["", "TPOT by engine, accelerator and date, each group with one vote:", "", *_HEAD]
    for field in ("engine", "accelerator"):
        for name in sorted({getattr(one, field) for one in tpot}):
            lines.append(_line(name, [one for one in tpot if getattr(one, field) == name]))
    lines += [
        _line("measured in 2026", [one for one in tpot if one.day >= "2026"]),
        "",
        "## Method",
        "",
        "AISimulate answers with its aggregated estimate (`aiconfigurator cli estimate`, mode `agg`): accelerator, "
        "engine, layout, mean lengths, concurrency of each data-parallel rank up to the running limit, and draft "
        "tokens. The acceptance length of speculation, which it does not predict, is that which glmplan takes. It has "
        "no queue, and its TTFT counts only where all requests run at once. Its fallbacks are used in this order: "
        "measured tables, formulas in gaps of them, formulas alone:",
        "",
        "| fallback | runs |",
        "|---|---:|",
        *(f"| {WAYS[name]} | {ways[name]} |" for name in WAYS),
        "",
        "Runs without an estimate:",
        "",
        "| cause | runs |",
        "|---|---:|",
        *(f"| {name} | {number} |" for name, number in counts.most_common() if name not in ("asked", "answered")),
    ]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Ask the interpreter of AISimulate and write the page."""
    if words[:1] == ["--answer"]:
        for found in answer(sys.stdin):
            print(json.dumps(found), flush=True)
        return 0
    import datetime

    from glmplan.catalog.files import write_atomically
    from glmplan.errors import GlmplanError
    from glmplan.io.runs.ledger import load_measurements, split_held_out
    from glmplan.prediction.from_row import question_of

    counts: Counter[str] = Counter()
    cases, questions = [], []
    seen, _ = split_held_out(load_measurements())
    for run in seen:
        if (
            run.phase != "serving"
            or run.unusable
            or not any(name in run.observed for names, _ in METRICS.values() for name in names)
        ):
            continue
        try:
            case = question_of(run)
        except GlmplanError:
            continue
        counts["asked"] += 1
        question = question_for(case)
        if isinstance(question, str):
            counts[question] += 1
        else:
            cases.append(case)
            questions.append(json.dumps(question))
    asked = subprocess.run(
        [words[0], __file__, "--answer"], input="\n".join(questions), capture_output=True, text=True, check=True
    )
    versions, *answers = (json.loads(line) for line in asked.stdout.splitlines() if line.startswith("{"))
    estimates = {one["id"]: one for one in answers if "tpot" in one}
    for one in answers:
        counts[one.get("refused", "answered")] += 1
    pairs = pairs_of(cases, estimates)
    ways = Counter(way for one in estimates.values() for way in one["ways"])
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", "calibration/fits"], capture_output=True, text=True, check=True
    )
    versions = {"aisimulate": versions["version"], "glmplan": commit.stdout.strip()}
    text = page(pairs, counts, ways, datetime.date.today().isoformat(), versions)
    write_atomically(PAGE, text.encode())
    write_atomically(PAGE.parent / "accuracy/peers.svg", chart(text))
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
