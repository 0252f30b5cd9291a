"""From quantisation rules about module names to the format of each class of tensors, layer by layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmplan.facts.schema.model import Checkpoint, FormatException, ModelSpec
from glmplan.physics.blocks.stack import layer_tensors, mtp_tensors
from glmplan.physics.blocks.tensor import Tensor
from glmplan.readers.models.quantization import QuantisationRules, read_rules

__all__ = ["checkpoint_from_config", "checkpoint_from_rules", "module_name"]

#: classes that tools leave in BF16 unless they list them
_KEPT = ("embedding", "head", "router", "norm", "mtp_projection", "streams")
_EXPERT = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_FUSED = {
    "gate_up_proj": "gate_proj",
    "in_proj_qkvz": "in_proj_qkv",
    "in_proj_ba": "in_proj_b",
    "f_a_g_a_proj": "f_a_proj",
    "f_b_g_b_proj": "f_b_proj",
    "qkv_proj": "q_proj",
    "latent_in_out": "fc1_latent_proj",
}


def module_name(tensor: Tensor, family: str, *, gated: bool = True) -> str:
    """Return the name of a module that a tensor stands for, below its layer, as the family's checkpoints spell it.

    Parameters
    ----------
    tensor : Tensor
        The tensor; of fused ones and of experts the first is named.
    family : str
        Family of the architecture.
    gated : bool, optional
        Whether feed-forward blocks have a gate matrix.

    Returns
    -------
    str
        Name.

    Examples
    --------
    >>> up = Tensor("mlp.experts.gate_up_proj", "routed_experts", 4096, 6144, 256, "experts")
    >>> module_name(up, "glm"), module_name(up, "minimax")
    ('mlp.experts.0.gate_proj', 'block_sparse_moe.experts.0.w1')
    """
    path, _, leaf = tensor.name.rpartition(".")
    leaf = _FUSED.get(leaf, leaf)
    if leaf == "gate_proj" and not gated:
        leaf = "up_proj"
    if tensor.tensor_class == "routed_experts":
        path = "mlp.experts.0"
        if family in ("minimax", "mixtral"):
            # MiniMax and Mixtral name them w1, w2, w3
            return f"block_sparse_moe.experts.0.{_EXPERT[leaf]}"
        if family == "gemma":
            return f"experts.0.{leaf}"
        if family == "step":
            return f"moe.{leaf}"
    name = f"{path}.{leaf}" if path else leaf
    if family == "nemotron":
        return re.sub(r"^(self_attn|mlp)\.", "mixer.", name)
    if family == "qwen":
        return name.replace("shared_experts", "shared_expert")
    if family == "step":
        return re.sub(r"^mlp\.gate$", "moe.gate", name.replace("mlp.shared_experts", "share_expert"))
    if family == "minimax":
        return re.sub(r"^mlp\.(shared_experts|gate$)", r"block_sparse_moe.\1", name)
    return name


def checkpoint_from_config(
    model: ModelSpec,
    config: Mapping[str, Any],
    hf_quant: Mapping[str, Any] | None = None,
    *,
    file: str | Path | None = None,
    source: str | None = None,
) -> Checkpoint:
    """Describe the checkpoint that a `config.json` belongs to.

    Parameters
    ----------
    model : ModelSpec
        The model read from it.
    config : mapping
        Content of `config.json`.
    hf_quant : mapping, optional
        Content of `hf_quant_config.json`.
    file : path, optional
        Where it is from.
    source : str, optional
        Where the facts are from; the file by default.

    Returns
    -------
    Checkpoint
        The checkpoint.

    Raises
    ------
    SpecError
        If the quantisation is not known.
    """
    source = source or f"quantisation config of {Path(file).name if file else 'the model'}"
    rules = read_rules(config, hf_quant, file=file)
    if rules is None:
        return Checkpoint(name="bf16", source=source)
    return checkpoint_from_rules(model, rules, source=source)


def checkpoint_from_rules(model: ModelSpec, rules: QuantisationRules, *, source: str) -> Checkpoint:
    """Apply quantisation rules to the tensors of a model.

    Parameters
    ----------
    model : ModelSpec
        The model.
    rules : QuantisationRules
        The rules.
    source : str
        Where they are from.

    Returns
    -------
    Checkpoint
        Formats by class; tensors and layers that differ from their class are named.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> rules = QuantisationRules("nvfp4", excluded=["lm_head", "model.layers.1.*"])
    >>> found = checkpoint_from_rules(load_model("llama-3.1-8b"), rules, source="example")
    >>> found.default, [one.layers for one in found.exceptions]
    ('nvfp4', [(1,)])
    """
    prefix = _prefix(rules)
    table: dict[int, dict[str, str]] = {}
    tensors: dict[str, Tensor] = {}
    weight: Counter[tuple[str, str]] = Counter()
    for layer, rows, prefixes in _layers(model, prefix):
        table[layer] = {}
        for tensor in rows:
            if not tensor.matmul and tensor.tensor_class != "lookup":
                continue
            gated = not (model.family == "nemotron" and tensor.name.endswith("gate_up_proj") and not _gated(model))
            module = module_name(tensor, model.family, gated=gated)
            form = _format(rules, [one + module for one in prefixes], tensor.tensor_class)
            if tensor.tensor_class == "routed_experts":
                form = rules.expert_format(layer) or form
            table[layer][tensor.name] = form
            tensors[tensor.name] = tensor
            weight[tensor.name, form] += tensor.parameters
    formats: dict[str, str] = {}
    for kind, name in (("embedding", "embed_tokens"), ("head", "lm_head")):
        formats[kind] = _format(rules, [name if kind == "head" else f"{prefix}{name}"], kind)
    usual = _usual(weight, tensors, formats)
    default = _most((form, count) for (_, form), count in weight.items() if form != "bf16")
    default = default if rules.experts is None or rules.expert_layers else rules.base
    exceptions = _exceptions(table, tensors, usual)
    short = {"fp8-block": "fp8", "fp8-block32": "fp8", "int4-g32": "int4", "int4-g64": "int4", "int4-g128": "int4"}
    return Checkpoint(
        name=short.get(default, default),
        default=default,
        formats=formats,
        exceptions=exceptions,
        kv_default=rules.kv,
        includes_mtp=model.mtp is not None,
        fp8_scales=rules.fp8_scales if (formats.get("routed_experts") or default) == "fp8" else None,
        source=source,
    )


def _gated(model: ModelSpec) -> bool:
    return all(block.gated for kind in model.layers.values() for block in kind.ffn)


def _prefix(rules: QuantisationRules) -> str:
    """What stands before ``layers.N`` in the names of this checkpoint."""
    names = [*rules.excluded, *list(rules.listed or {})[:50]]
    found = Counter(match[1] for name in names if (match := re.match(r"([a-z_.]*?)layers\.\d", name)))
    found.pop("mtp.", None)
    return found.most_common(1)[0][0] if found else "model."


def _layers(model: ModelSpec, prefix: str) -> list[tuple[int, tuple[Tensor, ...], list[str]]]:
    count = len(model.layer_names)
    rows = [
        (layer, layer_tensors(model.layers[name], model.hidden), [f"{prefix}layers.{layer}."])
        for layer, name in enumerate(model.layer_names)
    ]
    for extra in range(model.mtp.layers if model.mtp else 0):
        rows.append((count + extra, mtp_tensors(model), [f"{prefix}layers.{count + extra}.", f"mtp.layers.{extra}."]))
    return rows


def _format(rules: QuantisationRules, names: list[str], tensor_class: str) -> str:
    """Format of a module that may be spelled in several ways."""
    found = [rules.format(name, kept=tensor_class in _KEPT) for name in names]
    if rules.listed is not None:
        return next((form for form in found if form != "bf16"), "bf16")
    return "bf16" if "bf16" in found else found[0]


def _most(pairs: Any) -> str:
    total: Counter[str] = Counter()
    for form, count in pairs:
        total[form] += count
    return total.most_common(1)[0][0] if total else "bf16"


def _usual(weight: Counter[tuple[str, str]], tensors: dict[str, Tensor], formats: dict[str, str]) -> dict[str, str]:
    """Write the usual format of each class into `formats`, of tensors that differ too; return it for each tensor."""
    usual = {name: _most((form, n) for (one, form), n in weight.items() if one == name) for name in tensors}
    for tensor_class in dict.fromkeys(tensor.tensor_class for tensor in tensors.values()):
        members = [name for name, tensor in tensors.items() if tensor.tensor_class == tensor_class]
        common = _most((form, n) for (one, form), n in weight.items() if one in members)
        formats[tensor_class] = common
        formats.update({name: usual[name] for name in members if usual[name] != common})
    return usual


def _exceptions(
    table: dict[int, dict[str, str]], tensors: dict[str, Tensor], usual: dict[str, str]
) -> tuple[FormatException, ...]:
    """Group the layers whose tensors are stored otherwise than usual."""
    grouped: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for layer, row in table.items():
        found: dict[str, str] = {}
        for tensor_class in dict.fromkeys(tensors[name].tensor_class for name in row):
            members = {name: form for name, form in row.items() if tensors[name].tensor_class == tensor_class}
            if all(form == usual[name] for name, form in members.items()):
                continue
            forms = set(members.values())
            found |= {tensor_class: forms.pop()} if len(forms) == 1 else members
        if found:
            grouped.setdefault(tuple(found.items()), []).append(layer)
    return tuple(FormatException(layers=tuple(layers), formats=dict(key)) for key, layers in grouped.items())
