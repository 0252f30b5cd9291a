"""What a named recipe or campaign set at its start, told to a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.catalogue.names import engine_release
from glmplan.facts.schema.accelerator import Accelerator
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.prediction.settings import Settings
from glmplan.readers.runs.settings import Asked as Server
from glmplan.readers.runs.settings import Launched, launched, recipe_models

__all__ = ["launch_asked", "recipe_settings"]

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
    version: str | None, draft_tokens: int,
) -> Server:  # fmt: skip
    """Return the server of a plan as launches are looked up by it.

    Parameters
    ----------
    names : (str, ModelSpec, Checkpoint, Accelerator)
        Engine, model, how its weights are stored, part.
    degrees : dict of str to int
        ``tp``, ``pp``, ``dp`` and ``ep``, [-]
    load : (float, float, float)
        Requests in flight [-], prompt and answer [token]
    version : str or None
        Version of the engine.
    draft_tokens : int
        Drafted tokens of a step, [token]

    Returns
    -------
    Server
        What is asked for.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model, degrees = load_model("gpt-oss-120b"), {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
    >>> names = ("vllm", model, model.checkpoint("mxfp4"), load_accelerator("b200-sxm"))
    >>> launch_asked(names, degrees, (64, 1024, 1024), None, 0).weights
    'mxfp4'
    """
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

    Parameters
    ----------
    recipe : str
        A campaign or collection of recipes, as a row names it: ``vllm-recipes`` or ``vllm-recipes: single_node_tp``.
    server : glmplan.readers.runs.settings.Asked
        The server that is planned, as launches are looked up.
    settings : Settings
        What the question tells the engine, which goes before the recipe.
    kv : str or None
        Format of the cache that was asked for.

    Returns
    -------
    Settings, str or None, tuple of str
        The settings, the format of the cache, and what was taken and what the recipe leaves open, in words.

    Raises
    ------
    SpecError
        If no such recipe is known, or it holds no launch of the model in this format by this engine on this part.

    Notes
    -----
    Not modelled: a recipe whose settings differ between the layouts that a plan compares; how it polls and gathers.

    Examples
    --------
    >>> server = Server("vllm", "gpt-oss-120b", "mxfp4", accelerator="b200-sxm", concurrency=64, input_tokens=1024,
    ...                 output_tokens=1024)
    >>> found, kv, words = recipe_settings("inferencex", server, Settings(), None)
    >>> kv, found.memory_fraction
    ('fp8', 0.9)
    """
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
