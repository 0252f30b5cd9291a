"""Write the page of a model: totals, cache, checkpoints, contradictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from glmplan.catalog.schema.model import Checkpoint, LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import feed_forwards_of, mixer_of
from glmplan.costs.blocks.stack import (
    checkpoint_bytes,
    model_cache_bytes_per_token,
    model_parameters,
    model_state_bytes,
    mtp_tensors,
)
from glmplan.io.models.resolve import ModelChoice
from glmplan.units import GIB, Bytes, parse_quantity

__all__ = ["PublishedTotal", "disagreements_of", "model_facts", "model_text", "published_bytes", "published_total"]


# Published totals of parameters beside computed ones, at the precision with which they are printed.
#
# A publisher's "671B" is not exact to three digits: names are rounded, cut off, or rounded to tens. A computed total
# agrees if one of these gives the printed digits. Publishers rarely state which layers they count, so all possible sums
# are tried, the smallest first. A total without an agreeing sum needs a reason in the entry.

#: billions
_BILLION = 1e9


@dataclass(frozen=True, slots=True)
class PublishedTotal:
    """Published total of parameters, and the nearest computed total."""

    printed: str  # as printed, in billions
    computed: int  # weights, [-]
    counts: str  # layers in the computed total
    agrees: str  # rule that gives the printed digits: ``rounded``, ``cut off`` or ``rounded to 10``; empty if none does
    why: str  # reason of a disagreement, from the entry


def published_total(model: ModelSpec) -> PublishedTotal | None:
    """Return the computed total that agrees with the published one.

    The closest rule and the smallest sum come first. Without an agreeing sum the nearest one is returned; None without
    a published total.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> found = published_total(load_model("deepseek-v3"))
    >>> found.printed, found.counts, found.agrees
    ('671', 'language model', 'rounded')
    """
    if model.published is None or not model.published.total_b:
        return None
    total = model.published.total_b
    printed = f"{total:.10g}"
    sums = dict(_sums(model))
    for how, gives in _ways(printed):
        for counts, computed in sums.items():
            if gives(computed / _BILLION):
                return PublishedTotal(printed, computed, counts, how, "")
    counts = min(sums, key=lambda name: abs(sums[name] / _BILLION - total))
    return PublishedTotal(printed, sums[counts], counts, "", model.published.note or "")


def _sums(model: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield the sums that a publisher may count, the smallest first."""
    count = model_parameters(model)
    layers = [("language model", count.total)]
    if count.mtp:
        layers.append(("with MTP layers", count.total + count.mtp))
        if count.mtp_vocabulary:
            whole = count.total + count.mtp + count.mtp_vocabulary
            ends = "their heads" if model.mtp is not None and model.mtp.own_head else "their embedding and head"
            layers.append((f"with MTP layers, {ends}", whole))
    yield from layers
    if model.extra_parameters:
        for counts, computed in layers:
            yield f"{counts}{', ' if counts.startswith('with') else ' '}and tower", computed + model.extra_parameters


def _ways(printed: str) -> Iterator[tuple[str, Callable[[float], bool]]]:
    """Yield rules that give the printed digits, the closest first."""
    value = float(printed)
    unit = 10.0 ** -len(printed.partition(".")[2])
    yield "rounded", lambda total: abs(total - value) <= unit / 2
    yield "cut off", lambda total: math.floor(total / unit) == round(value / unit)
    tens = 10.0 ** (len(printed) - len(printed.rstrip("0"))) if "." not in printed else 1.0
    if tens > 1:
        yield f"rounded to {tens:,.0f}", lambda total: abs(total - value) <= tens / 2


#: engine and cache format of the columns
_CACHES = (
    *(("vllm", "bf16"), ("vllm", "fp8"), ("vllm", "nvfp4"), ("sglang", "bf16"), ("llama.cpp", "f16")),
    ("llama.cpp", "q8_0"),
)


def published_bytes(checkpoint: Checkpoint) -> Bytes | None:
    """Return the size that the publisher states.

    Examples
    --------
    >>> published_bytes(Checkpoint(name="bf16", bytes_published="1.5 TB", source="a card"))
    1500000000000.0
    """
    return None if checkpoint.bytes_published is None else float(parse_quantity(checkpoint.bytes_published, "bytes"))


def disagreements_of(choice: ModelChoice) -> Iterator[str]:
    """Yield differences of published and computed values, with reasons.

    A total differs by its printed digits, a size by more than 0.5 %.

    Examples
    --------
    >>> from glmplan.io.models.resolve import resolve_model
    >>> any("7168" in line for line in disagreements_of(resolve_model("glm-5.1")))
    True
    """
    model = choice.model
    total = published_total(model)
    if total is not None and not total.agrees:
        why = f": {total.why}" if total.why else ""
        yield f"published total {total.printed} B, computed {total.computed / 1e9:.2f} B ({total.counts}){why}"
    for one in model.checkpoints:
        size = published_bytes(one)
        if size is not None and abs(checkpoint_bytes(model, one) / size - 1) > 0.005:
            why = f" ({one.note})" if one.note else ""
            computed = checkpoint_bytes(model, one) / 1e9
            yield f"{one.name}: published {one.bytes_published}, computed {computed:.1f} GB{why}"
    yield from model.disagreements
    if model.not_understood:
        yield f"fields of its config that glmplan does not know, left out of account: {', '.join(model.not_understood)}"
    yield from choice.notes


