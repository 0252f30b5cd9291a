"""Read a quantisation config: the format of every module.

The rules are those of the tool that wrote it. Sources are `quantization_config` of `config.json` (fp8, modelopt,
compressed-tensors, mxfp4, awq, gptq, and those of `quantization_methods`) and modelopt's `hf_quant_config.json`.
Patterns match full module names, as in modelopt: ``model.layers.1.*`` is layer 1, ``model.layers.1*`` is layer 1 and
10 to 19.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from glmplan.catalog.files import understood
from glmplan.catalog.formats import weight_format
from glmplan.catalog.schema.model import Checkpoint, FormatException, ModelSpec
from glmplan.costs.blocks.stack import layer_tensors, mtp_tensors
from glmplan.costs.blocks.tensor import Tensor
from glmplan.errors import SpecError
from glmplan.io.models.quantization_methods import METHODS, stated_formats

__all__ = [
    "QuantisationRules",
    "checkpoint_from_config",
    "checkpoint_from_rules",
    "module_name",
    "pattern_matches",
    "read_rules",
]


#: modelopt's names → weight formats
_ALGORITHMS = {
    "nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "w4a8_nvfp4_fp8": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a8_mxfp4_fp8": "mxfp4",
    "mxfp8": "mxfp8",
    "fp8": "fp8",
    "fp8_per_channel_per_token": "fp8",
    "fp8_pb_wo": "fp8-block",
    "fp8_block_scales": "fp8-block",
    "int8": "int8",
    "w8a8_sq_per_channel": "int8",
    "w8a16": "bpw:8",
    "w4a16_awq": "awq-int4",
    "w4a8_awq": "w4afp8",
    "w4a16": "int4-g128",
}


def pattern_matches(name: str, pattern: str) -> bool:
    """Return True if an exclusion covers a module or a parent of it.

    `pattern`: a name, a glob, ``re:`` and a regular expression, or the last parts of a name.

    Examples
    --------
    >>> pattern_matches("model.layers.12.mlp.up_proj", "model.layers.1.*")
    False
    >>> pattern_matches("model.layers.12.mlp.up_proj", "model.layers.1*")
    True
    >>> pattern_matches("model.layers.3.mlp.gate", "gate"), pattern_matches("model.layers.3.mlp.gate_proj", "gate")
    (True, False)
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            raise SpecError("is not a regular expression", field="ignore", value=pattern) from None
    return (
        fnmatchcase(name, pattern)
        or fnmatchcase(name, pattern + ".*")
        or name.endswith("." + pattern)
        or f".{pattern}." in name
    )


@dataclass(slots=True)
class QuantisationRules:
    """Format of every module."""

    base: str  # of modules without a rule
    excluded: list[str] = field(default_factory=list)  # patterns of modules that stay in BF16
    listed: dict[str, str] | None = None  # modules with a format of their own; all others stay in BF16
    #: target patterns and format (compressed-tensors with several groups)
    groups: list[tuple[list[str], str]] = field(default_factory=list)
    kv: str | None = None  # format of the KV cache that the checkpoint requests
    experts: str | None = None  # separate format of the routed experts (`expert_dtype`)
    #: format of the routed experts of single layers, by ``layers.N``
    expert_layers: dict[str, str] = field(default_factory=dict)
    fp8_scales: Literal["matrix", "row"] | None = None  # owner of a scale in FP8 without blocks; None: not stated
    own: Mapping[str, str] = field(default_factory=dict)  # patterns of modules with a format of their own
    whole: bool = False  # True: embedding, head and router are quantised too
    name: str | None = None  # of the checkpoint; None: that of its format
    _by_layer: dict[str, list[str]] = field(default_factory=dict)
    _general: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # lists hold hundreds of entries, nearly all for one layer: indexed by its number
        for pattern in self.excluded:
            result = None if pattern.startswith("re:") else re.match(r"[\w.]*layers\.(\d+)\.", pattern)
            if result:
                self._by_layer.setdefault(result[1], []).append(pattern)
            else:
                self._general.append(pattern)

    def format(self, name: str, *, kept: bool = False) -> str:
        """Return the format of a module.

        `kept`: its class (embedding, head, router) is left alone unless listed.

        Examples
        --------
        >>> QuantisationRules("nvfp4", excluded=["model.layers.0*"]).format("model.layers.0.mlp.up_proj")
        'bf16'
        """
        layer = re.search(r"layers\.(\d+)\.", name)
        near = self._by_layer.get(layer[1], []) if layer else []
        if any(pattern_matches(name, pattern) for pattern in (*near, *self._general)):
            return "bf16"
        if self.listed is not None:
            parts = name.split(".")
            for end in range(len(parts), 0, -1):
                result = self.listed.get(".".join(parts[:end]))
                if result is not None:
                    return result
            return "bf16"
        for pattern, form in self.own.items():
            if pattern_matches(name, pattern):
                return form
        if kept and not self.whole:
            return "bf16"
        for targets, form in self.groups:
            if any(target == "Linear" or pattern_matches(name, target) for target in targets):
                return form
        return "bf16" if self.groups else self.base

    def expert_format(self, layer: int) -> str | None:
        """Return the separate format of a layer's routed experts, or None.

        None: the rules for modules decide.

        Examples
        --------
        >>> QuantisationRules("fp8-block", experts="mxfp4", expert_layers={"layers.0": "nvfp4"}).expert_format(0)
        'nvfp4'
        """
        return self.expert_layers.get(f"layers.{layer}", self.experts)


