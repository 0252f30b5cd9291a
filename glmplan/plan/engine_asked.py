"""The engine of a plan: the one that is named, or the one that files and part ask for."""

from __future__ import annotations

from glmplan.errors import SpecError
from glmplan.facts.engines.walls import called_engine, engine_names, load_engine
from glmplan.facts.schema.model import Checkpoint
from glmplan.readers.machines.resolve import Machine
from glmplan.units import given_text

__all__ = ["DEFAULT_ENGINE", "MLX_ENGINE", "attention_asked", "engine_asked", "named_engine"]

#: engines that a plan takes when none is named, which the answer says: for GGUF files and processors, for MLX files and
#: Apple silicon, and for all else the one with most measurements
_GGUF_ENGINE, MLX_ENGINE, DEFAULT_ENGINE = "llama.cpp", "mlx", "vllm"


def engine_asked(given: object, checkpoint: Checkpoint, machine: Machine, assumed: list[str]) -> str:
    """The engine that serves, and why, where it is not named.

    Parameters
    ----------
    given : object
        The name as typed; None chooses.
    checkpoint : Checkpoint
        The weights.
    machine : Machine
        What they run on.
    assumed : list of str
        Gets a line where the engine is chosen.

    Returns
    -------
    str
        A name of the catalogue.

    Raises
    ------
    SpecError
        If no such engine is known.
    """
    if given is not None:
        return named_engine(given_text(given, "--engine"))
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

    Parameters
    ----------
    text : str
        The name.

    Returns
    -------
    str
        A name of the catalogue.

    Raises
    ------
    SpecError
        If no such engine is known.

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

    Parameters
    ----------
    given : str or None
        The name as typed.
    engine : str
        The engine.
    version : str or None
        Its version; None means the newest.

    Returns
    -------
    str
        Empty where none is named; as typed where no source lists the engine's.

    Raises
    ------
    SpecError
        If that version has no such backend.

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
