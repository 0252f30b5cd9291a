"""What was asked of a plan: the words of the command, read, checked and completed with the engine's defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmplan.catalog.engines.defaults import EngineDefaults, engine_defaults
from glmplan.catalog.engines.kernels import attention_assumed
from glmplan.catalog.engines.limitations import called_engine, engine_names, load_engine
from glmplan.catalog.engines.recipes import known_version
from glmplan.catalog.entries.names import engine_release
from glmplan.catalog.formats import KV_FORMATS
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.engine import Adapters
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import mixers_of, routed_blocks
from glmplan.errors import SpecError
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.io.models.checkpoints import checkpoint_for, files_of_namesake, read_by, remarks_on
from glmplan.io.models.resolve import resolve_model
from glmplan.prediction.deployment import Settings, heads_of
from glmplan.prediction.step_models import check_limit
from glmplan.request.option import MOST_USERS
from glmplan.request.plan import PlanRequest
from glmplan.units import BytesPerSecond, TokenCount, Watts, whole_number

if TYPE_CHECKING:
    from glmplan.io.runs.settings import Asked as Server
    from glmplan.io.runs.settings import Launched

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_INPUT",
    "DEFAULT_OUTPUT",
    "DEFAULT_USERS",
    "DEGREES",
    "MLX_ENGINE",
    "Asked",
    "Words",
    "adapters_of",
    "asked_users",
    "attention_asked",
    "check_layout",
    "check_pieces",
    "engine_asked",
    "experts_of",
    "heads_problem",
    "launch_asked",
    "named_cache",
    "named_engine",
    "other_name",
    "power_limit_asked",
    "read_words",
    "recipe_settings",
    "servers_apart",
    "users_at_once",
    "usual_users",
    "with_adapters",
]


# Parts of a question that are read by themselves: names, servers for prompts, limits of power and of steps.

#: pieces that a prompt is read in at most: a million tokens in steps of 2,048 [-]
_PIECES = 512
_KV_WORDS = {"auto": None, "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp16": "f16", "bfloat16": "bf16", "f8": "fp8"}


def other_name(typed: str, name: str) -> list[str]:
    """Say that a name stands for a model of another name.

    - `name`: Name of the model that it was resolved to.
    - Returns: That the plan has its shape; empty where the name says so, and of files.

    Examples
    --------
    >>> other_name("llama-3.3-70b", "llama-3.1-70b"), other_name("llama-3.1-70b-fp8", "llama-3.1-70b")
    (['llama-3.3-70b: planned as llama-3.1-70b, whose shape it has'], [])
    """
    last = typed.strip().rstrip("/").rpartition("/")[2]
    if last.lower().startswith(name) or Path(typed).suffix in (".json", ".gguf", ".toml", ".safetensors"):
        return []
    return [] if Path(typed).is_dir() else [f"{last}: planned as {name}, whose shape it has"]


def servers_apart(text: str | None, degrees: dict[str, int | None]) -> int:
    """Read how many servers compute prompts and how many decode.

    `degrees`: Degrees as typed; of servers together it takes the sum.

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
        message = "must be servers for prompts and servers that decode, as in 1:3"
        raise SpecError(message, field="--disaggregated", value=text)
    prefill, decode = (whole_number(one, "--disaggregated") for one in parts)
    if degrees["replicas"] not in (None, prefill + decode):
        message = f"is not the {prefill + decode} servers of --disaggregated {text}; leave it out"
        raise SpecError(message, field="--replicas", value=degrees["replicas"])
    degrees["replicas"] = prefill + decode
    return prefill


def power_limit_asked(limit: Watts | None, machine: Machine, assumed: list[str]) -> Watts | None:
    """Return the power limit of each accelerator; None where it is the rating."""
    part = machine.accelerator
    check_limit(part, limit)
    if limit is None or limit == part.tdp:
        if part.rated is not None:
            assumed.append(f"{part.name} is as fast as {part.rated} was measured to be under {part.tdp:g} W")
        return None
    assumed.append(f"each {part.name} limited to {limit:g} W: as slow as it was measured to be under that limit")
    return limit


def check_pieces(budget: TokenCount | None, inputs: TokenCount) -> None:
    """Refuse steps so short that a prompt is read in more pieces than any engine makes of one."""
    if budget is not None and budget * _PIECES < inputs:
        message = f"makes {-(-inputs // budget):,} steps of a prompt of {inputs:,} tokens: at least"
        raise SpecError(f"{message} {-(-inputs // _PIECES)}", field="--max-num-batched-tokens", value=budget)


