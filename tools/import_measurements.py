"""Make `calibration/measurements/*.csv` from tables of collected runs.

    python tools/import_measurements.py FOLDER

FOLDER holds tables in the column form that `glmplan.io.runs.table.read_runs` reads. Every row becomes one row of
the project's own schema: canonical names, one name for each figure, traps written out in columns of their own, notes
cut down to facts. Ids are kept. Run twice, it writes the same bytes; what it wrote is not read again, as notes that
were cut down once would lose more. A file is written whole from what the folder
holds, so the folder holds every table; for each file it is said how many rows came, went and changed.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from stated_by_sources import CAMPAIGNS, CAMPAIGNS_B, SHARE, stated
from stated_by_sources import SAID as SAID_LATER

from glmplan.catalog.entries.accelerators import accelerator_names
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.entries.names import refusal
from glmplan.catalog.files import write_atomically
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import ALIASES, COLUMNS, FIGURES
from glmplan.io.runs.record import Run
from glmplan.io.runs.table import read_runs, run_from_row

FOLDER = Path(__file__).resolve().parent.parent / "calibration" / "measurements"
#: campaign of a row → file; every other campaign goes to other-public.csv
FILES = {
    "inferencex": "inferencex.csv",
    "vendor-sweeps-2025-2026": "vendor-sweeps.csv",
    "rtx6kpro-wiki-2026-05": "rtx6kpro-wiki.csv",
    "mlperf-inference-v5.1": "mlperf-v5.1.csv",
    "ml.energy-leaderboard": "ml-energy.csv",
    "tensorrt-llm-perf-overview": "trtllm-perf-overview.csv",
    "gpustack-performance-lab": "gpustack.csv",
    "kyuz0-strix-halo-toolboxes": "llama-cpp-strix-halo.csv",
    "ktransformers-docs": "ktransformers.csv",
    "sglang-cookbook": "sglang-cookbook.csv",
    "inferencex-2026-11": "inferencex-2026-11.csv",
    "vendor-sweeps-2026-11": "inferencex-2026-11.csv",
    "rtx6kpro-wiki-2026-05-kimi-k2.6": "rtx6kpro-kimi-k2.6.csv",
    "rtx6kpro-kimi-k26-v2-2026-05-07": "rtx6kpro-kimi-k2.6.csv",
    "anl-llm-inference-bench-2024": "anl-llm-inference-bench.csv",
    "sglang-cookbook-glm52-0.5.13.post1": "sglang-cookbook-2026.csv",
    "sglang-cookbook-minimax-m3-2026": "sglang-cookbook-2026.csv",
    "vilsol-glm52-8x-rtxpro6000-2026-06": "rtx6kpro-glm-2026.csv",
    "magik6k-glm47-sm120-2026-01": "rtx-pro-6000-server.csv",
    "magik6k-kimi-sm120-2026-01": "rtx-pro-6000-server.csv",
    "teo-ma-rtxpro6000-azure-2025-12": "rtx-pro-6000-server.csv",
}
#: beginning of a campaign → file
FAMILIES = {"lottolotto-4x3090-": "rtx-3090.csv", "rtx6kpro-glm5": "rtx6kpro-glm-2026.csv"}
#: the same for tables of the second collection of November 2026
FAMILIES_B = {
    "inferencex-dump": "inferencex-medians-2026-07.csv",
    "inferencex": "inferencex-2026.csv",
    "amd-agentx": "inferencex-2026.csv",
    "djangodevreng": "dgx-spark-2026-08.csv",
    "rtx6kpro": "rtx6kpro-2026b.csv",
    "mlperf": "mlperf-v6.0.csv",
    "ml.energy": "ml-energy-2026.csv",
    "gpustack": "gpustack-2026.csv",
    "sglang-cookbook": "sglang-cookbook-2026b.csv",
}
#: tables whose sources state more than their columns hold
LATER = frozenset({"runs-2026-11", "runs-2026-11b"})
#: tables whose acceptance lengths wait for the next fit of acceptance lengths (`glmplan calibrate`), whose file must be
#: what `acceptance.csv` gives
NOT_YET_FITTED = frozenset({"runs-2026-11b"})
#: fields that a reader makes of other columns
DERIVED = frozenset({"memory_fraction", "max_num_seqs"})
#: campaigns whose rows all come from one address, which stands in sources.toml
ONE_ADDRESS = frozenset(
    {
        "kyuz0-strix-halo-toolboxes", "mlperf-inference-v5.1", "ml.energy-leaderboard", "tensorrt-llm-perf-overview",
        "inferencex-dump-2026-07", "mlperf-inference-v6.0", "ml.energy-leaderboard-2026-02",
        "geerlingguy-ai-benchmarks", "llama.cpp-dgx-spark-bench", "0xsero-model-card", "sglang-docs-benchmark-snippets",
    }
)  # fmt: skip
#: prose that the columns already say, dropped from the notes
SAID = re.compile(
    r"older llm_decode_bench:.*|Qwen ratio unmeasured\)|identical prompt .*|llm_decode_bench: identical.*"
    r"|all requests of the cell start together.*|QUANTISED: .*|NOMINAL .*|pre-0\.4\.3 llm_decode_bench.*"
    r"|real Kimi prompts .*|label ctx|real tokens ~.*|speculation off .*|C=1 cells are cold.*|C>=2 prefix-cached"
    r"|bench_serving random-range-ratio.*|mean TTFT dominated.*|params_b .*|file \d.*|avg_power_watts is.*"
    r"|concurrency column = max_num_seqs|input length not published.*|n=\d+|cookbook page .*|section .*|block .*"
    r"|hardware line: .*|page labels this TPOT.*|quant is the Ollama.*|c=64 cells starred.*|env .*|backend .*"
    r"|avg|availability=available"
    r"|bench: .*|DEP = attention DP.*|kv_format is the page.*|tg_tps aggregate.*|CPU .*|OS .*|InferenceX|vendor sweep"
)
# prompts of a run by part and requests in flight, from the source; its command leaves --random-range-ratio at 0, so
# that lengths are uniform from 1 to the 1000 that the tables call them
SNIPPETS = "sglang-docs-benchmark-snippets"
SNIPPET_PROMPTS = {
    "mi300x": {1: 64, 16: 256, 64: 512, 256: 1024, 1024: 2048, 4096: 4096},
    "mi350x": {1: 10, 16: 80},
}
# the file is not in the CSV: the request that brought m2_ultra.csv names IQ2XXS-w2Q2K (github.com/antirez/ds4/pull/88);
# m4_max.csv is of 128 GB (pull/87), where README.md and the size leave only the 2-bit file (the other has 153 GiB)
DS4_BENCH = "ds4-speed-bench"
WIKI = "https://github.com/voipmonitor/rtx6kpro/tree/29f3863/"
ACCEPTANCE_COLUMNS = ["run", "model", "method", "draft_tokens", "verify_tokens", "engine", "engine_version",
                      "concurrency", "text", "acceptance_length", "basis", "source"]  # fmt: skip
#: parts that a table names too widely: campaign and name → part
PARTS = {("anl-llm-inference-bench-2024", "gh200"): "gh200-96gb"}  # deepwiki.com/argonne-lcf/LLM-Inference-Bench
_CC32 = WIKI + "models/glm5.1/glm51-sglang-vllm-cc32-state-2026-05-03.md"
#: acceptance lengths that pages state apart from any row
STATED = [
    ["glm-5", "mtp", "4", "", "sglang", "", "", "decode bench, one prompt", "2.19", "low end of the page's range",
     WIKI + "models/glm5.md"],
    ["glm-5", "mtp", "4", "", "sglang", "", "", "decode bench, one prompt", "2.80", "high end of the page's range",
     WIKI + "models/glm5.md"],
    ["glm-5.1", "mtp", "", "", "sglang", "", "32", "decode bench, one prompt", "3.4", "stated", _CC32],
    ["glm-5.1", "mtp", "3", "4", "vllm", "", "32", "decode bench, one prompt", "2.71", "stated", _CC32],
    ["kimi-k2.6", "eagle3", "3", "4", "vllm", "", "", "decode bench, one prompt", "1.84",
     "1 + draft tokens x share accepted, low end 0.28", WIKI + "models/kimi-k26.md"],
    ["kimi-k2.6", "eagle3", "3", "4", "vllm", "", "", "decode bench, one prompt", "2.62",
     "1 + draft tokens x share accepted, high end 0.54", WIKI + "models/kimi-k26.md"],
]  # fmt: skip
CLUSTERS = "two clusters 1.4-2.3x apart in this group, probably unlabelled MTP"


def runs_of(path: Path) -> list[Run]:
    """Return the rows of a table, with what their sources state."""
    if path.stem not in LATER:
        return list(read_runs(path))
    told = Counter[str]()
    with open(path, newline="", encoding="utf-8") as stream:
        runs = [run_from_row(stated(row) | {"table": path.stem}) for row in csv.DictReader(stream)]
    for run in runs:
        told[unknown_name(run)] += 1
    for reason, rows in told.most_common():
        if reason:
            print(f"{path.name}: {rows} rows left out: {reason}")
    return [run for run in runs if not unknown_name(run)]


@cache
def unknown_model(name: str) -> bool:
    """Return True for a model that the catalogue does not know at all."""
    try:
        load_model(name)
    except GlmplanError:
        return refusal("models", name) is None
    return False


def unknown_name(run: Run) -> str:
    """Return which name of a row the catalogue lacks; empty if it has both. A later import takes the row."""
    if run.cells.get("table") not in NOT_YET_FITTED:
        return ""
    if unknown_model(run.model):
        return f"the catalogue has no model {run.model}"
    if run.accelerator in accelerator_names() or refusal("accelerators", run.accelerator):
        return ""
    return f"the catalogue has no accelerator {run.accelerator}"


def is_later(run: Run) -> bool:
    """Whether a row is of a table whose sources state more than its columns hold."""
    return run.cells.get("table") in LATER


def campaign_of(run: Run) -> str:
    """Return the campaign in our own names: the carried sweeps are two, the field reports one."""
    if is_later(run):
        if run.cells["table"] == "runs-2026-11b":
            return CAMPAIGNS_B.get(run.campaign or "", run.campaign or "unnamed")
        start = run.notes.partition(";")[0] if (run.campaign or "").startswith("inferencex-and") else run.campaign
        return CAMPAIGNS.get(start or "", run.campaign or "unnamed")
    if run.campaign == "inferencex-and-vendor-sweeps-2025-2026":
        return "inferencex" if run.notes.startswith("InferenceX") else "vendor-sweeps-2025-2026"
    return run.campaign or "unnamed"


def speculative(run: Run) -> str:
    """Return the speculative cell: none, unknown, yes, or the method with its draft passes and verified tokens."""
    spec = run.speculation
    if spec.state != "yes":
        return spec.state
    counts = f" steps={spec.draft_tokens} draft={spec.verify_tokens}" if spec.draft_tokens else ""
    span = f" accept len {spec.acceptance_range[0]}-{spec.acceptance_range[1]}" if spec.acceptance_range else ""
    return f"{spec.method or 'yes'}{counts}{span}{' simulated' if spec.simulated else ''}"


def notes_and_source(run: Run) -> tuple[str, str]:
    """Return the facts left of the notes, and the source of the row."""
    parts = [part.strip() for part in re.split(r";\s+|;$", run.notes)]
    source = run.source or ""
    if run.id.startswith("rtx-") and parts:
        source = parts.pop(0)
    if is_later(run):
        parts = [part for part in parts if not SAID_LATER.fullmatch(part)]
        source = "" if (run.campaign or "").startswith("inferencex-and") else later_source(source)
    parts = [part for part in parts if part and not SAID.fullmatch(part)]
    text = "; ".join(dict.fromkeys(parts)).replace("DEP 8 GPU", "DEP").replace("DEP 4 GPU", "DEP")
    if "two clusters" in text:
        text = CLUSTERS
    if campaign_of(run) in ONE_ADDRESS:
        source = ""
    return text[:300], source


def later_source(text: str) -> str:
    """Return an address: the table names GitHub's repositories with the commit behind an @."""
    text = re.sub(r"@\(stored file \d+\)", "@main", text)
    found = re.match(r"github ([\w.-]+/[\w.-]+)@(\w+)[ /](\S+)(.*)", text)
    if not found:
        return text
    repository, commit, path, rest = found.groups()
    rest = re.sub(r"^ (?!\()", "#", rest.partition(" (fork of")[0])
    return f"https://github.com/{repository}/blob/{commit}/{path}{rest}"


