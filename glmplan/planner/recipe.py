"""Settings of a recorded launch for a plan request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glmplan.catalog.entries.names import engine_release
from glmplan.errors import SpecError
from glmplan.prediction.deployment import Settings

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator
    from glmplan.catalog.schema.model import Checkpoint, ModelSpec
    from glmplan.io.runs.settings import Asked as Server
    from glmplan.io.runs.settings import Launched
    from glmplan.units import TokenCount

__all__ = ["launch_asked", "recipe_settings"]


#: setting of a recorded launch → field of the settings, and printed option
_FROM_RECIPE = {
    "fraction": ("memory_fraction", "--memory-fraction"),
    "running_limit": ("max_num_seqs", "--max-num-seqs"),
    "budget": ("max_num_batched_tokens", "--max-num-batched-tokens"),
    "attention_backend": ("attention_backend", "--attention-backend"),
    "expert_kernels": ("expert_kernels", "expert kernels"),
}
#: values of an unset setting
_UNSET = (None, "", 0, False)


def launch_asked(
    names: tuple[str, ModelSpec, Checkpoint, Accelerator], degrees: dict[str, int], load: tuple[float, float, float],
    version: str | None, draft_tokens: TokenCount,
) -> Server:  # fmt: skip
    """Return the server of a plan as the key for recorded launches.

    - `names`: Engine, model, checkpoint, accelerator.
    - `load`: Concurrency [-], prompt and answer [token].

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
    """Return settings, KV format and notes with a recipe applied.

    Explicit options of the request override the recipe.

    - `recipe`: A benchmark campaign or collection of recipes: ``vllm-recipes`` or ``vllm-recipes: single_node_tp``.
    - `server`: Key of the launch, see `launch_asked`.

    Notes
    -----
    Not modelled: a recipe whose settings differ between the layouts that a plan compares; its polling options.

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
        raise SpecError(f"has no launch of {what}", field="--recipe", value=recipe, choices=held)
    fields_set: dict[str, Any] = {}
    options: list[str] = []
    for name, (field, option) in _FROM_RECIPE.items():
        value = found.values.get(name)
        if value in _UNSET or getattr(settings, field) not in _UNSET:
            continue
        # recorded limits are sums over all ranks
        fields_set[field] = -(-value // server.dp) if name == "running_limit" else value
        options.append(f"{option} {fields_set[field]}")
    recipe_kv = found.values.get("kv") if kv is None else None
    options += [f"--kv {recipe_kv}"] if recipe_kv else []
    if found.values.get("graphs") is False and settings.graphs:
        fields_set["graphs"] = False
        options.append("--eager")
    return replace(settings, **fields_set), recipe_kv or kv, tuple(_words(recipe, found, options))


def _words(recipe: str, found: Launched, options: list[str]) -> list[str]:
    """Return what a recipe sets and what it leaves open, as text."""
    lines = [f"recipe {recipe}: {', '.join(options) or 'engine defaults'} ({found.source})"]
    unset = [_FROM_RECIPE[name][1] for name in _FROM_RECIPE if name in found.open] + ["--kv"] * ("kv" in found.open)
    if unset:
        lines.append(f"not set by recipe {recipe}: {', '.join(unset)}; engine defaults apply")
    return lines
