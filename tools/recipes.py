"""Read a snapshot of published recipes into `hardware_db/recipes/`: one file for each model, and what changed.

python tools/recipes.py recipes.csv

The snapshot is a table with the columns recipe, checkpoint, accelerator, verified, engine, min_version, precision,
gpus_or_tp, mode, recommended, flags, env, date and source, one row for each command (vllm-project/recipes run through
its own command-synthesis.js, the SGLang cookbook, TensorRT-LLM examples/configs). Kept are rows of models and parts
that the catalogue has, one for each engine, checkpoint, part and number of cards: the recommended one, else the first.
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names
from glmplan.catalog.entries.models import load_model, model_aliases, model_key, model_names
from glmplan.catalog.files import plain_name
from glmplan.errors import UnknownName

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = (
    "engine", "since", "checkpoint", "precision", "accelerator", "cards", "mode", "verified", "flags", "env", "date",
    "source",
)  # fmt: skip
READ = {
    "checkpoint", "accelerator", "verified", "engine", "min_version", "precision", "gpus_or_tp", "mode", "recommended",
    "flags", "env", "date", "source",
}  # fmt: skip
#: what is no option of the model but of the place it runs in
_PLACE = re.compile(r"--(host|port|served-model-name|data-parallel-(address|rpc-port|start-rank)|node-rank|nnodes)\b")


def model_of(checkpoint: str) -> str | None:
    """Catalogue name of the model of a repository: by its own name, or by the checkpoints that the catalogue lists."""
    key = model_key(checkpoint)
    for name in (key, re.sub(r"-(fp8|nvfp4|mxfp4|mxfp8|int4|awq|bf16|fp8-block|fp8-dynamic)(-.*)?$", "", key)):
        if name in model_names():
            return name
        if name in model_aliases():
            return model_aliases()[name]
    return _repositories().get(checkpoint.lower())


def _repositories() -> dict[str, str]:
    if not _KNOWN:
        for name in model_names():
            for one in load_model(name).checkpoints:
                if one.repository:
                    _KNOWN[one.repository.lower()] = name
    return _KNOWN


_KNOWN: dict[str, str] = {}


def part_of(name: str) -> str | None:
    """Catalogue name of an accelerator, or None."""
    key = plain_name(name.partition("(")[0].replace("_", "-"))
    found = accelerator_aliases().get(key, key)
    return found if found in accelerator_names() else None


def kept_rows(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Rows in the project's own form, by model."""
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        try:
            model, part = model_of(row["checkpoint"]), part_of(row["accelerator"])
        except UnknownName:
            continue
        version = re.search(r"\d+(\.\d+)+(\.post\d+|rc\d+)?", row["min_version"])
        if model is None or part is None or row["engine"] not in ("vllm", "sglang", "trtllm"):
            continue
        one = {
            "engine": row["engine"], "since": version[0] if version else "", "checkpoint": row["checkpoint"],
            "precision": row["precision"], "accelerator": part, "cards": row["gpus_or_tp"], "mode": row["mode"],
            "verified": "yes" if row["verified"] in ("verified", "recommended by NVIDIA") else "no",
            "flags": " ".join(row["flags"].split()), "env": row["env"], "date": row["date"], "source": row["source"],
        }  # fmt: skip
        if _PLACE.search(one["flags"]):
            continue
        key: tuple[str, ...] = (model, one["engine"], one["checkpoint"], part, one["cards"])
        before = best.get(key)
        better = before is None or (row["recommended"] == "yes" and before["_rank"] != "yes")
        if better:
            best[key] = one | {"_rank": row["recommended"]}
    found: dict[str, list[dict[str, str]]] = {}
    for key in sorted(best):
        found.setdefault(key[0], []).append(best[key])
    return found


def main() -> None:
    """Read the snapshot, write the files, and say what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshot", type=Path)
    given = parser.parse_args()
    if not given.snapshot.is_file():
        parser.error(f"{given.snapshot}: no such file")
    with given.snapshot.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = READ - set(reader.fieldnames or ())
        if missing:
            parser.error(f"{given.snapshot}: without the columns {', '.join(sorted(missing))}")
        found = kept_rows(list(reader))
    if not found:
        parser.error(f"{given.snapshot}: no recipe of a model and a part of the catalogue")
    folder = ROOT / "hardware_db" / "recipes"
    folder.mkdir(exist_ok=True)
    moved = 0
    for model, rows in found.items():
        file = folder / f"{model}.csv"
        before = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        after = file.read_text(encoding="utf-8").splitlines()[1:]
        new, gone = len(set(after) - set(before)), len(set(before) - set(after))
        moved += new + gone
        if new or gone:
            print(f"{model}: {len(after)} recipes, {new} new or changed, {gone} gone")
    if not moved:
        print(f"{sum(map(len, found.values()))} recipes of {len(found)} models: unchanged")
    for file in sorted(folder.glob("*.csv")):
        if file.stem not in found:
            print(f"{file.stem}: not in this snapshot, left as it is")


if __name__ == "__main__":
    main()