def named_cache(text: str) -> str | None:
    """The cache format that a word means.

    Returns: One of `glmplan.catalog.formats.KV_FORMATS`; None where the engine chooses.

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


# The engine of a plan: the one that is named, or the one that files and part ask for.

#: engines that a plan takes when none is named, which the answer says: for GGUF files and processors, for MLX files and
#: Apple silicon, and for all else the one with most measurements
_GGUF_ENGINE, MLX_ENGINE, DEFAULT_ENGINE = "llama.cpp", "mlx", "vllm"


def engine_asked(given: str | None, checkpoint: Checkpoint, machine: Machine, assumed: list[str]) -> str:
    """The engine that serves, and why, where it is not named.

    `assumed`: Gets a line where the engine is chosen.
    """
    if given is not None:
        return named_engine(given)
    part = machine.accelerator
    if checkpoint.form == "mlx":
        engine, why = MLX_ENGINE, "the weights are in MLX form"
    elif checkpoint.form == "gguf" or _is_gguf(checkpoint):
        engine, why = _GGUF_ENGINE, "the weights are a GGUF file"
    elif part.vendor == "Apple":
        engine, why = MLX_ENGINE, "the part is Apple silicon"
    elif part.kind == "cpu-socket":
        engine, why = _GGUF_ENGINE, "the part is a processor"
    else:
        engine, why = DEFAULT_ENGINE, "the engine with most measurements"
    assumed.append(f"engine {engine}: {why}")
    return engine


def named_engine(text: str) -> str:
    """The engine that a name means, however it is spelled.

    Examples
    --------
    >>> named_engine("TensorRT-LLM")
    'trtllm'
    """
    name = called_engine(text)
    if name is None:
        raise SpecError("is not a known engine", field="--engine", value=text, choices=engine_names())
    return name


def attention_asked(given: str | None, engine: str, version: str | None) -> str:
    """The attention backend as the engine spells it.

    Returns: Empty where none is named; as typed where no source lists the engine's.

    Examples
    --------
    >>> attention_asked("flashinfer", "vllm", None), attention_asked(None, "vllm", None)
    ('FLASHINFER', '')
    """
    said = (given or "").strip()
    known = load_engine(engine).attention_names(version) if said else ()
    found = [name for name in known if name.lower() == said.lower()]
    if known and not found:
        message = f"is no attention backend of {load_engine(engine).full_name}"
        raise SpecError(message, field="--attention-backend", value=said, choices=known)
    return found[0] if found else said


def _is_gguf(checkpoint: Checkpoint) -> bool:
    names = {checkpoint.default, *checkpoint.formats.values()}
    return any(name.startswith(("q2", "q3", "q4", "q5", "q6", "q8", "iq", "tq")) for name in names)


# Users that a plan is asked for, and those for whom plans are compared.

#: users of the table when none are given [-]
DEFAULT_USERS = (1, 4, 8, 16, 32, 64, 128)
#: users for whom plans are compared: at least so many, and so many for each accelerator of larger machines [-]
_USUAL_USERS, _USUAL_EACH = 32, 4


def asked_users(given: tuple[int, ...] | None, machine: Machine) -> tuple[int, ...]:
    """Return the concurrencies of a table: those of the request, or the usual ones of the machine."""
    return tuple(sorted({*DEFAULT_USERS, usual_users(machine)})) if given is None else given


def usual_users(machine: Machine) -> int:
    """Users for whom layouts of a machine are compared, whichever rows of a table are asked for.

    Returns: 32, and on machines of 16 accelerators or more the power of two at or below four for each of them.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> usual_users(resolve_machine("8xh200-sxm")), usual_users(resolve_machine("gb200-nvl72"))
    (32, 256)
    """
    return max(_USUAL_USERS, 1 << ((_USUAL_EACH * machine.count).bit_length() - 1))


def users_at_once(given: object, field: str) -> int:
    """Read a number of users.

    `field`: What it is called where it was given.

    Examples
    --------
    >>> users_at_once("8", "--users")
    8
    """
    return whole_number(given, field, most=MOST_USERS)


# Low-rank adapters (LoRA) as they are typed: which engines keep them, and of which rank.

#: rank of adapters when none is named, which the answer says: the default of vLLM's --max-lora-rank [-]
_RANK = 16
#: adapters and ranks that are answered at most [-]
_MOST, _HIGHEST = 4096, 4096


def with_adapters(settings: Settings, lora: int | None, rank: int | None, engine: str, assumed: list[str]) -> Settings:
    """Settings with the low-rank adapters of a question.

    - `lora`, `rank`: How many adapters lie on the accelerators at once, and the rank of the largest, as typed.
    - Returns: The same without adapters; else with the rank that the engine has buffers for.
    """
    if lora is None and rank is None:
        return settings
    if lora is None:
        raise SpecError("needs --lora with the number of adapters", field="--lora-rank", value=rank)
    many = _bounded(lora, "--lora", _MOST)
    facts = adapters_of(engine)
    if facts is None:
        raise SpecError(f"is not answered of {engine}: how it keeps adapters was not read", field="--lora", value=many)
    asked = _RANK if rank is None else _bounded(rank, "--lora-rank", _HIGHEST)
    if rank is None:
        assumed.append(f"adapters of rank {_RANK}")
    held = next((one for one in facts.ranks if one >= asked), None) if facts.ranks else asked
    if held is None:
        message = f"is more than {engine} has buffers for: at most {facts.ranks[-1]}"
        raise SpecError(message, field="--lora-rank", value=asked)
    if held != asked:
        assumed.append(f"buffers of rank {held}: {engine} has none of {asked}")
    assumed.append("adapters of every matrix but embedding and head; no run with adapters was measured")
    return replace(settings, adapters=many, adapter_rank=held)


def _bounded(number: int, field: str, most: int) -> int:
    if number > most:
        raise SpecError(f"is more than {most:,}", field=field, value=number)
    return number


def adapters_of(engine: str) -> Adapters | None:
    """How an engine keeps low-rank adapters."""
    running = load_engine(engine).running
    return None if running is None else running.adapters


# Parallel degrees that engines accept: what divides what, and how many accelerators there are.

#: degrees of a layout, and how many servers of it share the machine
DEGREES = ("tp", "pp", "dp", "ep", "dcp", "replicas")


def heads_problem(model: ModelSpec, tp: int) -> str | None:
    """Why engines do not split the heads of a model over a tensor-parallel degree.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> heads_problem(load_model("glm-5.1"), 3)
    'does not divide the 64 attention heads of glm-5.1'
    >>> heads_problem(load_model("glm-5.1"), 4)
    """
    heads = heads_of(model)
    if heads > 1 and heads % tp:
        return f"does not divide the {heads} attention heads of {model.name}"
    problems = (one.cut_problem(tp, model.name) for one in mixers_of(model))
    return next((why for why in problems if why is not None), None)


def experts_of(model: ModelSpec) -> int:
    """Routed experts of a layer.

    Returns: The most that any layer has; 0 for dense models.
    """
    return max((block.experts for block in routed_blocks(model)), default=0)


def check_layout(
    model: ModelSpec, machine: Machine, given: dict[str, int | None], *, divided_experts: bool = False
) -> None:
    """Refuse degrees that cannot be.

    - `given`: `DEGREES` as asked for; None is left to the plan.
    - `divided_experts`: Whether the engine may deal the experts over a divisor of the ranks.
    """
    count = machine.count
    tp, pp, dp, ep, dcp, replicas = (given[name] or 1 for name in DEGREES)
    problem = heads_problem(model, tp)
    if problem:
        good = [one for one in range(1, max(count, 2 * tp) + 1) if not heads_problem(model, one)]
        close = sorted(sorted(good, key=lambda one: abs(one - tp))[:3])
        raise SpecError(f"{problem}; nearest: {', '.join(map(str, close))}", field="--tp", value=tp)
    if pp > len(model.layer_names):
        raise SpecError(f"is more than the {len(model.layer_names)} layers of {model.name}", field="--pp", value=pp)
    asked = f"tp {tp} × pp {pp} × dp {dp}" + f" × {replicas} replicas" * (replicas > 1)
    used = tp * pp * dp * replicas
    if used > count:
        raise SpecError(
            f"takes {used} accelerators and {machine.text} has {count}; lower --tp, --pp, --dp or --replicas",
            field="layout",
            value=asked,
        )
    # servers of a layout fill the machine, unless their number was given
    idle = used < count if given["replicas"] else count % used
    if given["tp"] and given["pp"] and given["dp"] and idle:
        raise SpecError(
            f"takes {used} of the {count} accelerators of {machine.text}; raise a degree, or ask for fewer",
            field="layout",
            value=asked,
        )
    experts = experts_of(model)
    if ep > 1 and not experts:
        raise SpecError(f"asks to deal experts, which {model.name} has not", field="--ep", value=ep)
    fixed = given["tp"] and given["dp"]
    uneven = tp * dp % ep if divided_experts else ep != tp * dp
    if ep > 1 and (ep > min(count, experts) or (fixed and uneven)):
        whole = f"1 or tp × dp ({tp * dp})" if fixed else "1 or tp × dp"
        whole += " or a divisor of it" if divided_experts else ""
        raise SpecError(f"must be {whole}, within {count} accelerators and {experts} experts", field="--ep", value=ep)
    if dcp > 1 and (tp % dcp if given["tp"] else dcp > count):
        raise SpecError(f"must divide --tp {tp}" if given["tp"] else "must divide TP", field="--dcp", value=dcp)


#: request that is taken when no lengths are given: a chat turn with some history [token]
DEFAULT_INPUT, DEFAULT_OUTPUT = 2048, 512


#: the request by its older name
Words = PlanRequest


@dataclass(frozen=True, repr=False)
class Asked:
    """A request with what it leaves out chosen, except what the plan compares.

    Options of the request that need no choice are read from it; `but` changes them there.

    Attributes
    ----------
    request : PlanRequest
        The request. Model, machine, engine, formats, users and drafting stand here as they were resolved.
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    machine : Machine
        On what.
    engine, engine_version : str, str or None
        Engine and its version; None for the newest that evidence covers.
    kv : str or None
        KV cache format.
    replicas : int or None
        Servers of the layout, [-]
    prefill : int
        Of the servers, how many only compute prompts and hand keys and values over (disaggregation), [-]
    input_tokens, output_tokens : int
        A request, [token]
    users : tuple of int
        Users of the table, rising, [-]
    users_given, lengths_given : bool
        Whether users and lengths were asked for.
    mtp : int
        Tokens drafted for each step, [-]
    acceptance : float or None
        Tokens that a step gains, [-]
    settings : Settings
        What the engine is told; what it is not told takes the default of the engine, as the command does.
    assumed : tuple of str
        What was left out and is taken.
    notes : tuple of str
        What the files of the model say.
    cached_tokens : int
        Tokens of a prompt that the conversation held before, so that their keys are found again, [token]
    """

    request: PlanRequest
    model: ModelSpec
    checkpoint: Checkpoint
    machine: Machine
    engine: str
    engine_version: str | None
    kv: str | None
    replicas: int | None
    input_tokens: int
    output_tokens: int
    users: tuple[int, ...]
    users_given: bool
    lengths_given: bool
    mtp: int
    acceptance: float | None
    settings: Settings
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cached_tokens: int = 0
    prefill: int = 0

    def __repr__(self) -> str:
        lengths = f"{self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        return (
            f"<Asked {self.model.name} {self.checkpoint.name} on {self.machine.text}, {self.engine}: {lengths}, "
            f"{len(self.users)} numbers of users>"
        )

    @property
    def tp(self) -> int | None:
        """Tensor parallel degree that was asked for, [-]"""
        return self.request.tp

    @property
    def pp(self) -> int | None:
        """Pipeline stages that were asked for, [-]"""
        return self.request.pp

    @property
    def dp(self) -> int | None:
        """Data parallel degree that was asked for, [-]"""
        return self.request.dp

    @property
    def ep(self) -> int | None:
        """Expert parallel degree that was asked for, [-]"""
        return self.request.ep

    @property
    def dcp(self) -> int | None:
        """Decode context parallel degree that was asked for, [-]"""
        return self.request.dcp

    @property
    def context(self) -> TokenCount | None:
        """Longest sequence that must fit, [token]"""
        return self.request.context

    @property
    def calibration(self) -> str | None:
        """Calibration of a site, which each prediction applies."""
        return self.request.calibration

    @property
    def power_limit(self) -> Watts | None:
        """Power limit of each accelerator, [W]; None is its rating."""
        return self.request.power_limit

    @property
    def host_tokens(self) -> TokenCount:
        """Copies of cached tokens in host memory, of each data-parallel rank; only traffic uses them, [token]"""
        return self.request.host_tokens or 0

    @property
    def host_bandwidth(self) -> BytesPerSecond:
        """Bandwidth over which these copies come back to a rank; 0 for that of the machine's links, [B/s]"""
        return self.request.host_bandwidth or 0.0

    @property
    def request_tokens(self) -> int:
        """Prompt and answer of a request, [token]"""
        return self.input_tokens + self.output_tokens

    @property
    def full_request(self) -> int:
        """Longest request that the plan must hold: an engine does not start whose longest one does not fit, [token]"""
        return self.context or self.settings.max_model_len or self.request_tokens

    @property
    def longest_request(self) -> int:
        """Longest request that the model and the server accept, [token]"""
        return min(self.model.max_context, self.settings.max_model_len or self.model.max_context)

    @property
    def user_tokens(self) -> int:
        """Tokens of a user who is counted: the stated request, or the stated context without lengths, [token]"""
        return self.context if self.context and not self.lengths_given else self.request_tokens

    @property
    def divided_experts(self) -> bool:
        """Whether the engine may deal the experts over a divisor of the ranks."""
        running = load_engine(self.engine).running
        return running is not None and running.divided_experts

    @property
    def defaults(self) -> EngineDefaults:
        """How the engine packs steps with what it is told."""
        part = self.machine.accelerator
        found = engine_defaults(self.engine, version=self.engine_version, accelerator=part.name, memory=part.memory)
        return self.settings.packing(found)

    @property
    def runs_as(self) -> str | None:
        """Version whose walls and options hold: the one that was named, else the newest that evidence covers."""
        return self.engine_version or load_engine(self.engine).newest

    @property
    def release(self) -> tuple[int, ...] | None:
        """Engine version that was named, as numbers; speeds of no release in particular where none was."""
        from glmplan.catalog.entries.names import engine_release

        return engine_release(self.engine_version) if self.engine_version else None

    def but(self, **changes: object) -> Asked:
        """Return the same question with other values, those of the request in its request."""
        told = {name: value for name, value in changes.items() if name not in _RESOLVED}
        own = {name: value for name, value in changes.items() if name in _RESOLVED}
        if told:
            if unknown := set(told) - _OF_REQUEST:
                raise TypeError(f"Asked has no {', '.join(sorted(unknown))}")
            own["request"] = self.request.model_copy(update=told)
        return replace(self, **own)  # type: ignore[arg-type]