def snippet(run: Run) -> dict[str, str]:
    """Return what the command of a documentation snippet says of its run."""
    return {
        "protocol": "sglang-bench-random",
        "num_requests": str(SNIPPET_PROMPTS[run.accelerator_given][int(run.concurrency or 0)]),
        "request_rate_per_s": "inf",
        "input_tokens": "500.5",
        "output_tokens": "500.5",
    }


def number(value: float | None) -> str:
    """Return a number as short as it can be written without loss in fifteen digits."""
    return "" if value is None else f"{value:.15g}"


def cells(run: Run) -> dict[str, str]:
    """Return the row of one run in the project's own schema."""
    notes, source = notes_and_source(run)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for figure, reason in run.withheld.items():
        by_reason[reason].append(figure)
    figures = dict(run.observed)
    for column, text in run.cells.items():
        figure = ALIASES.get(column, column)
        if figure in run.withheld:
            figures[figure] = float(text)
    flags = {True: "yes", False: "no", None: ""}
    row = {name: str(run.cells.get(name, "")) for name in ("measured_on", "checkpoint", "scenario", "trust", "host")}
    row |= {name: number(getattr(run, name)) for name in COLUMNS if name in Run.__slots__ and name not in row
            and isinstance(getattr(run, name), int | float) and not isinstance(getattr(run, name), bool)
            and (name not in DERIVED or name in run.cells)}  # fmt: skip
    row |= {name: number(figures.get(name)) for name in FIGURES}
    row |= {
        "id": run.id,
        "campaign": campaign_of(run),
        "model": run.model,
        "accelerator": PARTS.get((campaign_of(run), name := run.accelerator_given.partition("(")[0].strip()), name),
        "weights": run.weights or "",
        "kv_cache": run.kv_cache or "",
        "engine": run.engine or "",
        "engine_version": run.engine_version or "",
        "backend": run.backend or "",
        "attention_backend": run.attention_backend or "",
        "moe_backend": run.moe_backend or "",
        "cuda_graphs": flags[run.graphs],
        "speculative": speculative(run),
        "acceptance_length": number(run.speculation.acceptance_length),
        "phase": run.phase,
        "protocol": run.protocol,
        "context_is_label": "yes" if run.context_is_label else "",
        "shared_prompt": "yes" if run.shared_prompt else "",
        "prefix_cached": "yes" if run.prefix_cached else "no" if run.shared_prompt else "",
        "withheld": " | ".join(f"{' '.join(names)}: {reason}" for reason, names in by_reason.items()),
        "unusable": run.unusable or "",
        "source": source,
        "notes": notes,
    }
    if run.protocol == "inferencex":
        row["num_requests"] = ""  # 10 x concurrency by protocol
    if row["campaign"] == DS4_BENCH:
        row |= {"weights": "q2_k", "notes": row["notes"].replace("; quant not stated in csv", "")}
    return row | snippet(run) if row["campaign"] == SNIPPETS else row


