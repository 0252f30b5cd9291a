"""What a named recipe or campaign set at its start, told to a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError
from glmplan.readers.runs.settings import Asked as Server
from glmplan.readers.runs.settings import Launched, launched, recipe_models

if TYPE_CHECKING:
    from glmplan.plan.question import Asked

__all__ = ["with_recipe_settings"]

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


def with_recipe_settings(asked: Asked, recipe: str) -> Asked:
    """Take the settings of a recipe where the question does not say otherwise.

    Parameters
    ----------
    asked : Asked
        The question. Degrees that it leaves open count as those of one tensor-parallel server on all its parts.
    recipe : str
        A campaign or collection of recipes, as a row names it: ``vllm-recipes`` or ``vllm-recipes: single_node_tp``.

    Returns
    -------
    Asked
        The question with the settings; what the recipe leaves open or says otherwise than the question stands among
        its assumptions.

    Raises
    ------
    SpecError
        If no such recipe is known, or it holds no launch of the model in this format by this engine on this part.

    Notes
    -----
    Not modelled: a recipe whose settings differ between the layouts that a plan compares; how it polls and gathers.

    Examples
    --------
    >>> from glmplan.plan.question import Words, read_words
    >>> plain = read_words(Words("gpt-oss-120b", "1xb200-sxm", engine="vllm", input=1024, output=1024, users=64))
    >>> found = with_recipe_settings(plain, "inferencex")
    >>> found.kv, found.settings.memory_fraction
    ('fp8', 0.9)
    """
    server = _server(asked)
    found = launched(recipe, server)
    if not found.source:
        held = recipe_models(recipe, server.engine, server.accelerator)
        what = f"{server.model} in {server.weights} by {server.engine} on {server.accelerator}"
        raise SpecError(f"holds no launch of {what}", field="--recipe", value=recipe, choices=held)
    told: dict[str, Any] = {}
    said: list[str] = []
    for name, (field, option) in _TOLD.items():
        value = found.values.get(name)
        if value in _SILENT or getattr(asked.settings, field) not in _SILENT:
            continue
        # a limit is that of all ranks together, as of rows
        told[field] = -(-value // server.dp) if name == "running_limit" else value
        said.append(f"{option} {told[field]}")
    kv = found.values.get("kv") if asked.kv is None else None
    said += [f"--kv {kv}"] if kv else []
    if found.values.get("graphs") is False and asked.settings.graphs:
        told["graphs"] = False
        said.append("--eager")
    return asked.but(settings=replace(asked.settings, **told), kv=kv or asked.kv,
                     assumed=(*asked.assumed, *_words(recipe, found, said)))  # fmt: skip


def _server(asked: Asked) -> Server:
    """The server as launches are looked up by it."""
    part = asked.machine.accelerator
    stored = asked.checkpoint
    parts = asked.machine.count
    return Server(
        engine=asked.engine,
        model=asked.model.name,
        weights=stored.formats.get("routed_experts") or stored.default,
        accelerator=part.name,
        silicon=(part.compute_capability or "").partition(".")[0],
        concurrency=float(asked.users[-1]),
        input_tokens=float(asked.input_tokens),
        output_tokens=float(asked.output_tokens),
        tp=asked.tp or max(parts // ((asked.pp or 1) * (asked.dp or 1) * (asked.replicas or 1)), 1),
        pp=asked.pp or 1,
        dp=asked.dp or 1,
        ep=asked.ep or 1,
        version=asked.engine_version or "",
        release=asked.release or (),
        draft_tokens=asked.mtp,
    )


def _words(recipe: str, found: Launched, said: list[str]) -> list[str]:
    """What the answer says of the recipe."""
    lines = [f"recipe {recipe}: {', '.join(said) or 'the defaults of the engine'} ({found.source})"]
    open_ = [_TOLD[name][1] for name in _TOLD if name in found.open] + ["--kv"] * ("kv" in found.open)
    if open_:
        lines.append(f"recipe {recipe} leaves open: {', '.join(open_)}; the defaults of the engine are taken")
    return lines