#: values that were resolved, and those that the request has as it was given
_RESOLVED = frozenset(one.name for one in fields(Asked))
_OF_REQUEST = frozenset(("tp", "pp", "dp", "ep", "dcp", "context", "calibration", "power_limit", "host_tokens",
                         "host_bandwidth"))  # fmt: skip


def read_words(words: PlanRequest) -> Asked:
    """Read, check and complete a question.

    Examples
    --------
    >>> asked = read_words(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> asked.engine, asked.checkpoint.name, asked.users[-1]
    ('vllm', 'nvfp4', 128)
    """
    choice = resolve_model(words.model)
    weights = words.weights
    checkpoint = checkpoint_for(choice.model, weights) if weights else choice.checkpoint
    machine = resolve_machine(words.on)
    assumed = other_name(words.model, choice.model.name)
    default = not weights and not choice.stated
    if default:
        assumed.append(f"weights {checkpoint.name}: the model's default checkpoint")
    engine = engine_asked(words.engine, checkpoint, machine, assumed)
    if choice.exact_bytes is None:
        checkpoint = read_by(choice.model, checkpoint, engine)
        assumed += remarks_on(choice.model, checkpoint)
    kv = _kv(words.kv, engine)
    degrees = {name: getattr(words, name) for name in DEGREES}
    prefill = servers_apart(words.disaggregated, degrees)
    context = words.context
    if context is not None and context > choice.model.max_context:
        message = f"is beyond the {choice.model.max_context:,} tokens that {choice.model.name} can read"
        raise SpecError(message, field="--context", value=context)
    settings = _settings(words, engine, assumed)
    settings = with_adapters(settings, words.lora, words.lora_rank, engine, assumed)
    longest = settings.max_model_len
    if longest is not None and context is not None and context > longest:
        raise SpecError(f"is beyond --max-model-len {longest:,}", field="--context", value=context)
    inputs, outputs = _lengths(words, context, longest, choice.model, assumed)
    check_pieces(settings.max_num_batched_tokens, inputs)
    mtp, acceptance = _drafting(words, choice.model, assumed)
    version = _version(words.engine_version, engine, assumed)
    users = asked_users(words.users, machine)
    limit = power_limit_asked(words.power_limit, machine, assumed)
    if words.users is None:
        assumed.append("users " + ", ".join(map(str, users)))
    asked = Asked(
        request=words.model_copy(update={"power_limit": limit}),
        model=choice.model,
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
        lengths_given=words.input is not None or words.output is not None,
        mtp=mtp,
        acceptance=acceptance,
        settings=settings,
        assumed=(*assumed, *machine.notes),
        notes=choice.notes,
        prefill=prefill,
    )
    check_layout(asked.model, asked.machine, degrees, divided_experts=asked.divided_experts)
    return asked if words.recipe is None else _by_recipe(asked, words.recipe)


