"""Read a plan request: check it and complete it with engine defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from glmplan.catalog.engines.defaults import engine_defaults
from glmplan.catalog.engines.kernels import attention_assumed
from glmplan.catalog.engines.limitations import adapters_of, called_engine, engine_names, front_end, load_engine
from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.engines.recipes import known_version
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.names import engine_release
from glmplan.catalog.formats import KV_FORMATS
from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import mtp_blocks
from glmplan.errors import SpecError
from glmplan.io.machines.resolve import HostMemory, Machine, resolve_machine
from glmplan.io.models.checkpoints import checkpoint_for, files_of_namesake, read_by, remarks_on
from glmplan.io.models.drafters import FREE_DRAFTERS, drafter_name, published_lengths, with_drafter
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.stages import instead_of, with_all_kinds
from glmplan.prediction.deployment import (
    Settings,
    context_problem,
    experts_of,
    experts_problem,
    keeps_experts_on_host,
    split_problem,
)
from glmplan.prediction.distribution import SURE, probability_asked
from glmplan.prediction.power import check_limit, limit_words
from glmplan.request.option import MOST_USERS
from glmplan.request.plan import PlanRequest
from glmplan.units import BytesPerSecond, Ratio, Seconds, TokenCount, Watts, counted_unit, read_above_zero, whole_number

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_INPUT",
    "DEFAULT_OUTPUT",
    "DEFAULT_USERS",
    "DEGREES",
    "GGUF_ENGINE",
    "MLX_ENGINE",
    "Asked",
    "asked_users",
    "attention_asked",
    "check_layout",
    "check_pieces",
    "engine_asked",
    "named_cache",
    "named_engine",
    "other_name",
    "power_limit_asked",
    "read_words",
    "servers_apart",
    "users_at_once",
    "usual_users",
    "with_adapters",
    "with_host_layers",
]


#: maximum chunks of a prompt: a million tokens in steps of 2,048 [-]
_PIECES = 512
_KV_WORDS = {"auto": None, "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp16": "f16", "bfloat16": "bf16", "f8": "fp8"}


def other_name(typed: str, name: str) -> list[str]:
    """Return a note if a name stands for a model of another name.

    `name` is the resolved model. Empty if both agree, and for files.

    Examples
    --------
    >>> other_name("llama-3.3-70b", "llama-3.1-70b"), other_name("llama-3.1-70b-fp8", "llama-3.1-70b")
    (['llama-3.3-70b: planned as llama-3.1-70b, which has the same shape'], [])
    """
    last = typed.strip().rstrip("/").rpartition("/")[2]
    if last.lower().startswith(name) or Path(typed).suffix in (".json", ".gguf", ".toml", ".safetensors"):
        return []
    return [] if os.path.isdir(typed) else [f"{last}: planned as {name}, which has the same shape"]


def servers_apart(text: str | None, degrees: dict[str, int | None]) -> int:
    """Read the numbers of prefill and decode servers; return the former.

    `degrees` as typed; the sum is stored as its replicas.

    Examples
    --------
    >>> degrees = {"replicas": None}
    >>> servers_apart("1:3", degrees), degrees
    (1, {'replicas': 4})
    """
    if text is None:
        return 0
    parts = text.split(":")
    if len(parts) != 2:
        message = "must be prefill servers and decode servers, as in 1:3"
        raise SpecError(message, field="--disaggregated", value=text)
    prefill, decode = (whole_number(part, "--disaggregated") for part in parts)
    if degrees["replicas"] not in (None, prefill + decode):
        message = f"is not the {prefill + decode} servers of --disaggregated {text}; leave it out"
        raise SpecError(message, field="--replicas", value=degrees["replicas"])
    degrees["replicas"] = prefill + decode
    return prefill


def power_limit_asked(limit: Watts | None, machine: Machine, assumed: list[str]) -> Watts | None:
    """Return the power limit of each accelerator; None where it is the rating."""
    part = machine.accelerator
    if limit is not None and machine.stages:
        message = "is not planned for pipeline stages on accelerators of several kinds: leave it out"
        raise SpecError(message, field="--power-limit", value=f"{limit:g} W")
    if machine.shares:  # unlike cards that are planned as one: the strongest tells what no card takes
        part = max((load_accelerator(name) for name, _ in machine.kinds), key=lambda one: one.tdp or 0.0)
    if limit is not None:
        check_limit(part, limit)
    if limit is None or limit == part.tdp:
        if part.rated is not None:
            assumed.append(f"{part.name}: speed of {part.rated}, as measured with a power limit of {part.tdp:g} W")
        return None
    silicon = part if part.rated is None else load_accelerator(part.rated)
    each = "accelerator" if machine.kinds else part.name
    assumed.append(f"power limit of each {each} {limit:g} W: {limit_words(silicon, limit)}")
    return limit


def check_pieces(budget: TokenCount | None, inputs: TokenCount) -> None:
    """Refuse a step budget that splits a prompt into too many chunks."""
    if budget is not None and budget * _PIECES < inputs:
        message = f"makes {-(-inputs // budget):,} steps of a prompt of {inputs:,} tokens: at least"
        raise SpecError(f"{message} {-(-inputs // _PIECES)}", field="--max-num-batched-tokens", value=budget)


def named_cache(text: str) -> str | None:
    """Return the KV cache format of a name; None if the engine chooses.

    Examples
    --------
    >>> named_cache("FP8_E4M3"), named_cache("auto")
    ('fp8', None)
    """
    word = text.strip().lower()
    key = _KV_WORDS.get(word, word)
    if key is not None and key not in KV_FORMATS:
        raise SpecError("is not a KV cache format", field="--kv", value=text, choices=KV_FORMATS)
    return key


#: default engines: for GGUF files and CPUs, for MLX files and Apple GPUs, for EXL3 files, and otherwise the one with
#: most measurements
GGUF_ENGINE, MLX_ENGINE, _EXL3_ENGINE, DEFAULT_ENGINE = "llama.cpp", "mlx", "exllamav3", "vllm"


def engine_asked(given: str | None, checkpoint: Checkpoint, machine: Machine, assumed: list[str]) -> str:
    """Return the engine: the given one, else the usual one with its reason.

    The reason is added to `assumed`.
    """
    if given is not None:
        engine = named_engine(given)
        _check_host_experts(engine, machine)
        return engine
    part = machine.accelerator
    if checkpoint.form == "mlx":
        engine, why = MLX_ENGINE, "the weights are in MLX form"
    elif checkpoint.form == "exl3":
        engine, why = _EXL3_ENGINE, "the weights are in EXL3"
    elif checkpoint.form == "gguf" or _is_gguf(checkpoint):
        engine, why = GGUF_ENGINE, "the weights are a GGUF file"
    elif part.vendor == "Apple":
        engine, why = MLX_ENGINE, "the usual engine on Apple GPUs"
    elif part.kind == "cpu-socket":
        engine, why = GGUF_ENGINE, "the usual engine on a CPU"
    else:
        engine, why = DEFAULT_ENGINE, "the engine with most measurements"
    assumed.append(f"engine {engine}: {why}")
    return engine


def _check_host_experts(engine: str, machine: Machine) -> None:
    """Refuse experts in host memory where no accelerator has another one."""
    part = machine.accelerator
    if keeps_experts_on_host(engine) and (machine.host.unified_memory or part.kind == "cpu-socket"):
        message = (
            f"keeps experts in host memory beside accelerators with memory of their own, and {part.full_name} has "
        )
        message += "none: name a host with accelerators (--on genoa-2s-direct-8, or a TOML file of yours)"
        raise SpecError(f"{message}, or --engine {GGUF_ENGINE}", field="--engine", value=engine)


def named_engine(text: str) -> str:
    """Return the engine of a name in any spelling.

    Examples
    --------
    >>> named_engine("TensorRT-LLM")
    'trtllm'
    """
    name = called_engine(text)
    known = front_end(text) if name is None else None
    if known is not None and known.engine is not None:
        return known.engine
    if known is not None:
        message = f"is {known.name}, of which glmplan has no facts; the engine most like it: {known.nearest}"
        raise SpecError(message, field="--engine", value=text)
    if name is None:
        raise SpecError("is not a known engine", field="--engine", value=text, choices=engine_names())
    return name


def attention_asked(given: str | None, engine: str, version: str | None) -> str:
    """Return the attention backend in the engine's spelling.

    Empty if none is given; as typed if no source lists the backends of the engine.

    Examples
    --------
    >>> attention_asked("flashinfer", "vllm", None), attention_asked(None, "vllm", None)
    ('FLASHINFER', '')
    """
    name = (given or "").strip()
    known = load_engine(engine).attention_names(version) if name else ()
    found = [backend for backend in known if backend.lower() == name.lower()]
    if known and not found:
        message = f"is no attention backend of {load_engine(engine).full_name}"
        raise SpecError(message, field="--attention-backend", value=name, choices=known)
    return found[0] if found else name


def _is_gguf(checkpoint: Checkpoint) -> bool:
    names = {checkpoint.default, *checkpoint.formats.values()}
    return any(name.startswith(("q2", "q3", "q4", "q5", "q6", "q8", "iq", "tq")) for name in names)


#: concurrencies of the table if none are given [-]
DEFAULT_USERS = (1, 4, 8, 16, 32, 64, 128)
#: reference concurrency: at least so many users, and so many per accelerator of larger machines [-]
_USUAL_USERS, _USUAL_EACH = 32, 4


def asked_users(given: tuple[int, ...] | None, machine: Machine) -> tuple[int, ...]:
    """Return the concurrencies of a table: as requested, else the usual ones."""
    return tuple(sorted({*DEFAULT_USERS, usual_users(machine)})) if given is None else given


def usual_users(machine: Machine) -> int:
    """Return the reference concurrency of a machine for comparing layouts.

    32, and on machines of 16 accelerators or more the power of two at or below four per accelerator. It does not depend
    on the rows of a table.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> usual_users(resolve_machine("8xh200-sxm")), usual_users(resolve_machine("gb200-nvl72"))
    (32, 256)
    """
    return max(_USUAL_USERS, 1 << ((_USUAL_EACH * machine.count).bit_length() - 1))


def users_at_once(given: object, field: str) -> int:
    """Read a number of concurrent users; `field` names it in errors.

    Examples
    --------
    >>> users_at_once("8", "--users")
    8
    """
    return whole_number(given, field, most=MOST_USERS)


#: rank of LoRA adapters if none is given: the default of vLLM's --max-lora-rank [-]
_RANK = 16
#: maximum number and rank of adapters [-]
_MOST, _HIGHEST = 4096, 4096


def with_adapters(settings: Settings, lora: int | None, rank: int | None, engine: str, assumed: list[str]) -> Settings:
    """Return settings with the LoRA adapters of a request.

    The rank becomes that of the engine's buffers. Unchanged without adapters.
    """
    if lora is None and rank is None:
        return settings
    if lora is None:
        raise SpecError("needs --lora with the number of adapters", field="--lora-rank", value=rank)
    many = _bounded(lora, "--lora", _MOST)
    facts = adapters_of(engine)
    if facts is None:
        raise SpecError(
            f"is not supported with {engine}: its adapter memory is not modelled", field="--lora", value=many
        )
    asked = _RANK if rank is None else _bounded(rank, "--lora-rank", _HIGHEST)
    if rank is None:
        assumed.append(f"LoRA adapters of rank {_RANK}")
    held = next((one for one in facts.ranks if one >= asked), None) if facts.ranks else asked
    if held is None:
        message = f"is above the largest adapter rank of {engine}: {facts.ranks[-1]}"
        raise SpecError(message, field="--lora-rank", value=asked)
    if held != asked:
        assumed.append(f"LoRA buffers of rank {held}: {engine} has no buffers of rank {asked}")
    assumed.append("LoRA adapters on every matrix except embedding and head; no run with adapters was measured")
    return replace(settings, adapters=many, adapter_rank=held)


def with_host_layers(
    settings: Settings,
    words: PlanRequest,
    files: tuple[ModelSpec, Checkpoint],
    engine: str,
    machine: Machine,
    assumed: list[str],
) -> Settings:
    """Return settings with the layers that the CPU computes.

    In llama.cpp's count the output is the last layer, after the MTP layers of the file, loaded or not [1]_.
    Unchanged without such an option.

    References
    ----------
    .. [1] https://github.com/ggml-org/llama.cpp, `src/llama-model.cpp` (`load_tensors` deals `n_layer_all + 1` layers,
       accelerators have the last of them) and https://github.com/ggml-org/llama.cpp/pull/26296 (MTP layers are loaded
       only for drafting, after layers are dealt)
    """
    if words.gpu_layers is None and not words.no_kv_offload:
        return settings
    field, value = ("--no-kv-offload" if words.gpu_layers is None else "--gpu-layers"), words.gpu_layers
    if not _accelerates_layers(engine):
        known = [name for name in engine_names() if _accelerates_layers(name)]
        raise SpecError(f"is an option of {', '.join(known)}: give --engine {known[0]}", field=field, value=value)
    if machine.host.unified_memory or machine.accelerator.kind == "cpu-socket":
        message = f"has no effect on {machine.accelerator.full_name}, which has one memory: leave it out"
        raise SpecError(message, field=field, value=value)
    if words.gpu_layers == 0:
        message = "leaves the output to the CPU too, which is not modelled: 1 keeps the output alone on the accelerator"
        raise SpecError(message, field=field, value=value)
    layers, drafting = len(files[0].layer_names), mtp_blocks(*files)
    away = 0 if words.gpu_layers is None else min(max(layers + drafting + 1 - words.gpu_layers, 0), layers)
    if machine.host.host_memory is None and (words.no_kv_offload or away == layers):
        raise SpecError("needs the memory of the host: --host-memory, as in 128GB", field=field, value=value)
    if away:
        numbers = f"layers 0 to {away - 1} of {layers}" if away > 1 else f"layer 0 of {layers}"
        cache = "" if words.no_kv_offload else " with their KV cache"
        counted = "the output" + f" and {counted_unit(drafting, 'MTP layers')} of the file" * bool(drafting)
        assumed.append(f"{numbers} in host memory{cache}, computed by the CPU: --gpu-layers counts {counted}")
    if words.no_kv_offload:
        assumed.append("KV cache of all layers in host memory, where the CPU computes attention")
    return replace(settings, host_layers=away, host_cache=words.no_kv_offload)


def _accelerates_layers(engine: str) -> bool:
    running = load_engine(engine).running
    moved = None if running is None else running.moved_experts
    return moved is not None and moved.accelerated is not None


def _bounded(number: int, field: str, most: int) -> int:
    if number > most:
        raise SpecError(f"is more than {most:,}", field=field, value=number)
    return number


#: degrees of a layout, and the number of its servers on the machine
DEGREES = ("tp", "pp", "dp", "ep", "dcp", "replicas")


def check_layout(asked: Asked, given: dict[str, int | None]) -> None:
    """Refuse invalid parallel degrees.

    `given`: `DEGREES` of the request; None is chosen by the plan.
    """
    model, machine, divided_experts = asked.model, asked.machine, asked.divided_experts
    count = machine.count
    tp, pp, dp, ep, dcp, replicas = (given[name] or 1 for name in DEGREES)
    problem = split_problem(model, tp, asked.engine)
    if problem:
        most = count if tp <= count else 2 * tp
        good = [one for one in range(1, most + 1) if not split_problem(model, one, asked.engine)]
        close = sorted(sorted(good, key=lambda one: abs(one - tp))[:3])
        raise SpecError(f"{problem}; nearest: {', '.join(map(str, close))}", field="--tp", value=tp)
    if pp > len(model.layer_names):
        raise SpecError(f"is more than the {len(model.layer_names)} layers of {model.name}", field="--pp", value=pp)
    words = f"tp {tp} × pp {pp} × dp {dp}" + f" × {replicas} replicas" * (replicas > 1)
    used = tp * pp * dp * replicas
    if used > count:
        raise SpecError(
            f"takes {used} accelerators and {machine.text} has {count}{machine.beside}; "
            f"{instead_of(machine, asked.engine, used)}",
            field="layout",
            value=words,
        )
    # servers of a layout fill the machine, unless their number was given
    idle = used < count if given["replicas"] else count % used
    if given["tp"] and given["pp"] and given["dp"] and idle:
        raise SpecError(
            f"takes {used} of the {count} accelerators of {machine.text}; raise a degree, or ask for fewer",
            field="layout",
            value=words,
        )
    experts = experts_of(model)
    if ep > 1 and not experts:
        raise SpecError(f"needs routed experts, which {model.name} does not have", field="--ep", value=ep)
    fixed = given["tp"] and given["dp"]
    uneven = tp * dp % ep if divided_experts else ep != tp * dp
    if ep > 1 and (ep > min(count, experts) or (fixed and uneven)):
        whole = f"1 or tp × dp ({tp * dp})" if fixed else "1 or tp × dp"
        whole += " or a divisor of it" if divided_experts else ""
        raise SpecError(f"must be {whole}, within {count} accelerators and {experts} experts", field="--ep", value=ep)
    if ep > 1 and (problem := experts_problem(model, ep, asked.engine)) is not None:
        parts = [one for one in range(1, ep) if ep % one == 0] if divided_experts else [1]
        good = [one for one in parts if experts_problem(model, one, asked.engine) is None]
        raise SpecError(f"{problem}; take --ep {good[-1]}, or ranks that divide them", field="--ep", value=ep)
    if dcp > 1 and (tp % dcp if given["tp"] else dcp > count):
        raise SpecError(f"must divide --tp {tp}" if given["tp"] else "must divide TP", field="--dcp", value=dcp)
    degrees = [tp] if given["tp"] else [one for one in range(dcp, count + 1, dcp)]
    refused = [context_problem(model, one, dcp, asked.engine, asked.runs_as) for one in degrees]
    if degrees and all(refused):
        raise SpecError(refused[-1] or "", field="--dcp", value=dcp)


#: default request: a chat turn with some history [token]
DEFAULT_INPUT, DEFAULT_OUTPUT = 2048, 512


@dataclass(frozen=True, repr=False)
class Asked:
    """A request with defaults chosen, except those that the plan compares.

    Options of the request that need no choice are read from it; `but` changes them there.
    """

    #: the request, with model, machine, engine, formats, users and draft tokens as they were resolved
    request: PlanRequest
    #: `model`, `checkpoint`: model and weights
    model: ModelSpec
    checkpoint: Checkpoint
    machine: Machine
    #: `engine`, `engine_version`: engine and its version; None for the newest with evidence
    engine: str
    engine_version: str | None
    kv: str | None  # KV cache format
    replicas: int | None  # servers of the layout, [-]
    #: `input_tokens`, `output_tokens`: prompt and answer of a request, [token]
    input_tokens: int
    output_tokens: int
    users: tuple[int, ...]  # concurrencies of the table, rising, [-]
    #: `users_given`, `lengths_given`: True if users and lengths were given
    users_given: bool
    lengths_given: bool
    mtp: int  # draft tokens per step, [-]
    acceptance: float | None  # mean tokens gained per step, [-]
    settings: Settings  # explicit engine options; others have the default of the engine
    assumed: tuple[str, ...] = ()  # defaults that were taken, as text
    notes: tuple[str, ...] = ()  # remarks on the model files
    cached_tokens: int = 0  # prompt tokens found in the prefix cache, [token]
    prefill: int = 0  # servers for prefill only (disaggregation), [-]

    def __repr__(self) -> str:
        lengths = f"{self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        return (
            f"<Asked {self.model.name} {self.checkpoint.name} on {self.machine.text}, {self.engine}: {lengths}, "
            f"{len(self.users)} numbers of users>"
        )

    @property
    def tp(self) -> int | None:
        """Requested tensor-parallel degree, [-]"""
        return self.request.tp

    @property
    def pp(self) -> int | None:
        """Requested pipeline stages, [-]"""
        return self.request.pp

    @property
    def dp(self) -> int | None:
        """Requested data-parallel degree, [-]"""
        return self.request.dp

    @property
    def ep(self) -> int | None:
        """Requested expert-parallel degree, [-]"""
        return self.request.ep

    @property
    def dcp(self) -> int | None:
        """Requested decode context parallel degree, [-]"""
        return self.request.dcp

    @property
    def context(self) -> TokenCount | None:
        """Longest sequence that must fit, [token]"""
        return self.request.context

    @property
    def calibration(self) -> str | None:
        """Calibration of a site, applied to each prediction."""
        return self.request.calibration

    @property
    def power_limit(self) -> Watts | None:
        """Power limit of each accelerator, [W]; None is its rating."""
        return self.request.power_limit

    @property
    def probability(self) -> Ratio:
        """Probability with which an SLO has to be met, [-]"""
        return SURE if self.request.probability is None else self.request.probability

    @property
    def slo_limits(self) -> dict[str, Seconds]:
        """Stated limits of the SLO: longest means of ``ttft`` and ``tpot``, [s]"""
        return _slo_limits(self.request)

    @property
    def host_tokens(self) -> TokenCount:
        """KV offload to host memory per data-parallel rank, for traffic, [token]"""
        return self.request.host_tokens or 0

    @property
    def host_bandwidth(self) -> BytesPerSecond:
        """Bandwidth of KV offload per rank; 0 for the links of the host, [B/s]"""
        return self.request.host_bandwidth or 0.0

    @property
    def request_tokens(self) -> int:
        """Prompt and answer of a request, [token]"""
        return self.input_tokens + self.output_tokens

    @property
    def full_request(self) -> int:
        """Longest request; the engine does not start if it does not fit, [token]"""
        return self.context or self.settings.max_model_len or self.request_tokens

    @property
    def longest_request(self) -> int:
        """Longest request that the model and the server accept, [token]"""
        return min(self.model.max_context, self.settings.max_model_len or self.model.max_context)

    @property
    def user_tokens(self) -> int:
        """Tokens that count per user, [token]

        The length of a request; without lengths the requested context.
        """
        return self.context if self.context and not self.lengths_given else self.request_tokens

    @property
    def divided_experts(self) -> bool:
        """True if the engine accepts a divisor of the ranks for experts."""
        running = load_engine(self.engine).running
        return running is not None and running.divided_experts

    @property
    def most_users(self) -> int:
        """Users of one launch: the usual number, or more if given, [-]"""
        return max(usual_users(self.machine), self.users[-1] * self.users_given)

    @cached_property
    def defaults(self) -> EngineDefaults:
        """Scheduler defaults of the engine with the explicit options."""
        part = self.machine.accelerator
        found = engine_defaults(self.engine, version=self.engine_version, accelerator=part.name, memory=part.memory)
        return self.settings.packing(found)

    @property
    def runs_as(self) -> str | None:
        """Engine version for limitations and options: given, else the newest."""
        return self.engine_version or load_engine(self.engine).newest

    @property
    def release(self) -> tuple[int, ...] | None:
        """Given engine version as numbers; None for speeds of no release."""
        return engine_release(self.engine_version) if self.engine_version else None

    def but(self, **changes: object) -> Asked:
        """Return the same request with other values."""
        options = {name: value for name, value in changes.items() if name not in _RESOLVED}
        own = {name: value for name, value in changes.items() if name in _RESOLVED}
        if options:
            if unknown := set(options) - _OF_REQUEST:
                raise TypeError(f"Asked has no {', '.join(sorted(unknown))}")
            own["request"] = self.request.model_copy(update=options)
        result = replace(self, **own)  # type: ignore[arg-type]
        return _with_free_share(result) if "engine" in own else result


#: fields of `Asked`, and those that it reads from its request
_RESOLVED = frozenset(one.name for one in fields(Asked))
_OF_REQUEST = frozenset(("tp", "pp", "dp", "ep", "dcp", "context", "calibration", "power_limit", "host_tokens",
                         "host_bandwidth", "probability", "tpot_limit", "ttft_limit"))  # fmt: skip


def _slo_limits(words: PlanRequest) -> dict[str, Seconds]:
    """Return the stated limits of the SLO."""
    stated = {"ttft": words.ttft_limit, "tpot": words.tpot_limit}
    return {
        name: read_above_zero(limit, f"--{name}-limit", "seconds")
        for name, limit in stated.items()
        if limit is not None
    }


def _machine(words: PlanRequest) -> Machine:
    """Return the machine with the stated memory of its processors."""
    memory = HostMemory(words.host_memory, words.host_memory_bandwidth, words.host_cores)
    return resolve_machine(words.on, words.part, memory)


def read_words(words: PlanRequest) -> Asked:
    """Read, check and complete a request.

    Examples
    --------
    >>> asked = read_words(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> asked.engine, asked.checkpoint.name, asked.users[-1]
    ('vllm', 'nvfp4', 128)
    """
    choice = resolve_model(words.model)
    weights = words.weights
    checkpoint = checkpoint_for(choice.model, weights) if weights else choice.checkpoint
    machine = _machine(words)
    assumed = other_name(words.model, choice.model.name)
    default = not weights and not choice.stated
    if default:
        assumed.append(f"weights {checkpoint.name}: the model's default checkpoint")
    words = _through_front_end(words, choice.model, machine, assumed)
    engine = engine_asked(words.engine, checkpoint, machine, assumed)
    if choice.exact_bytes is None:
        checkpoint = read_by(choice.model, checkpoint, engine)
        assumed += remarks_on(choice.model, checkpoint)
    machine, words = with_all_kinds(machine, words, engine) if machine.kinds else (machine, words)
    kv = _kv(words.kv, engine)
    degrees = {name: getattr(words, name) for name in DEGREES}
    prefill = servers_apart(words.disaggregated, degrees)
    context = words.context
    if context is not None and context > choice.model.max_context:
        message = f"exceeds the context limit of {choice.model.name}, {choice.model.max_context:,} tokens"
        raise SpecError(message, field="--context", value=context)
    settings = with_adapters(_settings(words, engine, assumed), words.lora, words.lora_rank, engine, assumed)
    settings = with_host_layers(settings, words, (choice.model, checkpoint), engine, machine, assumed)
    longest = settings.max_model_len
    if longest is not None and context is not None and context > longest:
        raise SpecError(f"exceeds --max-model-len {longest:,}", field="--context", value=context)
    inputs, outputs = _lengths(words, context, longest, choice.model, assumed)
    check_pieces(settings.max_num_batched_tokens, inputs)
    model, (mtp, acceptance) = _with_drafter(words, choice.model, assumed)
    version = _version(words.engine_version, engine, assumed)
    users = asked_users(words.users, machine)
    limit = power_limit_asked(words.power_limit, machine, assumed)
    probability = probability_asked(words.probability)
    _slo_limits(words)
    if words.users is None:
        assumed.append("users " + ", ".join(map(str, users)))
    asked = Asked(
        request=words.model_copy(update={"power_limit": limit, "probability": probability}),
        model=model,
        checkpoint=files_of_namesake(choice.model, checkpoint, choice.repository),
        machine=machine,
        engine=engine,
        engine_version=version,
        kv=kv,
        replicas=degrees["replicas"],
        input_tokens=inputs,
        output_tokens=outputs,
        users=users,
        users_given=words.users is not None,
        lengths_given=any(one is not None for one in (words.input, words.output, words.use_case)),
        mtp=mtp,
        acceptance=acceptance,
        settings=settings,
        assumed=(*machine.taken, *assumed, *machine.notes),
        notes=choice.notes,
        prefill=prefill,
    )
    check_layout(asked, degrees)
    return _with_free_share(asked if words.recipe is None else _by_recipe(asked, words.recipe))


def _with_free_share(asked: Asked) -> Asked:
    """Return the request with a memory fraction that starts.

    Only if none was given, where the engine looks at the free memory of a part that shares it with its host. The
    fraction that was assumed for another engine goes.
    """
    settings, share = asked.settings, _free_share(asked)
    words = "some started systems leave no more memory free"
    assumed = tuple(one for one in asked.assumed if not one.endswith(words))
    if len(assumed) < len(asked.assumed):
        settings = replace(settings, memory_fraction=asked.request.memory_fraction)
    if settings.memory_fraction is None and share is not None:
        assumed = (*assumed, f"--memory-fraction {share:g}: {words}")
        settings = replace(settings, memory_fraction=share)
    return replace(asked, settings=settings, assumed=assumed)


def _free_share(asked: Asked) -> Ratio | None:
    return asked.machine.accelerator.free_share if load_memory_rule(asked.engine).checks_free else None


def _through_front_end(words: PlanRequest, model: ModelSpec, machine: Machine, assumed: list[str]) -> PlanRequest:
    """Return the request with the defaults of a program that runs the engine.

    Ollama and LM Studio give llama.cpp a context, a number of requests at once and a cache format. Drafters get their
    names here.
    """
    if words.drafter is not None:
        words = words.model_copy(update={"drafter": drafter_name(words.drafter)})
    known = front_end(words.engine) if words.engine and called_engine(words.engine) is None else None
    if known is None or known.engine is None:
        return words
    memory = machine.count * (machine.accelerator.memory or 0.0)
    context = known.context(memory)
    given: dict[str, object] = {"engine": known.engine}
    remarks = []
    if context is not None and words.context is None and words.max_model_len is None:
        given["max_model_len"] = min(context, model.max_context)
        remarks.append(f"context {given['max_model_len']:,} tokens")
    if known.parallel is not None and words.max_num_seqs is None:
        given["max_num_seqs"] = known.parallel
        remarks.append(f"{known.parallel} at once")
    if known.kv is not None and words.kv is None:
        given["kv"] = known.kv
        remarks.append(f"KV cache {known.kv}")
    defaults = f" with its defaults, {', '.join(remarks)}, which {known.settings} change" if remarks else ""
    assumed.append(f"engine {known.engine}: {known.name} runs it{defaults}")
    return words.model_copy(update=given)


def _by_recipe(asked: Asked, recipe: str) -> Asked:
    """Return the request with the settings of a recipe.

    Open degrees become those of one server on all accelerators.
    """
    from glmplan.planner.recipe import launch_asked, recipe_settings

    degrees = {name: getattr(asked, name) or 1 for name in ("pp", "dp", "ep")}
    others = degrees["pp"] * degrees["dp"] * (asked.replicas or 1)
    degrees["tp"] = asked.tp or max(asked.machine.count // others, 1)
    load = (asked.users[-1], asked.input_tokens, asked.output_tokens)
    names = (asked.engine, asked.model, asked.checkpoint, asked.machine.accelerator)
    server = launch_asked(names, degrees, load, asked.engine_version, asked.mtp)
    settings, kv, notes = recipe_settings(recipe, server, asked.settings, asked.kv)
    return asked.but(settings=settings, kv=kv, assumed=(*asked.assumed, *notes))


def _version(given: str | None, engine: str, assumed: list[str]) -> str | None:
    try:
        version = known_version(engine, given)
    except SpecError as error:
        raise SpecError(error.message, field="--engine-version", value=given) from None
    if version is None and (newest := load_engine(engine).newest):
        assumed.append(f"{engine} {newest}: the newest release with evidence")
    return version


def _kv(text: str | None, engine: str) -> str | None:
    key = named_cache(text) if text is not None else None
    if key is None:
        return None
    try:
        return load_engine(engine).cache_format(key).format
    except SpecError as error:
        raise SpecError(error.message, field="--kv", value=text, choices=error.choices) from None


def _settings(words: PlanRequest, engine: str, assumed: list[str]) -> Settings:
    fraction = words.memory_fraction
    if fraction is not None and not 0 < fraction <= 1:
        raise SpecError("must be above 0 and at most 1", field="--memory-fraction", value=words.memory_fraction)
    sequences = words.max_num_seqs
    budget = words.max_num_batched_tokens
    if budget is not None and sequences is not None and budget < sequences:
        message = f"is below --max-num-seqs {sequences}: a step has at least one token of each request"
        raise SpecError(message, field="--max-num-batched-tokens", value=budget)
    backend = attention_asked(words.attention_backend, engine, words.engine_version)
    if backend and (words_of := attention_assumed(engine, backend)):
        assumed.append(words_of)
    return Settings(
        memory_fraction=fraction,
        max_num_seqs=sequences,
        max_num_batched_tokens=budget,
        max_model_len=words.max_model_len,
        attention_backend=backend,
        graphs=not words.eager,
    )


def _lengths(
    words: PlanRequest, context: int | None, longest: int | None, model: ModelSpec, assumed: list[str]
) -> tuple[int, int]:
    limit, where = (context, "--context") if context else (model.max_context, f"the context limit of {model.name}")
    if not context and longest is not None and longest < limit:
        limit, where = longest, "--max-model-len"
    inputs, outputs = words.input, words.output
    if words.use_case is not None:
        from glmplan.catalog.entries.use_cases import use_case

        case = use_case(words.use_case)
        inputs, outputs = inputs or case.input, outputs or case.output
        assumed.append(f"{inputs:,} input and {outputs:,} output tokens: use case {case.name}")
    if outputs is None:
        outputs = min(DEFAULT_OUTPUT, max(limit // 4, 1))
        assumed.append(f"{outputs:,} output tokens")
    if inputs is None:
        inputs = max(min(DEFAULT_INPUT, limit - outputs), 1)
        assumed.append(f"{inputs:,} input tokens")
    if inputs + outputs > limit:
        raise SpecError(
            f"with --output {outputs} makes {inputs + outputs:,} tokens, above {where} ({limit:,})", field="--input",
            value=inputs,
        )  # fmt: skip
    return inputs, outputs


def _with_drafter(
    words: PlanRequest, model: ModelSpec, assumed: list[str]
) -> tuple[ModelSpec, tuple[int, float | None]]:
    if words.drafter is not None:
        model = with_drafter(model, words.drafter, assumed)
    return model, _drafting(words, model, assumed)


def _drafting(words: PlanRequest, model: ModelSpec, assumed: list[str]) -> tuple[int, float | None]:
    mtp = words.mtp or 0
    free = words.drafter in FREE_DRAFTERS
    if words.drafter is not None and words.mtp is None:
        raise SpecError("needs --mtp with the number of draft tokens", field="--drafter", value=words.drafter)
    if mtp > (most := model.draft_block or 16):
        raise SpecError(f"is above the maximum of {most} draft tokens", field="--mtp", value=mtp)
    if mtp and not model.draft_runs and not free:
        message = f"needs MTP layers, which {model.name} does not have; --drafter names another way of drafting"
        raise SpecError(message, field="--mtp", value=mtp)
    if mtp and model.draft_head is not None and words.drafter is None:
        assumed.append(f"draft head {model.draft_head.repository}, a separate download")
    rate = words.acceptance
    if rate is None:
        if mtp and free:
            # published values differ by a factor of three between texts: the user has to say which
            message = (
                "needs --acceptance: it depends on the text. Count tokens per step of all steps: vLLM's mean "
                "acceptance length leaves out steps without a draft. Published tokens per step: "
                + published_lengths(words.drafter or "")
            )
            raise SpecError(message, field="--drafter", value=words.drafter)
        if mtp:
            assumed.append("acceptance: mean of published runs with as many draft tokens")
        return mtp, None
    if not mtp:
        raise SpecError("needs --mtp with the number of draft tokens", field="--acceptance", value=words.acceptance)
    if not 0 <= rate <= mtp + 1:
        raise SpecError(
            f"must be a probability up to 1, or tokens gained per step up to {mtp + 1}", field="--acceptance",
            value=words.acceptance,
        )  # fmt: skip
    # a probability is that of each draft token if all before it were accepted
    return mtp, float(sum(rate**number for number in range(mtp + 1))) if rate <= 1 else rate
