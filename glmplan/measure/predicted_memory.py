"""From a startup log to the prediction of the same start, as far as model and machine are known."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.measure.memory_comparison import MemoryLine, beside
from glmplan.prediction.start_memory import StartMemory
from glmplan.readers.runs.importers.startup import StartupLog

__all__ = ["StartupComparison", "parts_of", "predict_startup"]

_LAYOUT = ("tp", "pp", "dp", "ep", "dcp")


@dataclass(frozen=True, slots=True)
class StartupComparison:
    """What an engine logged beside what is predicted.

    Parameters
    ----------
    lines : list of MemoryLine
        Quantities.
    notes : list of str
        What was assumed, and the layout and backends the log names.
    why_not : str
        Why there is no prediction; empty if there is one.
    """

    lines: list[MemoryLine]
    notes: list[str] = field(default_factory=list)
    why_not: str = ""


def parts_of(on: str) -> dict[str, Any]:
    """Return the columns that naming a machine fills.

    Parameters
    ----------
    on : str
        A machine of the catalogue, or a number of accelerators.

    Returns
    -------
    dict
        `accelerator`, and `accelerator_count` where the name says it; a name that is not in the catalogue is kept.

    Examples
    --------
    >>> parts_of("8x rtx-pro-6000-ws")
    {'accelerator': 'rtx-pro-6000-ws', 'accelerator_count': 8}
    """
    from glmplan.facts.catalogue.hosts import load_machine

    machine = load_machine(on.replace(" ", ""))
    return {"accelerator": machine.accelerator, "accelerator_count": machine.accelerator_count}


def predict_startup(log: StartupLog, *, model: str | None = None, on: str | None = None) -> StartupComparison:
    """Predict the memory of an engine start and put it beside the log.

    Parameters
    ----------
    log : StartupLog
        What the engine said.
    model : str, optional
        The model; by default the one the log names.
    on : str, optional
        The machine; by default the device the log names.

    Returns
    -------
    StartupComparison
        Lines with both sides, or the logged side and why there is no other.
    """
    said = [
        f"{what}: {value}"
        for what, value in (
            ("engine", " ".join(filter(None, (log.engine, log.version)))),
            ("model", log.model),
            ("layout", " ".join(f"{n}{getattr(log, n)}" for n in _LAYOUT if getattr(log, n))),
            ("KV cache", log.kv_cache),
            ("attention", log.attention_backend),
            ("experts", log.moe_backend),
        )
        if value
    ]
    name, machine = model or log.model, on or log.accelerator
    if name is None or machine is None:
        missing = " and ".join(w for w, v in (("--model", name), ("--on", machine)) if v is None)
        return StartupComparison(beside(log, None), said, f"the log does not tell it; give {missing}")
    try:
        predicted, assumed = _predicted(log, name, machine)
    except (GlmplanError, KeyError) as error:
        return StartupComparison(beside(log, None), said, str(error))
    return StartupComparison(beside(log, predicted), [*said, *assumed])


def _predicted(log: StartupLog, name: str, machine: str) -> tuple[StartMemory, list[str]]:
    from glmplan.facts.catalogue.accelerators import load_accelerator
    from glmplan.facts.catalogue.hosts import load_machine
    from glmplan.prediction.start_memory import predict_start

    choice = _model(name, log.quantization)
    part = load_accelerator(load_machine(machine).accelerator)
    found = predict_start(log, choice.model, choice.checkpoint, part)
    assumed = [
        f"predicted for {choice.model.name}, checkpoint {choice.checkpoint.name}, on {part.name}, KV cache {found.kv}"
        + (", with draft layers" if log.speculative is not None else "")
    ]
    if found.tokens is not None:
        assumed.append(f"90 % of the KV pool: {found.tokens.low:,.0f} to {found.tokens.high:,.0f} tokens")
    silent = [words for field, words in _SETTINGS.items() if getattr(log, field) is None]
    if silent:
        assumed.append(f"the log does not tell {', '.join(silent)}: taken as the engine's own default")
    return found, assumed


#: settings that decide memory: field of the log → its name in words
_SETTINGS = {
    "memory_utilization": "the share of memory",
    "max_sequences": "the requests at once",
    "max_batched_tokens": "the tokens of a step",
    "max_context": "the longest request",
}
#: Words at the end of a repository's name that do not change the shapes of the weights.
_WITHOUT_MEANING = ("mtp", "instruct", "chat", "it", "hf", "base", "thinking")


def _model(name: str, quantization: str | None) -> Any:
    """Resolve the model of a log: its name, without the owner and without words that change no shape."""
    from dataclasses import replace

    from glmplan.errors import UnknownName
    from glmplan.readers.models.checkpoints import checkpoint_for
    from glmplan.readers.models.resolve import resolve_model
    from glmplan.readers.runs.importers.startup import weights_of_method

    text = name.strip().rstrip("/").rpartition("/")[2] if not os.path.exists(name) else name
    # a GGUF file names its model in words: Qwen3 30B A3B Instruct 2507
    tried = [text if os.path.exists(name) else text.replace(" ", "-")]
    while (cut := tried[-1].rpartition("-"))[2].lower() in _WITHOUT_MEANING and cut[0]:
        tried.append(cut[0])
    failed: UnknownName | None = None
    for one in tried:
        try:
            choice = resolve_model(one)
        except UnknownName as error:
            failed = failed or error
            continue
        stored = weights_of_method(quantization)
        if stored is not None and not choice.stated:
            return replace(choice, checkpoint=checkpoint_for(choice.model, stored))
        return choice
    assert failed is not None
    raise failed
