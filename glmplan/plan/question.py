"""What was asked of a plan: the words of the command, read, checked and completed with the engine's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glmplan.errors import SpecError
from glmplan.facts.engines.defaults import EngineDefaults, engine_defaults
from glmplan.facts.engines.kernels import attention_assumed
from glmplan.facts.engines.releases import known_version
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.plan.adapters_asked import with_adapters
from glmplan.plan.asked_parts import (
    bandwidth_of_copies,
    check_pieces,
    named_cache,
    other_name,
    power_limit_asked,
    servers_apart,
)
from glmplan.plan.degrees import DEGREES, check_layout
from glmplan.plan.engine_asked import attention_asked, engine_asked
from glmplan.plan.users_asked import asked_users
from glmplan.prediction.settings import Settings
from glmplan.readers.machines.resolve import Machine, resolve_machine
from glmplan.readers.models.checkpoints import checkpoint_for, files_of_namesake, read_by, remarks_on
from glmplan.readers.models.resolve import resolve_model
from glmplan.units import finite_number, given_text, whole_number

__all__ = [
    "DEFAULT_INPUT",
    "DEFAULT_OUTPUT",
    "Asked",
    "Words",
    "read_words",
]

#: request that is taken when no lengths are given: a chat turn with some history [token]
DEFAULT_INPUT, DEFAULT_OUTPUT = 2048, 512


@dataclass(frozen=True, slots=True)
class Words:
    """The question as it was typed, in words or in numbers; None is what was left out.

    Attributes
    ----------
    model, on : str
        Model and machine.
    weights, kv, engine, engine_version : str or None
        Formats and engine.
    tp, pp, dp, ep, dcp, replicas : str or None
        Layout, and servers of that layout.
    disaggregated : str or None
        Servers that compute prompts and servers that decode, as in ``1:3``.
    context, input, output : str or None
        Lengths.
    users : str or None
        Numbers of users, separated by commas.
    mtp, acceptance : str or None
        Drafting.
    eager : bool
        Without CUDA graphs.
    memory_fraction, max_num_seqs, max_num_batched_tokens, max_model_len, attention_backend : str or None
        What the engine is told, see `glmplan.prediction.settings.Settings`.
    lora, lora_rank : str or None
        Low-rank adapters that lie on the accelerators at once, and the rank of the largest.
    calibration : str, path or None
        A site's calibration to apply.
    recipe : str or None
        Campaign or collection of recipes whose settings the server is launched with.
    power_limit : str or None
        Power limit of each accelerator.
    host_tokens : str or None
        Copies of cached tokens in host memory, of each data-parallel rank.
    host_bandwidth : str or None
        Bandwidth over which they come back to a rank, instead of the machine's links.
    """

    model: str
    on: str
    weights: str | None = None
    kv: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    tp: int | str | None = None
    pp: int | str | None = None
    dp: int | str | None = None
    ep: int | str | None = None
    dcp: int | str | None = None
    replicas: int | str | None = None
    disaggregated: str | None = None
    context: int | str | None = None
    input: int | str | None = None
    output: int | str | None = None
    users: int | str | Sequence[int] | None = None
    mtp: int | str | None = None
    acceptance: float | str | None = None
    eager: bool = False
    memory_fraction: float | str | None = None
    max_num_seqs: int | str | None = None
    max_num_batched_tokens: int | str | None = None
    max_model_len: int | str | None = None
    attention_backend: str | None = None
    lora: int | str | None = None
    lora_rank: int | str | None = None
    calibration: str | Path | None = None
    recipe: str | None = None
    power_limit: float | str | None = None
    host_tokens: int | str | None = None
    host_bandwidth: float | str | None = None


@dataclass(frozen=True, repr=False)
class Asked:
    """A question that can be answered: everything checked, None where the plan may choose.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    machine : Machine
        On what.
    engine, engine_version : str, str or None
        Engine and its version; None for the newest that evidence covers.
    kv : str or None
        KV cache format.
    tp, pp, dp, ep, dcp, replicas : int or None
        Layout, and servers of that layout, [-]
    host_tokens : int
        Copies of cached tokens in host memory, of each data-parallel rank; only traffic sees them, [token]
    host_bandwidth : float
        Bandwidth over which they come back to a rank; 0 for that of the machine's links, [B/s]
    prefill : int
        Of the servers, how many only compute prompts and hand keys and values over (disaggregation), [-]
    context : int or None
        Longest sequence that must fit, [token]
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
    calibration : str or None
        A site's calibration, which whoever predicts applies.
    cached_tokens : int
        Tokens of a prompt that the conversation held before, so that their keys are found again, [token]
    power_limit : float or None
        Power limit of each accelerator, [W]; None is its rating.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    machine: Machine
    engine: str
    engine_version: str | None
    kv: str | None
    tp: int | None
    pp: int | None
    dp: int | None
    ep: int | None
    dcp: int | None
    replicas: int | None
    context: int | None
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
    calibration: str | None = None
    cached_tokens: int = 0
    power_limit: float | None = None
    prefill: int = 0
    host_tokens: int = 0
    host_bandwidth: float = 0.0

    def __repr__(self) -> str:
        lengths = f"{self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        return (
            f"<Asked {self.model.name} {self.checkpoint.name} on {self.machine.text}, {self.engine}: {lengths}, "
            f"{len(self.users)} numbers of users>"
        )

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
        from glmplan.facts.catalogue.names import engine_release

        return engine_release(self.engine_version) if self.engine_version else None

    def but(self, **changes: object) -> Asked:
        """The same question with something else.

        Parameters
        ----------
        **changes
            Fields and their values.

        Returns
        -------
        Asked
            The other question.
        """
        return replace(self, **changes)  # type: ignore[arg-type]


