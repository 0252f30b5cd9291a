"""Make `calibration/settings.csv` from a table of launch commands that were taken from public repositories.

    python tools/harvest_settings.py LAUNCHES.csv

LAUNCHES.csv has one row for each distinct launch: which campaign or recipe, model, part, engine, image, precision, from
when to when, layout, loads, and the flags, as the command line or the configuration file says them. What is written is
the part of it that glmplan computes with, in its own names: canonical models, parts and formats; numbers with their
unit; limits of one data-parallel rank turned into what glmplan means by them. A value that follows the load (`{2*ISL}`,
`{ISL+4*CONC+64}`) becomes a number for each input token, output token and request in flight. An empty cell is the
engine's own default, which is an answer; what no row covers is not known.

Left out: disaggregated servers, models and parts without an entry in the catalogue, agentic traces (their requests are
session trees and their acceptance is injected), aggregated servers whose lengths are not given. Flags that glmplan does
not compute with: stream intervals, postprocess workers, several decode steps in a row, quantised all-reduce, prefill
delayers, schedule conservativeness, piecewise graphs. Run twice on one table, it writes the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from pathlib import Path

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.files import write_atomically
from glmplan.errors import GlmplanError
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.io.runs.settings import COLUMNS

TARGET = Path(__file__).resolve().parent.parent / "calibration" / "settings.csv"
#: beginning of the name of a source → campaign; the rest of the name is the recipe
CAMPAIGNS = {
    "InferenceX": "inferencex", "vllm-recipes": "vllm-recipes", "sglang-cookbook": "sglang-cookbook",
    "sglang-docs": "sglang-docs", "rtx6kpro": "rtx6kpro", "TensorRT-LLM": "trtllm-configs",
}  # fmt: skip
#: models that publish their FP4 weights as MXFP4 whatever the part; of others FP4 is MXFP4 on AMD only
MXFP4 = ("gpt-oss", "kimi-k3")
#: precision as a campaign writes it → format; others are taken by their own name
PRECISIONS = {"fp4": "nvfp4", "int4 (native)": "int4"}
#: switch of vLLM → kernels of the experts as `hardware_db/kernels.toml` calls them
EXPERTS = {
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "flashinfer-mxfp8", "VLLM_MXFP4_USE_MARLIN": "marlin",
    "VLLM_USE_FLASHINFER_MOE_INT4": "flashinfer-int4",
}  # fmt: skip
_LOAD = re.compile(r"(\d+)/(\d+) conc ([\d,]+)")
_TERM = re.compile(r"(?:(\d+(?:\.\d+)?)\*)?(ISL|OSL|CONC)|(\d+)")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_FORMAT = re.compile(r"nvfp4|mxfp4|mxfp8|fp8|fp4|awq|gptq|int4|int8|bf16")


class LeftOut(Exception):
    """Why a launch is not taken over."""


def pairs(cell: str) -> dict[str, str]:
    """Return the flags of a cell: name → value, empty for a switch; a value before any flag has no name."""
    out: dict[str, str] = {}
    for one in filter(None, (part.strip() for part in cell.split(";"))):
        name, equals, value = one.partition("=")
        if not equals and re.fullmatch(r"[{\d'\"(].*|auto|bf16|bfloat16|fp8\w*|none|null|-1", name):
            name, value = "", one
        out.setdefault(name, value.strip("'\" "))
    return out


def formula(text: str) -> tuple[float, float, float, float] | None:
    """Return a linear formula as (constant, for each input token, output token, request in flight)."""
    text = text.strip("{}'\" ").replace("(", "").replace(")", "")
    found = [0.0, 0.0, 0.0, 0.0]
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            return None
        if match[3]:
            found[0] += float(match[3])
        else:
            found[("ISL", "OSL", "CONC").index(match[2]) + 1] += float(match[1] or 1)
    return tuple(found)  # type: ignore[return-value]


def campaign_of(row: dict[str, str]) -> tuple[str, str]:
    """Return campaign and recipe of a launch."""
    said = row["campaign_or_recipe"]
    start = next((one for one in CAMPAIGNS if said.startswith(one)), "")
    if not start:
        raise LeftOut("a campaign that is not known")
    rest = said.removeprefix(start).strip(" ()")
    if start == "InferenceX":
        return CAMPAIGNS[start], rest
    scenario = re.sub(r"\s+", " ", row["scenario"])
    return CAMPAIGNS[start], scenario if not _LOAD.search(scenario) else rest


def names_of(row: dict[str, str]) -> tuple[str, list[str], str]:
    """Return model, parts and format in canonical names."""
    model = row["model"]
    if model not in model_names():
        raise LeftOut("a model that the catalogue does not hold")
    listed = re.sub(r"\(.*\)", "", row["accelerator"]).replace("_", "-").split(",")
    parts = [one.strip() for one in listed if one.strip() in accelerator_names()]
    if not parts:
        raise LeftOut("a part that the catalogue does not hold")
    precision = row["precision"]
    if "inputs" in precision:  # templates name the precision in their key
        precision = "fp4" if "fp4" in (row["campaign_or_recipe"] + row["source"]).lower() else "fp8"
    word = PRECISIONS.get(precision, precision) or None
    if word is None:
        # the name of the files says it, or they are what the makers of the model publish
        said = _FORMAT.search(row["checkpoint"].partition(" (")[0].lower())
        precision = said[0] if said else ""
        word = PRECISIONS.get(precision, precision) or None
        if word is None and "/" not in row["checkpoint"]:
            raise LeftOut("a format that is not said")
    amd = load_accelerator(parts[0]).vendor.lower() == "amd"
    if precision == "fp4" and (amd or model.startswith(MXFP4)):
        word = "mxfp4"
    try:
        stored = checkpoint_for(load_model(model), word)
    except GlmplanError:
        raise LeftOut("a format that is not known") from None
    return model, parts, stored.formats.get("routed_experts") or stored.default


def layout_of(row: dict[str, str]) -> dict[str, int | None]:
    """Return tensor, pipeline, data and expert parallelism as glmplan counts them: accelerators = tp · pp · dp."""
    numbers = {name: int(row[name]) if row[name].isdigit() else None for name in ("tp", "pp", "ep")}
    tp, said = numbers["tp"], row["dp"].split()
    dp = int(said[0]) if said and said[0].isdigit() else 1
    if "attention" in said and tp:
        if not said[0].isdigit():  # TensorRT-LLM and ATOM: attention is data-parallel over all of the group
            tp, dp = 1, tp
        elif tp > 1 and tp % dp == 0:  # SGLang counts the replicas of attention inside --tp-size
            tp //= dp
    ep, experts = numbers["ep"], pairs(row["moe_backend"]).get("enable-expert-parallel", "no")
    if experts not in ("no", "false") and tp:
        ep = max(ep or 1, tp * dp)
    return {"tp": tp, "pp": numbers["pp"] or (1 if tp else None), "dp": dp if tp else None, "ep": ep}


def loads_of(row: dict[str, str], campaign: str) -> str:
    """Return the listed loads as ``input/output:users,users input/output:users``; empty for any load."""
    scenario = row["scenario"]
    if "agentic" in scenario:
        raise LeftOut("agentic traces")
    found = [f"{one[1]}/{one[2]}:{one[3]}" for one in _LOAD.finditer(scenario)]
    if campaign == "inferencex" and not found:
        raise LeftOut("aggregated servers without lengths")
    return " ".join(found)


def draft_of(row: dict[str, str]) -> int | None:
    """Return the length of the drafted chain; 0 for none, None where it is not said."""
    said = row["speculative"]
    if not said or said.startswith("off by default"):
        return 0
    if said == "none":
        return 0
    names = ("num-steps", "num_speculative_tokens", "num_nextn_predict_layers", "max_draft_len",
             "num-speculative-tokens", "speculative-num-tokens")  # fmt: skip
    for name in names:
        if match := re.search(rf"{name}[^=:]*[\"']?\s*[=:]\s*(\d+)", said):
            return int(match[1])
    return None


def budget_of(row: dict[str, str], dp: int) -> tuple[tuple[float, ...] | None, bool | None]:
    """Return the budget of a step of one data-parallel rank, and whether prompts are never split."""
    said = pairs(row["max_num_batched_tokens_or_chunked_prefill"])
    text, whole = said.get("", ""), None
    if "no-enable-chunked-prefill" in said or said.get("enable-chunked-prefill") == "false":
        whole = True
    elif "enable-chunked-prefill" in said and row["engine"] == "trtllm":
        whole = False
    if text == "-1":
        text, whole = said.get("max-prefill-tokens", ""), True
    if not text:
        return None, whole
    found = formula(text)
    if found is None:
        raise LeftOut("a budget that is no formula of the load")
    if row["engine"] == "sglang":
        most = formula(said.get("max-prefill-tokens", "")) if said.get("max-prefill-tokens") else None
        if most is not None and not any(found[1:]) and not any(most[1:]):
            found = min(found, most)
        # SGLang divides the chunk among ranks with attention of their own
        found = (found[0] // dp, found[1] / dp, found[2] / dp, found[3] / dp)
    return found, whole


def limit_of(row: dict[str, str], dp: int) -> tuple[float, ...] | None:
    """Return the requests that run at once on all ranks: (constant, for each request in flight)."""
    if not row["max_num_seqs"]:
        return None
    found = formula(row["max_num_seqs"])
    if found is None or found[1] or found[2]:
        return None
    # vLLM and TensorRT-LLM limit each data-parallel rank, SGLang all together
    ranks = 1 if row["engine"] == "sglang" else dp
    return found[0] * ranks, found[3] * ranks


def waits_of(row: dict[str, str]) -> dict[str, object]:
    """Return how new requests wait: for the next look at them, for each other, for a full step."""
    said = pairs(row["scheduling"])
    out: dict[str, object] = {"poll_interval_steps": said.get("scheduler-recv-interval", "")}
    if said.get("attention_dp_config.enable_balance") == "true":
        # the engine's default of timeout_iters, https://nvidia.github.io/TensorRT-LLM/llm-
        # api/reference/AttentionDpConfig
        out["gather_steps"] = said.get("attention_dp_config.timeout_iters", "50")
    out["batch_wait_steps"] = said.get("batch-wait-timeout-iters", "")
    out["batch_wait_share"] = said.get("batch-wait-max-tokens-ratio", "")
    if "MAX_UTILIZATION" in said.get("scheduler_config.capacity_scheduler_policy", ""):
        out["reserve_share"] = "0.5"  # admits what the cache holds now, as `protocols.toml` has it for MLPerf
    return out


def backends_of(row: dict[str, str]) -> dict[str, object]:
    """Return the kernels that were asked for by name."""
    attention = pairs(row["attention_backend"]).get("attention-backend", "").lower()
    experts, env = "", pairs(row["env_kernels"])
    if row["engine"] == "vllm":
        experts = next((name for flag, name in EXPERTS.items() if env.get(flag) == "1"), "")
    eager = {"enforce-eager", "disable-cuda-graph"} & set(pairs(row["cuda_graph_settings"]))
    named = attention if attention not in ("nsa", "dsa", "dsv4", "compressed") else ""
    return {"attention_backend": named, "expert_kernels": experts, "cuda_graphs": "no" if eager else ""}


def kv_of(row: dict[str, str]) -> str:
    """Return the format of the KV cache; empty for the engine's default."""
    said = pairs(row["kv_cache_dtype"]).get("", "").lower()
    return "fp8" if said.startswith("fp8") else {"bfloat16": "bf16", "bf16": "bf16", "nvfp4": "nvfp4"}.get(said, "")


