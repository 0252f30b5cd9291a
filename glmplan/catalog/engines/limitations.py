"""Return the engine limitations that apply to a plan.

A limitation applies, or it is possible: then something that was not stated (an option, a version newer than the last
report) decides. Nothing is guessed from the name of a build; switches and patches are stated in `options`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from glmplan.catalog import rule_provenance as in_view
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, plain_name, read_entries, read_toml
from glmplan.errors import SpecError, UnknownName, nearest
from glmplan.units import GIB, Bytes, TokenCount

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Adapters, Conditions, Engine, Wall, When
    from glmplan.catalog.schema.host import Host
    from glmplan.catalog.schema.model import ModelSpec

__all__ = [
    "OPTIONS",
    "FrontEnd",
    "adapters_of",
    "another_program",
    "called_engine",
    "conditions_of",
    "engine_names",
    "engines_on",
    "front_end",
    "host_options",
    "judge",
    "kernels_of_others",
    "load_engine",
    "possible_walls",
    "wall_apart",
    "walls_for",
]


#: switches, patches and builds that decide over limitations
OPTIONS: dict[str, str] = {
    "b12x": "b12x kernels for SM120",
    "b12x-0.7.0": "b12x up to 0.7.0",
    "b12x-0.7.4": "b12x 0.7.4",
    "b12x-0.9.5": "b12x 0.9.5",
    "b12x-prewarm": "b12x with fixed arenas and prewarming",
    "batch-aware-kv-splits": "TRITON_MLA with splits chosen by batch",
    "compressed-tensors": "the checkpoint is in compressed-tensors form",
    "cpu-offload": "experts or layers are streamed from host memory",
    "cuda-12.8": "built for CUDA 12.8",
    "cuda-13.2": "built for CUDA 13.2",
    "deep-gemm": "DeepGEMM kernels are used",
    "deep-gemm-from-source": "DeepGEMM was built from source with its submodules",
    "display-on-the-fabric": "the display adapter shares a root complex with the accelerators",
    "dual-socket": "the group spans two sockets",
    "expandable-segments": "PyTorch's expandable_segments is on",
    "fa2-mla": "FlashInfer FA2 MLA is the attention backend",
    "fastsafetensors": "weights are loaded by fastsafetensors",
    "flash-attn-4": "the package flash-attn-4 is installed",
    "flashinfer-2725": "FlashInfer with pull request 2725, built for sm120f",
    "flashinfer-allreduce-fusion": "--enable-flashinfer-allreduce-fusion",
    "flashinfer-attention-backend": "--attention-backend flashinfer",
    "flashinfer-attention-patch": "hybrid models may use FlashInfer attention on Blackwell",
    "flashinfer-cutlass-fp4": "the FP4 GEMM backend is flashinfer_cutlass",
    "flashinfer-mla": "FLASHINFER_MLA is the attention backend",
    "flashmla-sm120": "FlashMLA dense kernels were built for SM120",
    "force-p2p": "the driver option ForceP2P is set",
    "hicache": "hierarchical KV cache",
    "kv-splits": "the KV splits of Triton attention are set",
    "marlin-fp8-activations": "Marlin is forced to FP8 activations",
    "mla-dcp-fp8-patch": "vLLM with pull requests 34597, 34795 and 40609",
    "nccl-xml": "NCCL reads a graph file",
    "no-custom-allreduce": "--disable-custom-all-reduce",
    "no-shared-experts-fusion": "--disable-shared-experts-fusion",
    "one-shot-allreduce": "a one-shot all-reduce over PCIe is used",
    "pcie-switch": "the cards hang behind PCIe switches",
    "prefix-cache": "prefixes are cached and hit",
    "sm120-dense-patch": "patched so that sparse MLA models run as dense MLA",
    "sm120-sparse-mla": "a community build with sparse MLA kernels for SM120",
    "sm120-templates": "GEMM templates with tiles for SM120",
    "sm80-dsa-backport": "a community build with sparse MLA for Ampere",
    "spec-v2": "SGLANG_ENABLE_SPEC_V2=True",
    "tool-calls": "clients force tool calls",
    "transformers-5.3": "transformers 5.3.0 or later is installed",
    "tuned-triton-mla": "TRITON_MLA with full graphs for verification",
    "unified-kv": "the slots share one KV cache",
    "vlm-checkpoint": "the checkpoint is in vision-language form",
}


Verdict = Literal["stands", "possible", "absent"]

_SEVERITIES = ("error", "unknown", "fallback", "quality", "memory", "slow")


@cache
def engine_names() -> tuple[str, ...]:
    """Return the supported engines, sorted.

    Examples
    --------
    >>> engine_names()
    ('exllamav3', 'ktransformers', 'llama.cpp', 'lmdeploy', 'lmdeploy-pytorch', 'mlx', 'sglang', 'trtllm', 'vllm')
    """
    files = (data_folder("hardware_db") / "engines").glob("*.toml")
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name != "any.toml"))


@cache
def called_engine(text: str) -> str | None:
    """Return the engine of a name in any spelling, or None.

    Its name, its full name or one of `Engine.called`, in any case and with any of space, dot, hyphen and underscore.

    Examples
    --------
    >>> [called_engine(one) for one in ("vLLM", "TensorRT-LLM", "TRT-LLM", "llama-cpp", "tgi")]
    ['vllm', 'trtllm', 'trtllm', 'llama.cpp', None]
    """
    said = _bare(text)
    for name in engine_names():
        if _bare(name) == said:
            return name
    for name in engine_names():
        engine = load_engine(name)
        if said in map(_bare, (engine.full_name, *engine.called)):
            return name
    return None


@cache
def load_engine(name: str) -> Engine:
    """Load the facts of an engine; `any` holds limitations of several engines.

    Examples
    --------
    >>> load_engine("sglang").full_name
    'SGLang'
    """
    from glmplan.catalog.schema.engine import Engine
    from glmplan.catalog.schema.validation import validated

    if name not in (*engine_names(), "any"):
        close = nearest(name, engine_names(), 1) or engine_names()
        raise UnknownName(f"is not a known engine; nearest: {', '.join(close)}", value=name)
    file = data_folder("hardware_db") / "engines" / f"{name}.toml"
    return validated(Engine, {"name": name, **read_toml(file)}, file)


def adapters_of(engine: str) -> Adapters | None:
    """Return how an engine keeps LoRA adapters."""
    running = load_engine(engine).running
    return None if running is None else running.adapters


def _by_version(wall: Wall, version: str | None) -> Verdict:
    """Return the verdict by version; an unordered version is not stated.

    A development build before the fix may have it.
    """
    from glmplan.catalog.schema.engine import version_key

    try:
        key = version_key(version) if version else None
    except SpecError:
        key = None
    if key is None:
        return "possible" if wall.until else "stands"
    if wall.since and key < version_key(wall.since) or wall.until and key >= version_key(wall.until):
        return "absent"
    later = wall.last_seen is not None and key > version_key(wall.last_seen)
    return "possible" if later or (wall.until and "dev" in (version or "")) else "stands"


def _matches(value: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(plain_name(value), pattern) for pattern in patterns)


def _holds(kind: str, test: Any, value: Any) -> bool:
    """Return True if a stated condition passes a `ConditionTest`."""
    from glmplan.catalog.schema.engine import number_test

    if kind == "number":
        return number_test(test, value)
    if kind == "equal":
        return bool(test == value)
    if kind == "all":
        return set(test) <= set(value)
    if kind == "none":
        return not set(test) & set(value)
    return _matches(value, test) == (kind == "names")


def _by_when(when: When, given: Conditions) -> Verdict:
    """Return the verdict by all conditions of a limitation."""
    verdict: Verdict = "stands"
    for condition, kind, test in when.tests:
        value = getattr(given, condition)
        # an accelerator described by a user has the chip of one of the catalogue
        other = given.same_chip if condition == "accelerator" else None
        if value is None and other is None:
            verdict = "possible"
        elif not any(_holds(kind, test, item) for item in (value, other) if item is not None):
            return "absent"
    if set(when.unless) & given.options:
        return "absent"
    return verdict if set(when.options) <= given.options else "possible"


def judge(wall: Wall, conditions: Conditions) -> Verdict:
    """Return the verdict of a limitation on a plan.

    The limitation is of the plan's engine, or of `any`. `possible` when something not stated decides, or the version is
    newer than the last report.

    Examples
    --------
    >>> wall = next(wall for wall in load_engine("any").walls if wall.id == "pipeline-with-mtp")
    >>> from glmplan.catalog.schema.engine import Conditions
    >>> [judge(wall, Conditions(engine="vllm", pp=3, mtp=mtp)) for mtp in (3, None, 0)]
    ['stands', 'possible', 'absent']
    """
    if wall.engines and conditions.engine not in wall.engines:
        return "absent"
    verdicts = {_by_version(wall, conditions.engine_version), _by_when(wall.when, conditions)}
    return "absent" if "absent" in verdicts else "possible" if "possible" in verdicts else "stands"


def another_program(engine: str, *, vendor: str, kind: str) -> Wall | None:
    """Return the limitation that names another program for an accelerator.

    None: the engine serves this kind of accelerator itself. None where the engine serves there itself, perhaps with
    kernels of others (`kernels_of_others`).

    Examples
    --------
    >>> another_program("sglang", vendor="google", kind="npu").another_program
    'SGLang-JAX'
    >>> another_program("vllm", vendor="google", kind="npu") is None
    True
    """
    return next((wall for wall in _standing_on(engine, vendor, kind) if wall.another_program), None)


def _standing_on(engine: str, vendor: str, kind: str) -> Iterator[Wall]:
    """Yield the limitations of an engine that apply on a kind of accelerator."""
    from glmplan.catalog.schema.engine import Conditions

    given = Conditions(engine=engine, vendor=vendor, part_kind=kind)
    return (wall for wall in load_engine(engine).walls if judge(wall, given) == "stands")


def engines_on(*, vendor: str, kind: str) -> tuple[str, ...]:
    """Return the engines with a backend for a kind of accelerator.

    Examples
    --------
    >>> engines_on(vendor="amd", kind="gpu")
    ('exllamav3', 'ktransformers', 'llama.cpp', 'sglang', 'vllm')
    """
    return tuple(
        name for name in engine_names() if all(one.severity != "error" for one in _standing_on(name, vendor, kind))
    )


def kernels_of_others(engine: str, *, vendor: str, kind: str) -> Wall | None:
    """Return the limitation by which an engine computes with foreign kernels.

    None: it uses kernels of its own.

    Examples
    --------
    >>> kernels_of_others("vllm", vendor="google", kind="npu").kernels_of
    'the plug-in tpu-inference or vllm-torchtpu'
    >>> kernels_of_others("vllm", vendor="nvidia", kind="gpu") is None
    True
    """
    return next((wall for wall in _standing_on(engine, vendor, kind) if wall.kernels_of), None)


def _walls(conditions: Conditions, verdict: Verdict) -> tuple[Wall, ...]:
    unknown = conditions.options - OPTIONS.keys()
    if unknown:
        raise SpecError("is not an option of this check", field="options", value=min(unknown), choices=OPTIONS)
    every = (*load_engine(conditions.engine).walls, *load_engine("any").walls)
    result = [wall for wall in every if judge(wall, conditions) == verdict]
    return tuple(sorted(result, key=lambda wall: _SEVERITIES.index(wall.severity)))


def walls_for(conditions: Conditions) -> tuple[Wall, ...]:
    """Return the limitations that apply to a plan, the most severe first.

    Examples
    --------
    >>> from glmplan.catalog.schema.engine import Conditions
    >>> plan = Conditions(
    ...     engine="vllm", engine_version="0.19.0", compute_capability="12.0", features=frozenset({"mla", "dsa", "moe"})
    ... )
    >>> walls_for(plan)[0].id
    'vllm-no-sparse-mla-on-sm120'
    """
    return _walls(conditions, "stands")


def possible_walls(conditions: Conditions) -> tuple[Wall, ...]:
    """Return the limitations that may apply, depending on what was not stated.

    Examples
    --------
    >>> from glmplan.catalog.schema.engine import Conditions
    >>> plan = Conditions(engine="sglang", compute_capability="9.0", mtp=3, features=frozenset({"mtp"}))
    >>> "sglang-spec-v2-with-tool-calls" in {wall.id for wall in possible_walls(plan)}
    True
    """
    return _walls(conditions, "possible")


@cache
def _apart(engine: str) -> tuple[Wall, ...]:
    known = engine in engine_names()
    return tuple(wall for wall in load_engine(engine).walls if wall.apart) if known else ()


def wall_apart(conditions: Conditions) -> str:
    """Return the id of the limitation with fits of its own, else "".

    Empty also for an engine that is unknown or without version.

    Examples
    --------
    >>> from glmplan.catalog.schema.engine import Conditions
    >>> rack = {"model": "deepseek-r1", "features": frozenset({"mla", "moe"}), "compute_capability": "10.3"}
    >>> [wall_apart(Conditions(engine="sglang", engine_version=one, **rack)) for one in ("0.5.10", "0.5.9")]
    ['sglang-deepseek-prompts-on-b300', '']
    """
    if not conditions.engine_version:
        return ""
    walls = (wall for wall in _apart(conditions.engine) if in_view.stands(wall.in_view))
    return next((wall.id for wall in walls if judge(wall, conditions) == "stands"), "")


def host_options(host: Host, group: int) -> frozenset[str]:
    """Return the options of limitations that follow from a machine.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> sorted(host_options(load_machine("1xdgx-spark"), 1))
    []
    """
    above = {switch.name: switch.parent for switch in host.switches}
    sockets = {root.name: root.socket for root in host.roots}

    def root_of(parent: str | None) -> str | None:
        while parent in above:
            parent = above[parent]
        return parent

    roots = [root_of(slot.parent) for slot in host.slots]
    on_socket = [sockets.get(root) for root in roots if root is not None]
    result: set[str] = set()
    if host.scale_up is None and len(set(on_socket)) > 1:
        largest = max(on_socket.count(socket) for socket in on_socket)
        result |= {"dual-socket"} if group > largest else set()
    if any(slot.parent in above for slot in host.slots):
        result.add("pcie-switch")
    shown = {root_of(device.parent) for device in host.devices if device.kind == "display"} - {None}
    if shown & set(roots):
        result.add("display-on-the-fabric")
    if host.conditions.p2p == "direct":
        result.add("force-p2p")
    if host.conditions.nccl_graph == "tuned":
        result.add("nccl-xml")
    return frozenset(result)


def conditions_of(
    host: Host,
    model: ModelSpec | None = None,
    *,
    engine: str,
    features: frozenset[str] | None,
    options: frozenset[str] = frozenset(),
    **said: Any,
) -> Conditions:
    """Return the conditions of a plan on a machine.

    `features` from `glmplan.costs.blocks.stack.model_features`; `options` are added to those that the machine implies;
    `**said` are other fields of `Conditions`.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> features = frozenset({"mla", "dsa", "moe", "mtp"})
    >>> plan = conditions_of(
    ...     load_machine("6xrtx-pro-6000-ws"), load_model("glm-5.1"), engine="vllm", features=features, tp=2, pp=3)
    >>> plan.compute_capability, plan.link, plan.count
    ('12.0', 'pcie', 6)
    """
    from glmplan.catalog.schema.engine import Conditions

    part = load_accelerator(host.accelerator)
    known: dict[str, Any] = {
        "accelerator": part.name,
        "same_chip": part.same_chip,
        "compute_capability": part.compute_capability,
        "vendor": part.vendor,
        "part_kind": part.kind,
        "lacks": frozenset(part.unsupported),
        "count": host.accelerator_count,
        "link": "nvlink" if host.scale_up is not None and host.scale_up.topology != "bridge" else part.link_kind,
        "model": model.name if model else None,
        "features": features,
    }
    known |= {field: value for field, value in said.items() if value is not None}
    group = known.get("tp") or host.accelerators_per_node
    return Conditions(engine=engine, options=options | host_options(host, group), **known)


# Programs that run another engine with defaults of their own, by name.
# Ollama and LM Studio run llama.cpp. Engines without facts are known by name, so that their refusal says what to do.


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One program known by the name of an engine."""

    name: str
    source: str
    engine: str | None = None  # engine that it runs; None: an engine without facts
    nearest: str | None = None  # known engine that is most like it
    context_below: tuple[tuple[float, TokenCount], ...] = ()  # memory of all accelerators [GiB] and context below it
    context_above: TokenCount | None = None
    parallel: int | None = None  # requests that run at once
    kv: str | None = None
    settings: str = ""  # where a user changes the defaults

    def context(self, memory: Bytes) -> TokenCount | None:
        """Return the default context for the memory of all accelerators.

        Examples
        --------
        >>> [front_end("ollama").context(gib * GIB) for gib in (16, 24, 47)]
        [4096, 32768, 262144]
        """
        return next((tokens for limit, tokens in self.context_below if memory < limit * GIB), self.context_above)


def _bare(word: str) -> str:
    return "".join(mark for mark in word.lower() if mark not in " .-_")


@cache
def _by_name() -> dict[str, FrontEnd]:
    fields = {"name", "called", "engine", "nearest", "context_below", "context_above", "parallel", "kv", "settings"}
    result: dict[str, FrontEnd] = {}
    for entry in read_entries(data_folder("hardware_db") / "front_ends.toml", "front_ends", fields):
        plain: dict[str, Any] = {key: value for key, value in entry.items() if key not in ("called", "in_view")}
        below: Sequence[Sequence[float]] = plain.pop("context_below", ())
        limits = tuple((float(limit), int(tokens)) for limit, tokens in below)
        made = FrontEnd(**plain, context_below=limits)
        result |= {_bare(word): made for word in (made.name, *entry.get("called", ()))}
    return result


def front_end(text: str) -> FrontEnd | None:
    """Return the program of a name in any spelling, or None.

    Examples
    --------
    >>> front_end("LM-Studio").engine, front_end("vllm")
    ('llama.cpp', None)
    """
    return _by_name().get(_bare(text))
