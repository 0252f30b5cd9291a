"""Print every measured memory row with what is predicted for it and the error; `make check` runs this.

Rows: phase `memory` of `calibration/measurements/rtx6kpro-wiki.csv` and the start-up logs in
`calibration/memory/engine-logs.csv`. Exits 1 when a row cannot be predicted or too few lie inside their interval.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass

from glmplan.calibrate.memory import observations
from glmplan.catalog.engines.memory import stated_fraction
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import data_folder
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import uniform_checkpoint
from glmplan.costs.memory import MemorySettings, kv_pool, part_memory, rank_memory
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError
from glmplan.units import GIB

#: least share of pools inside their 90 % interval [-]; rows that another model or a rounded figure explains not counted
_LEAST_INSIDE = 0.85


@dataclass(frozen=True)
class Row:
    """One measured figure and what it takes to predict it."""

    id: str
    model: str
    checkpoint: str
    kv: str
    part: str
    tp: int
    pp: int
    dcp: int
    mtp: bool
    settings: MemorySettings
    pool: float | None
    weights: float | None
    remark: str


def find_checkpoint(model: ModelSpec, repository: str, weights: str) -> Checkpoint:
    """The checkpoint of a repository, or of a format."""
    for one in model.checkpoints:
        if repository and (one.repository or "").lower() == repository.lower():
            return one
    name = weights.split(" ", maxsplit=1)[0]
    return model.checkpoint(name) or uniform_checkpoint(name)


def wiki_lines() -> list[dict[str, str]]:
    """Memory rows of the wiki, as they stand in the table."""
    file = data_folder("calibration") / "measurements" / "rtx6kpro-wiki.csv"
    with open(file, newline="", encoding="utf-8") as stream:
        return [line for line in csv.DictReader(stream) if line["phase"] == "memory"]


def wiki_rows() -> list[Row]:
    """Memory rows of the wiki."""
    rows = []
    for line in wiki_lines():
        notes, speculative = line["notes"] + " " + line["source"], line["speculative"]
        version = line["engine_version"]
        settings = MemorySettings(
            engine=line["engine"],
            version="0.19.0" if line["engine"] == "vllm" else None,  # measured in March to May 2026
            accelerator=line["accelerator"],
            fraction=stated_fraction(notes),
            token_budget=4096 if line["model"] == "kimi-k2.5" else 8192,
            max_requests=1024 if line["model"].startswith("minimax") else 64,
        )
        remark = ""
        if "eagle" in speculative:
            remark = "EAGLE3 draft (about 3 GiB) is not in the catalogue"
        elif settings.fraction is None and line["kv_pool_tokens"] and line["model"] == "kimi-k2.5":
            remark = "rounded in the source, fraction not stated"
        elif "nsa-luke" in version:
            remark = "index keys on 40 of 78 layers, draft loaded after the pool"
        rows.append(
            Row(
                line["id"],
                line["model"],
                line["checkpoint"],
                line["kv_cache"] or "bf16",
                line["accelerator"],
                int(line["tp"]),
                int(line["pp"] or 1),
                int(line["dcp"] or 1),
                "MTP" in line["checkpoint"] or line["model"] == "glm-5" or speculative.startswith("mtp"),
                settings,
                float(line["kv_pool_tokens"]) if line["kv_pool_tokens"] else None,
                float(line["weights_gib_per_accelerator"]) if line["weights_gib_per_accelerator"] else None,
                remark,
            )
        )
    return rows


def log_rows() -> list[Row]:
    """Pools and weights of start-up logs."""
    rows = []
    for row in observations():
        if row.kind != "pool":
            continue
        number, text = row.number, row.text
        settings = MemorySettings(
            engine=text["engine"],
            version=text.get("version"),
            accelerator=text["part"],
            fraction=number["fraction"],
            token_budget=number.get("token_budget"),
            max_requests=number.get("max_requests"),
            graphs=number.get("graphs"),
        )
        rows.append(
            Row(
                row.id,
                text["model"],
                "",
                text["kv"],
                text["part"],
                int(number["tp"]),
                1,
                int(number["dcp"]),
                text["mtp"] == "yes",
                settings,
                number.get("pool_tokens"),
                number.get("weights_gib"),
                "" if row.used else "another model than the catalogue's",
            )
        )
    return rows


def check(rows: list[Row], formats: dict[str, str]) -> tuple[int, int, int]:
    """Print rows; return how many pools count, how many of them lie inside their interval, and failures."""
    counted = inside = failed = 0
    for row in rows:
        try:
            model = load_model(row.model)
            checkpoint = find_checkpoint(model, row.checkpoint, formats[row.id])
            part = part_memory(load_accelerator(row.part))
            memory = rank_memory(
                model,
                checkpoint,
                layout=Layout(tp=row.tp, pp=row.pp, dcp=row.dcp),
                kv=row.kv,
                settings=row.settings,
                mtp=row.mtp,
                memory=part.total,
            )
        except GlmplanError as error:
            print(f"{row.id:24s} cannot be predicted: {error}")
            failed += 1
            continue
        head = f"{row.id:24s} {row.model:16s} {checkpoint.name:17s} {row.settings.engine:7s} tp{row.tp} dcp{row.dcp}"
        if row.weights is not None:
            seen, found = row.weights, memory.weights[0] / GIB
            total = seen > part.total / GIB
            found = found * row.tp if total else found
            what = "GiB, all cards" if total else "GiB a card"
            print(f"{head} weights {seen:11.2f} predicted {found:11.2f} {what:31s} {found / seen - 1:+7.1%}")
        if row.pool is not None:
            pool = kv_pool(memory, part)
            low, mean, high = (float(one[0]) for one in (pool.tokens_low, pool.tokens, pool.tokens_high))
            within = low <= row.pool <= high
            counted += not row.remark
            inside += within and not row.remark
            print(
                f"{head} pool    {row.pool:11,.0f} predicted {mean:11,.0f} [{low:11,.0f}, {high:11,.0f}] tokens "
                f"{mean / row.pool - 1:+7.1%} {'inside' if within else 'outside'} {row.remark}".rstrip()
            )
    return counted, inside, failed


def main() -> int:
    """Print both tables and the summary."""
    formats = {line["id"]: line["weights"] for line in wiki_lines()}
    formats |= {row.id: row.text["checkpoint"] for row in observations() if row.kind == "pool"}
    print("Memory rows of the RTX PRO 6000 wiki")
    wiki = check(wiki_rows(), formats)
    print("\nEngine start-up logs (those without a remark are what the observed terms are fitted to)")
    logs = check(log_rows(), formats)
    counted, inside, failed = (a + b for a, b in zip(wiki, logs, strict=True))
    print(f"\n{inside} of {counted} pools without a remark lie inside their 90 % interval; {failed} rows failed")
    return 0 if not failed and inside >= _LEAST_INSIDE * counted else 1


if __name__ == "__main__":
    sys.exit(main())