def model_facts(choice: ModelChoice) -> dict[str, Any]:
    """Return the known facts of a model as plain values.

    Examples
    --------
    >>> from glmplan.io.models.resolve import resolve_model
    >>> model_facts(resolve_model("glm-5.1"))["parameters"]["total"]
    743911218432
    """
    model = choice.model
    count = model_parameters(model)
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "family": model.family,
        "hugging_face": model.hugging_face,
        "layers": len(model.layer_names),
        "stack": model.stack,
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "max_context": model.max_context,
        "parameters": {
            "total": count.total,
            "mtp": count.mtp,
            "mtp_vocabulary": count.mtp_vocabulary,
            "active": count.active,
            "routed_experts": count.routed,
            "outside_language_stack": model.extra_parameters,
        },
        "published": None if model.published is None else model.published.model_dump(),
        "cache_bytes_per_token": [
            {
                "engine": engine,
                "kv": kv,
                "bytes": model_cache_bytes_per_token(model, kv, engine),
                "bytes_beyond_windows": model_cache_bytes_per_token(model, kv, engine, windows=False),
            }
            for engine, kv in _CACHES
        ],
        "state_bytes_per_sequence": model_state_bytes(model),
        "checkpoint": choice.checkpoint.name,
        "checkpoints": [
            {
                "name": one.name,
                "repository": one.repository,
                "bytes": checkpoint_bytes(model, one),
                "bytes_published": published_bytes(one),
                "published_as": one.bytes_published,
                "source": one.source,
            }
            for one in model.checkpoints
        ],
        "exact_bytes_by_class": choice.exact_bytes,
        "disagreements": list(disagreements_of(choice)),
        "note": model.extra_note,
        "source": model.source,
    }


def model_text(choice: ModelChoice) -> str:
    """Return the known facts of a model as text.

    Examples
    --------
    >>> from glmplan.io.models.resolve import resolve_model
    >>> print(model_text(resolve_model("llama-3.1-8b")).splitlines()[0])
    llama-3.1-8b: 8.03 B weights, 7.50 B active for each token
    """
    model = choice.model
    count = model_parameters(model)
    lines = [f"{model.name}: {count.total / 1e9:,.2f} B weights, {count.active / 1e9:,.2f} B active for each token"]
    if count.mtp:
        ends = "their heads" if model.mtp is not None and model.mtp.own_head else "its embedding and head"
        own = f", {count.mtp_vocabulary / 1e9:.2f} B for {ends}" if count.mtp_vocabulary else ""
        lines.append(f"  MTP layers hold {count.mtp / 1e9:.2f} B more{own}")
    if model.draft_head is not None:
        held = sum(tensor.parameters for tensor in mtp_tensors(model)) + model.vocabulary * model.hidden
        lines.append(f"  a draft head of {held / 1e9:.2f} B is published apart: {model.draft_head.repository}")
    if model.published is not None:
        parts = [
            f"{value:g} B {word}"
            for value, word in ((model.published.total_b, "in total"), (model.published.active_b, "active"))
            if value
        ]
        lines.append(f"  published: {', '.join(parts)} ({model.published.source})")
    lines += [
        f"  {len(model.layer_names)} layers: {model.stack}",
        *(f"    {name}: {_kind(kind)}" for name, kind in model.layers.items()),
        f"  hidden {model.hidden:,}, vocabulary {model.vocabulary:,}, context up to {model.max_context:,} tokens",
    ]
    if model.extra_note:
        lines.append(f"  {model.extra_note}")
    lines += ["", "KV cache for each token [B]"]
    for engine, kv in _CACHES:
        size = model_cache_bytes_per_token(model, kv, engine)
        lines.append(f"  {engine:10} {kv:6} {size:12,.0f}" + _in_words(model, kv, engine))
    if model_state_bytes(model):
        lines.append(f"  and {model_state_bytes(model) / 2**20:,.1f} MiB of recurrent state for each sequence")
    lines += ["", "Checkpoints" + " " * 17 + "computed GB      GiB   published"]
    for one in model.checkpoints:
        size = checkpoint_bytes(model, one)
        stated = published_bytes(one)
        taken = "worked out from the published size" in (one.note or "")
        against = "bits taken from it" if taken else f"{size / stated - 1:+.1%}" if stated else ""
        shown = f"{one.bytes_published} ({against})" if stated else ""
        mark = "*" if one.name == choice.checkpoint.name else " "
        lines.append(f"{mark} {one.name:24} {size / 1e9:12,.2f} {size / GIB:9,.2f}   {shown}".rstrip())
    if choice.exact_bytes:
        lines += ["", "Exact bytes in the files"]
        lines += [
            f"  {name:18} {size:20,}" for name, size in sorted(choice.exact_bytes.items(), key=lambda row: -row[1])
        ]
    found = list(disagreements_of(choice))
    if found:
        lines += ["", "Where sources disagree", *(f"  - {line}" for line in found)]
    lines += ["", f"Source: {model.source}"]
    return "\n".join(lines)


def _in_words(model: ModelSpec, kv: str, engine: str) -> str:
    """Return the cache bytes with MTP, and those beyond full windows."""
    size = model_cache_bytes_per_token(model, kv, engine)
    longer = model_cache_bytes_per_token(model, kv, engine, windows=False)
    words = [] if model.mtp is None else [f"{model_cache_bytes_per_token(model, kv, engine, mtp=True):,.0f} with MTP"]
    words += [f"{longer:,.0f} once the windows are full"] * (longer != size)
    return f"   ({', '.join(words)})" if words else ""


def _kind(kind: LayerKind) -> str:
    parts = [mixer_of(kind).words, *(block.words for block in feed_forwards_of(kind))]
    return "; ".join(filter(None, parts)) or "nothing"