#: owner of a scale in FP8 by ModelOpt's algorithm, and by the strategy of compressed-tensors
_ALGORITHM_SCALES: dict[str, Literal["matrix", "row"]] = {"fp8": "matrix", "fp8_per_channel_per_token": "row"}
_STRATEGY_SCALES: dict[str, Literal["matrix", "row"]] = {"tensor": "matrix", "channel": "row"}

#: `expert_dtype` → weight format; FP4 is stored with a scale for 32 values
_EXPERT_TYPES = {"fp4": "mxfp4"}


def read_rules(
    config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None, *, file: str | Path | None = None
) -> QuantisationRules | None:
    """Return the quantisation rules of a model.

    Examples
    --------
    >>> read_rules({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, None).base
    'fp8-block'
    """
    text = config.get("text_config")
    stated = config.get("quantization_config") or (
        text.get("quantization_config") if isinstance(text, Mapping) else None
    )
    content: Any = stated or (hf_quant or {}).get("quantization") or hf_quant
    # MLX-LM writes its settings twice
    content = content or config.get("quantization")
    if not content:
        return None
    if not isinstance(content, Mapping):
        raise SpecError("is not an object", file=file, field="quantization_config")
    if isinstance(content.get("quantization"), Mapping):  # ModelOpt's own file inside the config
        content = content["quantization"]
    method = _method(content)
    excluded = _strings(content, ("modules_to_not_convert", "exclude_modules", "ignore", "ignored_layers"), file)
    kv = _kv(content)
    experts = content.get("expert_dtype") or config.get("expert_dtype")
    if content.get("quant_algo") and not (method == "fp8" and experts):
        return _modelopt(content, excluded, kv, file)
    if method == "fp8":
        return _fp8(content, excluded, kv, experts, file)
    if method == "mxfp4":
        return QuantisationRules("mxfp4", excluded, kv=kv)
    if method == "compressed-tensors":
        return _compressed(content, excluded, kv, file)
    if method in ("awq", "gptq", "auto-round"):
        bits, group = (
            content.get("bits", content.get("w_bit", 4)),
            content.get("group_size", content.get("q_group_size", 128)),
        )
        base = _integer(bits, group, False, method, file)
        with understood(str(file or "config.json"), "quantisation config"):
            own, skipped = _of_modules(content, bits, group, base, method, file)
        return QuantisationRules(base, [*excluded, *skipped], kv=kv, own=own)
    with understood(str(file or "config.json"), "quantisation config"):
        stated = stated_formats(method, content, file)
    if stated is not None:
        for form in (stated.base, *stated.own.values()):
            weight_format(form)
        return QuantisationRules(
            stated.base, [*excluded, *stated.skipped], kv=kv, experts=stated.experts, fp8_scales=stated.fp8_scales,
            own=stated.own, whole=stated.whole, name=stated.name,
        )  # fmt: skip
    raise SpecError(
        "is not a quantisation method that glmplan knows (without quantization_config in the file, --weights takes its "
        "bits, such as bpw:3.5)",
        file=file,
        field="quantization_config.quant_method",
        value=method or "not stated",
        choices=["fp8", "modelopt", "compressed-tensors", "mxfp4", "awq", "gptq", "auto-round", *METHODS],
    )