def text_kind(run: Run) -> str:
    """Return the kind of text whose acceptance a run shows."""
    if run.protocol == "sglang-bench-random":
        return "sglang random"
    if run.protocol in ("sharegpt", "gpustack"):
        return "ShareGPT"
    if "lambda" in (run.campaign or "") or "hgx-b200" in (run.campaign or ""):
        return "random tokens"
    for word, kind in (("Sonnet", "Sonnet"), ("SPEED-Bench", "SPEED-Bench"), ("results_", "decode bench, one prompt")):
        if word in run.scenario + run.notes:
            return kind
    return "not stated"


def acceptance(runs: list[Run]) -> list[list[str]]:
    """Return the acceptance lengths that the runs state or imply, then those that pages state by themselves."""
    rows = []
    for run in runs:
        spec, seen = run.speculation, run.observed
        length, basis = spec.acceptance_length, "stated"
        if "accept_rate=" in run.notes:
            basis = "accept rate x draft tokens"
        elif "draft acceptance" in f"{run.cells.get('speculative', '')} {run.notes}" or SHARE.search(
            run.cells.get("speculative", "")
        ):
            basis = "1 + draft tokens x share accepted"
        elif "ITL/TPOT" in run.notes:
            basis = "ITL / TPOT"
        elif length is None and spec.state == "yes" and run.protocol == "gpustack" and 0 < (run.concurrency or 0) <= 8:
            ratio = seen.get("itl_mean_ms", 0) / seen.get("tpot_mean_ms", math.inf)
            length, basis = round(ratio, 2) or None, "ITL / TPOT"
        if length is None or run.unusable or run.cells.get("table") in NOT_YET_FITTED:
            continue
        source = notes_and_source(run)[1] or run.source or ""
        if run.id.startswith("rtx-"):
            source = f"{WIKI}{source}"
        rows.append([run.id, run.model, spec.method or "", number(spec.draft_tokens), number(spec.verify_tokens),
                     run.engine or "", run.engine_version or "", number(run.concurrency), text_kind(run),
                     number(length), basis, source])  # fmt: skip
    return rows + [[""] + row for row in STATED]