def _by_recipe(asked: Asked, recipe: str) -> Asked:
    """The question with the settings of a recipe; degrees that it leaves open are those of one server on all parts."""
    degrees = {name: getattr(asked, name) or 1 for name in ("pp", "dp", "ep")}
    others = degrees["pp"] * degrees["dp"] * (asked.replicas or 1)
    degrees["tp"] = asked.tp or max(asked.machine.count // others, 1)
    load = (asked.users[-1], asked.input_tokens, asked.output_tokens)
    names = (asked.engine, asked.model, asked.checkpoint, asked.machine.accelerator)
    server = launch_asked(names, degrees, load, asked.engine_version, asked.mtp)
    settings, kv, said = recipe_settings(recipe, server, asked.settings, asked.kv)
    return asked.but(settings=settings, kv=kv, assumed=(*asked.assumed, *said))


def _version(given: str | None, engine: str, assumed: list[str]) -> str | None:
    try:
        version = known_version(engine, given)
    except SpecError as error:
        raise SpecError(error.message, field="--engine-version", value=given) from None
    if version is None and (newest := load_engine(engine).newest):
        assumed.append(f"{engine} {newest}: the newest release that evidence covers")
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
        message = f"is below --max-num-seqs {sequences}: a step holds a token of each request"
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
    limit, where = (context, "--context") if context else (model.max_context, f"what {model.name} can read")
    if not context and longest is not None and longest < limit:
        limit, where = longest, "--max-model-len"
    inputs, outputs = words.input, words.output
    if outputs is None:
        outputs = min(DEFAULT_OUTPUT, max(limit // 4, 1))
        assumed.append(f"{outputs:,} output tokens")
    if inputs is None:
        inputs = max(min(DEFAULT_INPUT, limit - outputs), 1)
        assumed.append(f"{inputs:,} input tokens")
    if inputs + outputs > limit > 1:
        raise SpecError(
            f"with --output {outputs} makes {inputs + outputs:,} tokens, beyond {where} ({limit:,})",
            field="--input",
            value=inputs,
        )
    return inputs, outputs


def _drafting(words: PlanRequest, model: ModelSpec, assumed: list[str]) -> tuple[int, float | None]:
    mtp = words.mtp or 0
    if mtp > (most := (model.mtp and model.mtp.block) or 16):
        raise SpecError(f"is more than {most} drafted tokens", field="--mtp", value=mtp)
    if mtp and model.draft_layers is None:
        raise SpecError(f"asks for MTP layers, which {model.name} has not; leave it out", field="--mtp", value=mtp)
    if mtp and model.draft_head is not None:
        assumed.append(f"drafts by the head {model.draft_head.repository}, a download of its own")
    rate = words.acceptance
    if rate is None:
        if mtp:
            assumed.append("acceptance: the mean of published runs with as many drafted tokens")
        return mtp, None
    if not mtp:
        raise SpecError("needs --mtp with the number of drafted tokens", field="--acceptance", value=words.acceptance)
    if not 0 <= rate <= mtp + 1:
        raise SpecError(
            f"must be a probability up to 1, or tokens gained in a step up to {mtp + 1}",
            field="--acceptance",
            value=words.acceptance,
        )
    # a probability is that of each drafted token when all before it were accepted
    return mtp, float(sum(rate**number for number in range(mtp + 1))) if rate <= 1 else rate


# What a named recipe or campaign set at its start, told to a plan.

#: settings of a launch → what a plan is told by, and how the answer names it
_TOLD = {
    "fraction": ("memory_fraction", "--memory-fraction"),
    "running_limit": ("max_num_seqs", "--max-num-seqs"),
    "budget": ("max_num_batched_tokens", "--max-num-batched-tokens"),
    "attention_backend": ("attention_backend", "--attention-backend"),
    "expert_kernels": ("expert_kernels", "experts' kernels"),
}
#: value of a setting that says nothing
_SILENT = (None, "", 0, False)


def launch_asked(
    names: tuple[str, ModelSpec, Checkpoint, Accelerator], degrees: dict[str, int], load: tuple[float, float, float],
    version: str | None, draft_tokens: TokenCount,
) -> Server:  # fmt: skip
    """Return the server of a plan as launches are looked up by it.

    - `names`: Engine, model, how its weights are stored, part.
    - `load`: Requests in flight [-], prompt and answer [token].

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> from glmplan.catalog.entries.models import load_model
    >>> model, degrees = load_model("gpt-oss-120b"), {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
    >>> names = ("vllm", model, model.checkpoint("mxfp4"), load_accelerator("b200-sxm"))
    >>> launch_asked(names, degrees, (64, 1024, 1024), None, 0).weights
    'mxfp4'
    """
    from glmplan.io.runs.settings import Asked as Server

    engine, model, stored, part = names
    users, inputs, outputs = map(float, load)
    return Server(
        engine=engine, model=model.name, weights=stored.formats.get("routed_experts") or stored.default,
        accelerator=part.name, silicon=(part.compute_capability or "").partition(".")[0], concurrency=users,
        input_tokens=inputs, output_tokens=outputs, version=version or "",
        release=(engine_release(version) or ()) if version else (), draft_tokens=draft_tokens,
        tp=degrees["tp"], pp=degrees["pp"], dp=degrees["dp"], ep=degrees["ep"],
    )  # fmt: skip


def recipe_settings(
    recipe: str, server: Server, settings: Settings, kv: str | None
) -> tuple[Settings, str | None, tuple[str, ...]]:
    """Take the settings of a recipe where the question does not say otherwise.

    - `recipe`: A campaign or collection of recipes, as a row names it: ``vllm-recipes`` or ``vllm-recipes:
      single_node_tp``.
    - `server`: The server that is planned, as launches are looked up.
    - `settings`: What the question tells the engine, which goes before the recipe.
    - `kv`: Format of the cache that was asked for.
    - Returns: The settings, the format of the cache, and what was taken and what the recipe leaves open, in words.

    Notes
    -----
    Not modelled: a recipe whose settings differ between the layouts that a plan compares; how it polls and gathers.

    Examples
    --------
    >>> from glmplan.io.runs.settings import Asked as Server
    >>> server = Server("vllm", "gpt-oss-120b", "mxfp4", accelerator="b200-sxm", concurrency=64, input_tokens=1024,
    ...                 output_tokens=1024)
    >>> found, kv, words = recipe_settings("inferencex", server, Settings(), None)
    >>> kv, found.memory_fraction
    ('fp8', 0.9)
    """
    from glmplan.io.runs.settings import launched, recipe_models

    found = launched(recipe, server)
    if not found.source:
        held = recipe_models(recipe, server.engine, server.accelerator)
        what = f"{server.model} in {server.weights} by {server.engine} on {server.accelerator}"
        raise SpecError(f"holds no launch of {what}", field="--recipe", value=recipe, choices=held)
    told: dict[str, Any] = {}
    said: list[str] = []
    for name, (field, option) in _TOLD.items():
        value = found.values.get(name)
        if value in _SILENT or getattr(settings, field) not in _SILENT:
            continue
        # a limit is that of all ranks together, as of rows
        told[field] = -(-value // server.dp) if name == "running_limit" else value
        said.append(f"{option} {told[field]}")
    taken = found.values.get("kv") if kv is None else None
    said += [f"--kv {taken}"] if taken else []
    if found.values.get("graphs") is False and settings.graphs:
        told["graphs"] = False
        said.append("--eager")
    return replace(settings, **told), taken or kv, tuple(_words(recipe, found, said))


def _words(recipe: str, found: Launched, said: list[str]) -> list[str]:
    """What the answer says of the recipe."""
    lines = [f"recipe {recipe}: {', '.join(said) or 'the defaults of the engine'} ({found.source})"]
    open_ = [_TOLD[name][1] for name in _TOLD if name in found.open] + ["--kv"] * ("kv" in found.open)
    if open_:
        lines.append(f"recipe {recipe} leaves open: {', '.join(open_)}; the defaults of the engine are taken")
    return lines