def _of_modules(
    content: Mapping[str, Any], bits: Any, group: Any, base: str, method: str, file: str | Path | None
) -> tuple[dict[str, str], list[str]]:
    """Return modules with bits of their own, and those in BF16.

    GPTQModel writes them to `dynamic` by regular expressions, AutoRound to `extra_config` by names.
    """
    own = {"lm_head": base} if content.get("lm_head") is True else {}
    skipped = []
    named = {f"re:{name[2:] if name[:2] in ('+:', '-:') else name}": (part, name.startswith("-:"))
             for name, part in (content.get("dynamic") or {}).items()}  # fmt: skip
    named |= {str(name): (part, False) for name, part in (content.get("extra_config") or {}).items()}
    for pattern, (part, apart) in named.items():
        own_bits = part.get("bits", bits) if isinstance(part, Mapping) else bits
        if apart or (isinstance(own_bits, int) and own_bits >= 16):
            skipped.append(pattern)
        else:
            own[pattern] = _integer(own_bits, part.get("group_size", group), False, method, file)
    return own, skipped


def _method(content: Mapping[str, Any]) -> str:
    """Return the name of a method; some tools write none."""
    method = str(content.get("quant_method") or "").lower().removeprefix("intel/")
    if method:
        return method
    if content.get("quant_algo"):
        return "modelopt"
    if content.get("load_in_4bit") or content.get("load_in_8bit"):
        return "bitsandbytes"
    return "mlx" if "bits" in content and "group_size" in content else ""


def _strings(content: Mapping[str, Any], names: Sequence[str], file: str | Path | None) -> list[str]:
    for name in names:
        value = content.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise SpecError("is not a list of names", file=file, field=f"quantization_config.{name}")
        return list(value)
    return []


def _kv(content: Mapping[str, Any]) -> str | None:
    stated = content.get("kv_cache_quant_algo") or content.get("kv_cache_scheme")
    if isinstance(stated, Mapping):
        return "fp8" if stated.get("num_bits") == 8 and stated.get("type") == "float" else None
    return {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}.get(str(stated))


def _algorithm(value: Any, file: str | Path | None) -> str:
    result = _ALGORITHMS.get(str(value).lower())
    if result is None:
        raise SpecError(
            "is not a format that glmplan knows", file=file, field="quant_algo", value=value, choices=_ALGORITHMS
        )
    return result


def _modelopt(
    content: Mapping[str, Any], excluded: list[str], kv: str | None, file: str | Path | None
) -> QuantisationRules:
    listed = content.get("quantized_layers")
    if str(content["quant_algo"]).upper() != "MIXED_PRECISION":
        one = _ALGORITHM_SCALES.get(str(content["quant_algo"]).lower())
        return QuantisationRules(_algorithm(content["quant_algo"], file), excluded, kv=kv, fp8_scales=one)
    if not isinstance(listed, Mapping) or not listed:
        raise SpecError("is missing, and quant_algo says MIXED_PRECISION", file=file, field="quantized_layers")
    formats = {
        str(name): _algorithm(entry.get("quant_algo") if isinstance(entry, Mapping) else entry, file)
        for name, entry in listed.items()
    }
    named = (str(entry.get("quant_algo") if isinstance(entry, Mapping) else entry).lower() for entry in listed.values())
    told = {scales for name in named if (scales := _ALGORITHM_SCALES.get(name))}
    return QuantisationRules("bf16", excluded, listed=formats, kv=kv, fp8_scales=told.pop() if len(told) == 1 else None)


def _fp8(
    content: Mapping[str, Any], excluded: list[str], kv: str | None, experts: Any, file: str | Path | None
) -> QuantisationRules:
    """Return the rules of FP8, plain or in blocks.

    Another tool may have stored the experts, layer by layer.
    """
    block = content.get("weight_block_size")
    base = "fp8-block32" if block == [32, 32] else "fp8-block" if block or experts else "fp8"
    if not experts:
        return QuantisationRules(base, excluded, kv=kv)
    if experts not in _EXPERT_TYPES:
        raise SpecError("is not a format that glmplan knows", file=file, field="expert_dtype", value=experts,
                        choices=_EXPERT_TYPES)  # fmt: skip
    again = {
        str(name).removesuffix(".ffn.experts"): _algorithm(entry.get("quant_algo"), file)
        for name, entry in (content.get("quantized_layers") or {}).items()
        if isinstance(entry, Mapping)
    }
    # exclusions of the other tool stay in FP8: no list of modules in BF16
    return QuantisationRules(base, [] if again else excluded, kv=kv, experts=_EXPERT_TYPES[experts],
                             expert_layers=again)  # fmt: skip