def file_of(run: Run) -> str:
    """Return the campaign file of a row."""
    if run.id.startswith("fr-"):
        return "field-reports-glm.csv"
    campaign = campaign_of(run)
    if run.cells.get("table") == "runs-2026-11b":
        return next((file for start, file in FAMILIES_B.items() if campaign.startswith(start)), "other-public-2026.csv")
    family = next((file for start, file in FAMILIES.items() if campaign.startswith(start)), "other-public.csv")
    return FILES.get(campaign, family)


def written(path: Path, rows: list[list[str]]) -> str:
    """Write a table; return how many of its rows came, went and changed, by id where they have one."""
    before: dict[str, list[dict[str, str]]] = defaultdict(list)
    after: dict[str, list[dict[str, str]]] = defaultdict(list)
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                before[next(iter(row.values()))].append({name: cell for name, cell in row.items() if cell})
    for cells_of_row in rows[1:]:
        after[cells_of_row[0]].append(
            {name: cell for name, cell in zip(rows[0], cells_of_row, strict=False) if cell not in ("", None)}
        )
    counts = [(len(before[name]), len(after[name]), before[name] != after[name]) for name in {*before, *after}]
    came = sum(max(0, now - was) for was, now, _ in counts)
    went = sum(max(0, was - now) for was, now, _ in counts)
    changed = sum(1 for was, now, differs in counts if was == now and differs)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue())
    return f"{path.name}: {len(rows) - 1} rows, {came} came, {went} went, {changed} changed"


