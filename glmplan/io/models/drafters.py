"""Read a drafter that is no part of a model's files.

`ngram` and `suffix` look drafts up in the text of the request and hold no weights. A draft model is a smaller model of
the catalogue or of a folder; the folder of a head holds a `config.json`: DFlash (`dflash_config`) drafts a block in one
pass, EAGLE-3 states a vocabulary of its own or states of several layers, a head without is of EAGLE-1 or EAGLE-2 [1]_.

References
----------
.. [1] vllm-project/vllm, vllm/config/speculative.py at v0.27.0 (`SpeculativeMethod`,
   `verify_equal_vocab_size_if_draft_model`; `eagle-` and `eagle3` in names).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.schema.model import DraftHead, LayerKind, ModelSpec
from glmplan.costs.blocks.stack import model_features
from glmplan.errors import SpecError
from glmplan.io.models.resolve import resolve_model

__all__ = ["FREE_DRAFTERS", "drafter_name", "published_lengths", "with_drafter"]

#: drafters without weights
FREE_DRAFTERS = ("ngram", "suffix")
#: names of engines and papers → name of a drafter here
_OTHER_NAMES = {
    "n-gram": "ngram", "n_gram": "ngram", "ngram_gpu": "ngram", "prompt-lookup": "ngram", "prompt_lookup": "ngram",
    "lookup": "ngram", "suffix-decoding": "suffix", "suffix_decoding": "suffix", "arctic": "suffix", "nextn": "mtp",
    "eagle-3": "eagle3", "eagle-1": "eagle", "eagle-2": "eagle", "eagle2": "eagle", "dspark": "mtp",
}  # fmt: skip
#: drafters that are not planned
_NOT_PLANNED = ("medusa", "mlp_speculator", "lookahead", "hydra", "peagle", "p-eagle", "redrafter")
#: layer kind of a drafter in the model that it drafts for
_KIND = "drafter"
#: fields that only a config of an EAGLE-3 head has, and words in names of its architecture and folder
_EAGLE_3 = ("draft_vocab_size", "num_aux_hidden_states", "eagle_aux_hidden_state_layer_ids", "eagle_config")
_EAGLE_3_NAME = re.compile(r"eagle-?3", re.IGNORECASE)
#: layers up to which a config without fields of a head is one: a draft model has more
_MOST_OF_A_HEAD = 2
#: fields of a head's config that describe its drafting, not its layers
_HEAD_FIELDS = ("dflash_config", "block_size", "draft_vocab_size", "eagle_config", "num_target_layers",
                "target_hidden_size", "norm_before_fc", "num_aux_hidden_states", "eagle_aux_hidden_state_layer_ids",
                "target_layer_ids", "mask_token_id", "auto_map")  # fmt: skip


def drafter_name(text: str) -> str:
    """Return a drafter's name here; other texts stay as they are.

    Examples
    --------
    >>> drafter_name("NextN"), drafter_name("n-gram"), drafter_name("qwen3-0.6b")
    ('mtp', 'ngram', 'qwen3-0.6b')
    """
    return _OTHER_NAMES.get(text.strip().lower(), text)


def published_lengths(drafter: str) -> str:
    """Return the cited tokens per step of a lookup drafter, as text.

    They are of other models and texts, so a plan takes none of them by itself.

    Examples
    --------
    >>> published_lengths("suffix")
    'chat (MT-Bench) 1.08 with 1 drafted'
    """
    found = read_toml(data_folder("hardware_db") / "lookup_drafting.toml")["lengths"]
    lines = (f"{one['text']} {one['tokens']:.2f} with {one['drafted']} drafted" for one in found)
    return "; ".join(line for line, one in zip(lines, found, strict=True) if one["drafter"] == drafter)


def with_drafter(model: ModelSpec, drafter: str | None, assumed: list[str]) -> ModelSpec:
    """Return the model with another drafter; `mtp` or None keeps its own.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> large, notes = load_model("qwen3-32b"), []
    >>> head = with_drafter(large, "qwen3-0.6b", notes).draft_head
    >>> head.method, head.layers, head.hidden, head.tied
    ('draft_model', 28, 1024, True)
    >>> with_drafter(load_model("glm-5.1"), "ngram", notes).draft_runs
    ()
    """
    if drafter is None or (drafter == "mtp" and model.mtp is not None):
        return model
    if drafter in FREE_DRAFTERS:
        return model.model_copy(update={"mtp": None, "draft_head": None})
    if drafter == "eagle3" and model.draft_head is not None:
        return model
    if drafter in ("mtp", "eagle3", "eagle", "dflash"):
        message = f"is no part of {model.name}; give the folder of a head with its config.json, a draft model, or ngram"
        raise SpecError(message, field="--drafter", value=drafter)
    if drafter == "best":
        message = "is searched by `glmplan size`; a plan has one way of drafting: --mtp with the number of draft tokens"
        raise SpecError(message, field="--drafter", value=drafter)
    if drafter.lower() in _NOT_PLANNED:
        message = "is not planned; --drafter takes mtp, ngram, suffix, a draft model, or a head of EAGLE or DFlash"
        raise SpecError(message, field="--drafter", value=drafter)
    path = Path(os.path.expanduser(drafter))
    if path.suffix == ".json" or os.path.isfile(path / "config.json"):
        head, kinds = _in_folder(model, path if path.suffix == ".json" else path / "config.json")
    else:
        head, kinds = _draft_model(model, drafter)
    words = {"eagle": "EAGLE-1 or -2 head ", "eagle3": "EAGLE-3 head "}.get(head.method, "")
    assumed.append(f"drafter {words}{head.repository} in BF16, of {head.layers} layers")
    # a copy with the layer is another model: properties that are computed once are computed again
    told = {name: getattr(model, name) for name in type(model).model_fields}
    return ModelSpec(**told | {"mtp": None, "draft_head": head, "layers": model.layers | kinds})


def _kinds(drafter: ModelSpec, name: str) -> tuple[dict[str, LayerKind], dict[str, int]]:
    """Return the layer kinds of a drafter and numbers of their layers.

    The first has the name `_KIND` and no number. Recurrent layers are refused: an engine would keep their state before
    each token that may be rejected, and no source shows one that does for a draft model.
    """
    counts: dict[str, int] = {}
    for kind, count in drafter.runs:
        counts[kind] = counts.get(kind, 0) + count
    if "recurrent" in model_features(drafter):
        message = (
            f"has recurrent layers ({', '.join(counts)}), with which no draft model is planned; take --drafter mtp"
        )
        message += " where the model has MTP layers, ngram, or a draft model of attention alone"
        raise SpecError(message, field="--drafter", value=name)
    names = {kind: f"{_KIND}{f'-{kind}' * bool(number)}" for number, kind in enumerate(counts)}
    return (
        {names[kind]: drafter.layers[kind] for kind in counts},
        {names[kind]: count for kind, count in counts.items() if names[kind] != _KIND},
    )


def _in_folder(model: ModelSpec, file: Path) -> tuple[DraftHead, dict[str, LayerKind]]:
    """Return the head or the draft model of a config."""
    from glmplan.io.models.hf_config import read_json

    config = read_json(file)
    words = f"{config.get('architectures')} {config.get('speculators_model_type')} {file.parent.name}"
    told = any(name in config for name in _HEAD_FIELDS) or "transformer_layer_config" in config
    layers = config.get("num_hidden_layers")
    if not told and "eagle" not in words.lower() and type(layers) is int and layers > _MOST_OF_A_HEAD:
        return _draft_model(model, str(file))
    return _head(model, file, third=any(name in config for name in _EAGLE_3) or bool(_EAGLE_3_NAME.search(words)))


def _draft_model(model: ModelSpec, name: str) -> tuple[DraftHead, dict[str, LayerKind]]:
    try:
        draft = resolve_model(name).model
    except SpecError as error:
        message = f"is neither mtp, ngram, suffix, a folder with a config.json nor a model: {error.message}"
        raise SpecError(message, field="--drafter", value=name) from None
    if draft.vocabulary != model.vocabulary:
        message = f"has a vocabulary of {draft.vocabulary:,} tokens, {model.name} one of {model.vocabulary:,}"
        raise SpecError(f"{message}: a draft model needs the same", field="--drafter", value=name)
    kinds, beside = _kinds(draft, name)
    own = draft.default_checkpoint and draft.checkpoint(draft.default_checkpoint)
    head = DraftHead(
        repository=(own and own.repository) or draft.hugging_face or draft.name, layer=_KIND, source=draft.source,
        method="draft_model", layers=len(draft.layer_names), hidden=draft.hidden, vocabulary=draft.vocabulary,
        tied=draft.tied_embedding, beside=beside,
    )  # fmt: skip
    return head, kinds


def _flattened(config: dict[str, Any]) -> dict[str, Any]:
    """Return a head's config with its layers beside its other fields.

    The `speculators` library nests them in `transformer_layer_config` (RedHatAI's heads), and states what DFlash reads
    beside them.
    """
    nested = config.get("transformer_layer_config")
    if not isinstance(nested, dict):
        return config
    method = str(config.get("speculators_model_type") or (config.get("speculators_config") or {}).get("algorithm"))
    outside = {name: config[name] for name in _HEAD_FIELDS if name in config}
    if method == "dflash":
        states = config.get("aux_hidden_state_layer_ids") or config.get("target_layer_ids")
        outside["dflash_config"] = {"block_size": config.get("block_size"), "target_layer_ids": states}
    elif isinstance(states := config.get("eagle_aux_hidden_state_layer_ids"), list):
        outside["num_aux_hidden_states"] = len(states)
    return {"num_hidden_layers": 1, "tie_word_embeddings": False} | nested | outside


def _head(model: ModelSpec, file: Path, *, third: bool) -> tuple[DraftHead, dict[str, LayerKind]]:
    """Return the head of a config; `third`: EAGLE-3 if it is none of DFlash."""
    from glmplan.io.models.hf_config import model_from_config, read_json

    config = _flattened(read_json(file))
    drafted = config.get("dflash_config") or {}
    if not isinstance(drafted, dict):
        raise SpecError("is no object", file=file, field="dflash_config")
    layers = {name: value for name, value in config.items() if name not in _HEAD_FIELDS}
    layers = {"vocab_size": model.vocabulary, "max_position_embeddings": model.max_context} | layers
    read = model_from_config(layers, name=file.parent.name or file.name, file=file)
    if read.hidden != model.hidden:
        message = f"is {read.hidden:,} wide, {model.name} {model.hidden:,}: the head is one of another model"
        raise SpecError(message, file=file, field="hidden_size")
    told: dict[str, Any] = {
        "repository": str(file.parent),
        "layer": _KIND,
        "source": f"config.json of {file.parent.name}",
    }
    told["layers"] = len(read.layer_names)
    if drafted:
        block = drafted.get("block_size", config.get("block_size"))
        states = drafted.get("target_layer_ids")
        if type(block) is not int or not 2 <= block <= 1024 or not isinstance(states, list) or not states:
            raise SpecError("has no block_size or target_layer_ids", file=file, field="dflash_config")
        # the first place of a block is the token that is known already
        told |= {"method": "dflash", "block": block - 1, "joined": len(states)}
    elif not third:
        told |= {"method": "eagle", "joined": 1}
    else:
        joined = config.get("num_aux_hidden_states") or 3
        rows = config.get("draft_vocab_size") or read.vocabulary
        if type(joined) is not int or type(rows) is not int or not 0 < joined <= 64 or not 0 < rows <= read.vocabulary:
            raise SpecError("has no usable draft_vocab_size or num_aux_hidden_states", file=file)
        told |= {"joined": joined, "vocabulary": rows}
    kinds, beside = _kinds(read, str(file))
    return DraftHead(**told, beside=beside), kinds