def _compressed(
    content: Mapping[str, Any], excluded: list[str], kv: str | None, file: str | Path | None
) -> QuantisationRules:
    groups = content.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise SpecError("is missing", file=file, field="quantization_config.config_groups")
    rules = []
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise SpecError("has no weights", file=file, field=f"quantization_config.config_groups.{name}")
        targets = _strings(group, ("targets",), file) or ["Linear"]
        rules.append((targets, _weights(weights, file, alone=group.get("input_activations") is None)))
    # targets by name come before the general one
    rules.sort(key=lambda rule: "Linear" in rule[0])
    stated = {str(group["weights"].get("strategy")) for group in groups.values()} & _STRATEGY_SCALES.keys()
    scales = _STRATEGY_SCALES[stated.pop()] if len(stated) == 1 else None
    return QuantisationRules(rules[-1][1], excluded, groups=rules, kv=kv, fp8_scales=scales)


def _weights(weights: Mapping[str, Any], file: str | Path | None, *, alone: bool) -> str:
    """Return a format; `alone`: activations keep 16 bits."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "float" and bits == 8:
        return "mxfp8" if group == 32 else "fp8-block" if weights.get("strategy") == "block" else "fp8"
    if kind == "float" and bits == 4:
        return "mxfp4" if group == 32 else "nvfp4"
    if kind == "int":
        return _integer(bits, group, bool(weights.get("symmetric", True)), "compressed-tensors", file, alone=alone)
    raise SpecError("is not a weight format that glmplan knows", file=file, field="weights", value=f"{kind} {bits}")


def _integer(
    bits: Any, group: Any, symmetric: bool, method: str, file: str | Path | None, *, alone: bool = True
) -> str:
    if bits == 8 and not alone:
        return "int8"
    if bits == 8 and group in (-1, None):
        return "bpw:8"
    if bits == 4 and symmetric and group in (32, 64, 128):
        return f"int4-g{group}"
    if bits == 4 and group in (-1, None):
        return "int4-g128"
    if bits == 4 and method in ("awq", "gptq") and group == 128:
        return f"{method}-int4"
    if isinstance(bits, int) and isinstance(group, int) and 2 <= bits <= 8 and group > 0:
        # bits, an FP16 scale, and a zero point as wide as a value when it is not symmetric
        return f"bpw:{bits + (16 + (0 if symmetric else bits)) / group:g}"
    raise SpecError("is not an integer format that glmplan knows", file=file, field="bits", value=f"{bits} by {group}")


#: classes that tools leave in BF16 unless listed
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
    """Return a tensor's module name in the spelling of its family.

    Fused tensors and experts give the first name.

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
    """Return the checkpoint of a `config.json`; `source` defaults to the file."""
    source = source or f"quantisation config of {Path(file).name if file else 'the model'}"
    rules = read_rules(config, hf_quant, file=file)
    if rules is None:
        return Checkpoint(name="bf16", source=source)
    return checkpoint_from_rules(model, rules, source=source)


def checkpoint_from_rules(model: ModelSpec, rules: QuantisationRules, *, source: str) -> Checkpoint:
    """Return formats by class from quantisation rules.

    Tensors and layers that differ from their class are listed.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
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
            form = _format(rules, [item + module for item in prefixes], tensor.tensor_class)
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
        name=rules.name or short.get(default, default),
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
    """Return the prefix of ``layers.N`` in the names of this checkpoint."""
    names = [*rules.excluded, *list(rules.listed or {})[:50]]
    result = Counter(match[1] for name in names if (match := re.match(r"([a-z_.]*?)layers\.\d", name)))
    result.pop("mtp.", None)
    return result.most_common(1)[0][0] if result else "model."


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
    """Return the format of a module with several possible spellings."""
    result = [rules.format(name, kept=tensor_class in _KEPT) for name in names]
    if rules.listed is not None:
        return next((form for form in result if form != "bf16"), "bf16")
    return "bf16" if "bf16" in result else result[0]


def _most(pairs: Any) -> str:
    total: Counter[str] = Counter()
    for form, count in pairs:
        total[form] += count
    return total.most_common(1)[0][0] if total else "bf16"


def _usual(weight: Counter[tuple[str, str]], tensors: dict[str, Tensor], formats: dict[str, str]) -> dict[str, str]:
    """Write the most frequent formats into `formats`; return them by tensor.

    Each class has one, and each tensor that differs.
    """
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
    """Group the layers whose tensors are not stored as usual."""
    grouped: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for layer, row in table.items():
        result: dict[str, str] = {}
        for tensor_class in dict.fromkeys(tensors[name].tensor_class for name in row):
            members = {name: form for name, form in row.items() if tensors[name].tensor_class == tensor_class}
            if all(form == usual[name] for name, form in members.items()):
                continue
            forms = set(members.values())
            result |= {tensor_class: forms.pop()} if len(forms) == 1 else members
        if result:
            grouped.setdefault(tuple(result.items()), []).append(layer)
    return tuple(FormatException(layers=tuple(layers), formats=dict(key)) for key, layers in grouped.items())