def main(arguments: list[str]) -> int:
    """Read every table of a folder and write the campaign files."""
    if len(arguments) == 1 and Path(arguments[0]).resolve() == FOLDER:
        print(f"{arguments[0]}: holds what this command writes; name the folder of the tables it read", file=sys.stderr)
        return 2
    found = sorted(Path(arguments[0]).glob("*.csv")) if len(arguments) == 1 else []
    tables = [path for path in found if "campaign" in path.read_text(encoding="utf-8").partition("\n")[0].split(",")]
    if not tables:
        said = (f"{folder}: no table with a column `campaign`" for folder in arguments[:1])
        print(__doc__, *said, sep="\n", file=sys.stderr)
        return 2
    for path in found:
        if path not in tables:
            print(f"{path.name}: no column `campaign`, so no table of runs; left alone")
    runs = [run for path in tables for run in runs_of(path)]
    by_file: dict[str, list[dict[str, str]]] = defaultdict(list)
    for run in runs:
        by_file[file_of(run)].append(cells(run))
    print(written(FOLDER / "acceptance.csv", [ACCEPTANCE_COLUMNS, *acceptance(runs)]))
    for file, rows in sorted(by_file.items()):
        used = [name for name in COLUMNS if any(row.get(name) for row in rows)]
        print(written(FOLDER / file, [used, *([row.get(name, "") for name in used] for row in rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