def _whole(field: str, given: object, least: int = 1) -> int | None:
    return None if given is None else whole_number(given, field, least=least)


def _number(field: str, given: object) -> float | None:
    return None if given is None else finite_number(given, field)


def _text(field: str, given: object) -> str | None:
    return None if given is None else given_text(given, field)


def read_words(words: Words) -> Asked:
    """Read, check and complete a question.

    Parameters
    ----------
    words : Words
        The command as typed.

    Returns
    -------
    Asked
        The question.

    Raises
    ------
    SpecError
        If anything is wrong: names the option, the value and the nearest choice.

    Examples
    --------
    >>> asked = read_words(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> asked.engine, asked.checkpoint.name, asked.users[-1]
    ('vllm', 'nvfp4', 128)
    """
    choice = resolve_model(given_text(words.model, "model"))
    weights = _text("--weights", words.weights)
    checkpoint = checkpoint_for(choice.model, weights) if weights else choice.checkpoint
    machine = resolve_machine(given_text(words.on, "--on"))
    assumed = other_name(str(words.model), choice.model.name)
    default = not weights and not choice.stated
    if default:
        assumed.append(f"weights {checkpoint.name}: the model's default checkpoint")
    engine = engine_asked(words.engine, checkpoint, machine, assumed)
    if choice.exact_bytes is None:
        checkpoint = read_by(choice.model, checkpoint, engine)
        assumed += remarks_on(choice.model, checkpoint)
    kv = _kv(_text("--kv", words.kv), engine)
    degrees = {name: _whole(f"--{name}", getattr(words, name)) for name in DEGREES}
    prefill = servers_apart(_text("--disaggregated", words.disaggregated), degrees)
    context = _whole("--context", words.context)
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
        model=choice.model,
        checkpoint=files_of_namesake(choice.model, checkpoint, choice.repository),
        machine=machine,
        engine=engine,
        engine_version=version,
        kv=kv,
        **degrees,  # type: ignore[arg-type]
        context=context,
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
        calibration=_calibration(words.calibration),
        power_limit=limit,
        prefill=prefill,
        host_tokens=_whole("--host-tokens", words.host_tokens, least=0) or 0,
        host_bandwidth=bandwidth_of_copies(words.host_bandwidth),
    )
    check_layout(asked.model, asked.machine, degrees, divided_experts=asked.divided_experts)
    return asked if words.recipe is None else _by_recipe(asked, given_text(words.recipe, "--recipe"))


