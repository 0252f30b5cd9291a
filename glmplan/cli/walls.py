"""Define `glmplan walls`: limitations of an engine for a deployment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say
from glmplan.io.json_names import LIMITATIONS_SCHEMA

if TYPE_CHECKING:
    from glmplan.catalog.schema.engine import Wall

__all__ = ["ShownOptions", "UseOptions", "command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UseOptions:
    """Concurrency and switches of the deployment."""

    users: Annotated[int | None, typer.Option(min=1, help="Concurrency.")] = None
    eager: Annotated[bool | None, typer.Option("--eager/--graphs", help="Without or with CUDA graphs.")] = None
    options: Annotated[
        list[str] | None, typer.Option("--with", help="Enabled option or patch, such as sm120-sparse-mla.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOptions:
    """Output of the list."""

    certain: Annotated[
        bool, typer.Option("--certain", help="Leave out limitations that depend on options not given.")
    ] = False
    form: o.Format = Form.text


@o.with_options()
def command(
    model: o.RequiredModel,
    on: o.RequiredOn,
    *,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, llama.cpp, ktransformers or mlx.")] = "vllm",
    layout: Annotated[o.Given, o.plan("walls")],
    use: UseOptions,
    shown: ShownOptions,
) -> None:
    """List limitations of an engine for a model on a machine.

    Each has its effect, the fallback of the engine and a workaround.
    """
    from glmplan.catalog.engines.limitations import called_engine, conditions_of, load_engine, possible_walls, walls_for
    from glmplan.catalog.engines.recipes import known_version
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.costs.blocks.stack import model_features

    engine = called_engine(engine) or engine
    # the release that `fit` plans
    version = layout.get("engine_version")
    version = (None if version is None else known_version(engine, version)) or load_engine(engine).newest
    spec, named = _model(model)
    plan = conditions_of(
        load_machine(on),
        spec,
        engine=engine,
        features=model_features(spec),
        options=frozenset(use.options or ()),
        **{"weights": named} | layout | {"engine_version": version},
        users=use.users,
        graphs=None if use.eager is None else not use.eager,
    )
    rows = [_row(wall, "stands") for wall in (*_split(model, on, engine, version, layout), *walls_for(plan))]
    rows += [] if shown.certain else [_row(wall, "possible") for wall in possible_walls(plan)]
    _show(rows, shown.form, f"{model} on {on}, {engine} {version or ''}".rstrip())


def _split(model: str, on: str, engine: str, version: str | None, layout: o.Given) -> list[Wall]:
    """Return the limitation of degrees that split quantisation blocks."""
    from glmplan.catalog.engines.limitations import load_engine
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.costs.memory.shards import Server, split_block
    from glmplan.io.models.resolve import resolve_model
    from glmplan.planner.capacity import wall_of_split

    chosen = resolve_model(model)
    tp, pp, dp, ep, dcp = (layout.get(name, 1) for name in ("tp", "pp", "dp", "ep", "dcp"))
    part = load_accelerator(load_machine(on).accelerator)
    server = Server.on(part, engine, version or load_engine(engine).newest)
    found = split_block(chosen.model, chosen.checkpoint, server, (tp, dp, ep))
    if found is None or (found.loads and not found.slower):
        return []
    do = "deal whole experts (--ep), or lower --tp: glmplan fit names a layout that loads"
    return [wall_of_split(found, engine, (tp, pp, dp, ep, dcp), do)]


def _model(text: str) -> tuple[Any, str | None]:
    """Return model and weight format of MODEL, such as ``glm-5.1-nvfp4``."""
    from glmplan.catalog.entries.models import load_model
    from glmplan.catalog.formats import WEIGHT_FORMATS
    from glmplan.errors import UnknownName

    try:
        return load_model(text), None
    except UnknownName:
        for name in sorted(WEIGHT_FORMATS, key=len, reverse=True):
            if text.lower().endswith(f"-{name}"):
                return load_model(text[: -len(name) - 1]), name
        raise


def _row(wall: Wall, verdict: str) -> dict[str, Any]:
    row = wall.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"when", "measured"})
    costs = [
        f"{cost.what}: {cost.behind_wall}" + (f" instead of {cost.free}" if cost.free else "") for cost in wall.measured
    ]
    return {"verdict": verdict, **row, "cost": "; ".join(costs)}


def _show(rows: list[dict[str, Any]], form: Form, title: str) -> None:
    from glmplan.present.tables import limitations_csv, limitations_markdown, limitations_text

    if form is Form.json:
        content = {"schema": LIMITATIONS_SCHEMA, "plan": title, "limitations": rows}
        say(json.dumps(content, indent=2, ensure_ascii=False))
    elif form is Form.csv:
        say(limitations_csv(rows), end="")
    else:
        say(limitations_markdown(rows) if form is Form.md else limitations_text(rows, title), end="")
