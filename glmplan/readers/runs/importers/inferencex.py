"""InferenceX (InferenceMAX) aggregated results: for each GPU, in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.record import BadRecord, Fields, Imported, Problem, Source, by_keys
from glmplan.readers.runs.importers.serving_columns import latencies, notes

__all__ = ["KIND", "read", "recognise"]

KIND = "inferencex"
#: How InferenceX names its machines and how the catalogue does.
_PARTS = {
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
}
_ENGINES = ("sglang", "vllm", "trt", "atom")
recognise = by_keys("tput_per_gpu", "isl", "osl")


def read(source: Source) -> Imported:
    """Read the configurations of a file.

    Throughputs are for each GPU (output per decode GPU when disaggregated) and become those of the deployment.
    Lengths are nominal: the protocol draws them uniformly from 0.8 to 1.0 of nominal.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        Runs and problems.
    """
    return source.collect(_rows)


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
    apart = _true(fields.value.get("disagg"))
    tp, pp = fields.number("tp") or fields.number("decode_tp") or 1, fields.number("pp") or 1
    cards = tp * pp * (fields.number("pcp_size") or 1)
    decode = cards
    if apart:
        decode = fields.require("num_decode_gpu")
        cards = decode + fields.require("num_prefill_gpu")
    if cards < 1:
        raise BadRecord(Problem(fields.line, "tp", f"expected 1 or more, got {tp:g}"))
    ranks = _true(fields.value.get("dp_attention", fields.value.get("decode_dp_attention")))
    framework = (fields.text("framework") or "").lower()
    engine = next((name for name in _ENGINES if name in framework), framework)
    hw = (fields.text("hw") or "").lower()
    total, output = fields.require("tput_per_gpu"), fields.number("output_tput_per_gpu")
    yield {
        "model": fields.text("infmax_model_prefix"),
        "checkpoint": fields.text("model"),
        "weights": {"fp4": "nvfp4" if "mi3" not in hw else "mxfp4"}.get(p := fields.text("precision") or "", p or None),
        "accelerator": next((name for key, name in _PARTS.items() if key == hw.partition("-")[0]), hw or None),
        "accelerator_count": cards,
        "tp": 1 if ranks else tp,
        "pp": pp,
        "dp": tp if ranks else 1,
        "ep": fields.number("ep") or fields.number("decode_ep"),
        "dcp": fields.number("dcp_size"),
        "engine": "trtllm" if engine == "trt" else engine or None,
        "engine_version": (fields.text("image") or "").rpartition(":")[2] or None,
        "speculative": fields.text("spec_decoding"),
        "phase": "serving",
        "concurrency": fields.require("conc"),
        "input_tokens": fields.require("isl"),
        "output_tokens": fields.require("osl"),
        "output_tokens_per_s": output * decode if output else None,
        "total_tokens_per_s": total * cards,
        **latencies(fields, suffix="", scale=1e3),
        "notes": notes(
            "InferenceX",
            "lengths uniform in 0.8-1.0 of nominal, 10 prompts for each user, all sent at once",
            f"disaggregated: {cards - decode:g} prefill and {decode:g} decode GPUs" if apart else "",
            fields.text("recipe_fingerprint"),
        ),
    }


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