def _by_recipe(asked: Asked, recipe: str) -> Asked:
    """The question with the settings of a recipe; degrees that it leaves open are those of one server on all parts."""
    from glmplan.plan.recipe_settings import launch_asked, recipe_settings  # reads the table of launches

    degrees = {name: getattr(asked, name) or 1 for name in ("pp", "dp", "ep")}
    others = degrees["pp"] * degrees["dp"] * (asked.replicas or 1)
    degrees["tp"] = asked.tp or max(asked.machine.count // others, 1)
    load = (asked.users[-1], asked.input_tokens, asked.output_tokens)
    names = (asked.engine, asked.model, asked.checkpoint, asked.machine.accelerator)
    server = launch_asked(names, degrees, load, asked.engine_version, asked.mtp)
    settings, kv, said = recipe_settings(recipe, server, asked.settings, asked.kv)
    return asked.but(settings=settings, kv=kv, assumed=(*asked.assumed, *said))


def _version(given: object, engine: str, assumed: list[str]) -> str | None:
    try:
        version = known_version(engine, _text("--engine-version", given))
    except SpecError as error:
        raise SpecError(error.message, field="--engine-version", value=given) from None
    if version is None and (newest := load_engine(engine).newest):
        assumed.append(f"{engine} {newest}: the newest release that evidence covers")
    return version


def _flag(field: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise SpecError("is neither True nor False", field=field, value=given)
    return given


def _calibration(given: object) -> str | None:
    path = str(given) if isinstance(given, Path) else _text("--calibration", given)
    if path is not None and not path.strip():
        raise SpecError("is empty", field="--calibration", value=path)
    return path


def _kv(text: str | None, engine: str) -> str | None:
    key = named_cache(text) if text is not None else None
    if key is None:
        return None
    try:
        return load_engine(engine).cache_format(key).format
    except SpecError as error:
        raise SpecError(error.message, field="--kv", value=text, choices=error.choices) from None


def _settings(words: Words, engine: str, assumed: list[str]) -> Settings:
    fraction = _number("--memory-fraction", words.memory_fraction)
    if fraction is not None and not 0 < fraction <= 1:
        raise SpecError("must be above 0 and at most 1", field="--memory-fraction", value=words.memory_fraction)
    sequences = _whole("--max-num-seqs", words.max_num_seqs)
    budget = _whole("--max-num-batched-tokens", words.max_num_batched_tokens)
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
        max_model_len=_whole("--max-model-len", words.max_model_len),
        attention_backend=backend,
        graphs=not _flag("--eager", words.eager),
    )


def _lengths(
    words: Words, context: int | None, longest: int | None, model: ModelSpec, assumed: list[str]
) -> tuple[int, int]:
    limit, where = (context, "--context") if context else (model.max_context, f"what {model.name} can read")
    if not context and longest is not None and longest < limit:
        limit, where = longest, "--max-model-len"
    inputs, outputs = _whole("--input", words.input), _whole("--output", words.output)
    if outputs is None:
        outputs = min(DEFAULT_OUTPUT, max(limit // 4, 1))
        assumed.append(f"{outputs:,} output tokens")
    if inputs is None:
        inputs = max(min(DEFAULT_INPUT, limit - outputs), 1)
        assumed.append(f"{inputs:,} input tokens")
    if inputs + outputs > limit and limit > 1:
        raise SpecError(
            f"with --output {outputs} makes {inputs + outputs:,} tokens, beyond {where} ({limit:,})",
            field="--input",
            value=inputs,
        )
    return inputs, outputs


def _drafting(words: Words, model: ModelSpec, assumed: list[str]) -> tuple[int, float | None]:
    mtp = _whole("--mtp", words.mtp, 0) or 0
    if mtp > (most := (model.mtp and model.mtp.block) or 16):
        raise SpecError(f"is more than {most} drafted tokens", field="--mtp", value=mtp)
    if mtp and model.draft_layers is None:
        raise SpecError(f"asks for MTP layers, which {model.name} has not; leave it out", field="--mtp", value=mtp)
    if mtp and model.draft_head is not None:
        assumed.append(f"drafts by the head {model.draft_head.repository}, a download of its own")
    rate = _number("--acceptance", words.acceptance)
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