def number(value: float | None) -> str:
    """Return a number for a cell; nothing for none and for zero."""
    return f"{value:g}" if value and value < 1e6 else str(int(value)) if value else ""


def day(text: str) -> str:
    """Return the first day that a cell names, or its month's first."""
    if found := _DAY.search(text):
        return found[0]
    return f"{text[:7]}-01" if re.match(r"\d{4}-\d{2}", text) else ""


def source_of(text: str) -> str:
    """Return where a launch is written: repository of github.com, file, commit."""
    place, _, rest = text.partition("@")
    commit, _, path = rest.partition(" ")
    return f"{place} {path} at {commit[:8]}" if rest else text


def entries_of(row: dict[str, str]) -> list[dict[str, str]]:
    """Return the entries of a launch, one for each part that it names."""
    if row["disaggregated"] != "no" or "dynamo" in row["engine"]:
        raise LeftOut("disaggregated servers")
    campaign, recipe = campaign_of(row)
    model, parts, form = names_of(row)
    layout = layout_of(row)
    dp = layout["dp"] or 1
    fraction = pairs(row["memory_fraction"]).get("", "")
    if "cpu-offload-gb" in row["memory_fraction"]:
        raise LeftOut("weights in host memory")
    budget, whole = budget_of(row, dp)
    limit = limit_of(row, dp)
    entry: dict[str, object] = {
        "campaign": campaign, "recipe": recipe, "model": model, "engine": row["engine"],
        "image": row["engine_image_or_version"], "weights": form, "valid_from": day(row["valid_from"]),
        "valid_until": day(row["valid_until"]), **{name: "" if one is None else one for name, one in layout.items()},
        "loads": loads_of(row, campaign), "draft_tokens": "" if draft_of(row) is None else draft_of(row),
        "kv_cache": kv_of(row), "memory_fraction": re.sub(r"[^\d.]", "", fraction),
        "whole_prompts": "" if whole is None else "yes" if whole else "no", **waits_of(row), **backends_of(row),
        "source": source_of(row["source"]),
    }  # fmt: skip
    if budget is not None:
        names = ("budget_tokens", "budget_per_input", "budget_per_output", "budget_per_user")
        entry |= {name: number(one) for name, one in zip(names, budget, strict=True)}
    if limit is not None:
        entry |= {"running_limit": number(limit[0]), "running_limit_per_user": number(limit[1])}
    return [{name: str(entry.get(name, "")) for name in COLUMNS} | {"accelerator": part} for part in parts]


def merged(entries: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return entries that differ in loads, or only in who wrote the same, as one."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in entries:
        key = tuple(entry[name] for name in COLUMNS if name not in ("loads", "source"))
        held = found.setdefault(key, entry)
        if held is not entry:
            seen = held["loads"].split()
            held["loads"] = " ".join(seen + [one for one in entry["loads"].split() if one not in seen])
    return sorted(found.values(), key=lambda entry: [entry[name] for name in COLUMNS])


def main(path: str) -> None:
    """Read the launches and write the table."""
    with Path(path).open(encoding="utf-8", newline="") as stream:
        launches = list(csv.DictReader(stream))
    entries: list[dict[str, str]] = []
    left: Counter[str] = Counter()
    for row in launches:
        try:
            entries += entries_of(row)
        except LeftOut as why:
            left[str(why)] += 1
    kept = merged(entries)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    write_atomically(TARGET, out.getvalue())
    print(f"{len(launches)} launches, {len(kept)} settings")
    for reason, count in left.most_common():
        print(f"  left out {count}: {reason}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("\n".join([*(f"{name}: no such file" for name in sys.argv[1:2]), *__doc__.splitlines()[:3]]))
    main(sys.argv[1])
