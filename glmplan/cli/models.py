"""Define `glmplan models`: list, show, check and import models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from glmplan.cli.options import AnyModel, EntryFileForm, EntryForm
from glmplan.cli.screen import RecordForm, say

__all__ = ["app", "check_file", "import_model", "list_models", "show_model"]

app = typer.Typer(help="List, show, check and import models.", no_args_is_help=True)


@app.command("list")
def list_models(
    form: EntryForm = RecordForm.text,
) -> None:
    """List the models of the catalogue."""
    from glmplan.planner.ask import models

    rows = models().rows
    if form is RecordForm.json:
        say(json.dumps(rows, indent=2))
        return
    say(f"{'model':32} {'total B':>9} {'active B':>9} {'layers':>6} {'KV B/token':>10} {'context':>9}  checkpoints")
    for row in rows:
        names: Any = row["checkpoints"]
        shown = ", ".join(names[:4]) + (f" +{len(names) - 4}" if len(names) > 4 else "")
        say(
            f"{row['name']:32} {row['total_b']:9.2f} {row['active_b']:9.2f} {row['layers']:6} "
            f"{row['kv_bytes_per_token_bf16']:10,.0f} {row['max_context']:9}  {shown}"
        )


@app.command("show")
def show_model(
    name: AnyModel,
    form: EntryForm = RecordForm.text,
) -> None:
    """Show parameters, cache and checkpoints, computed and published."""
    from glmplan.io.models.resolve import resolve_model

    _print(resolve_model(name), form)


def _print(choice: Any, form: RecordForm) -> None:
    from glmplan.io.models.resolve import model_toml
    from glmplan.present.model_page import model_facts, model_text

    if form is RecordForm.toml:
        say(model_toml(choice.model), end="")
    elif form is RecordForm.json:
        say(json.dumps(model_facts(choice), indent=2))
    else:
        say(model_text(choice))


@app.command("check")
def check_file(
    file: Annotated[Path, typer.Argument(help="A model file in TOML, or a config.json, folder or .gguf file.")],
) -> None:
    """Check fields, layers, checkpoints and totals of a model file."""
    from glmplan.io.models.resolve import resolve_model
    from glmplan.present.model_page import disagreements_of

    # a bare name is a file here, not a catalogue name
    choice = resolve_model(str(file if file.is_absolute() else Path.cwd() / file))
    for line in disagreements_of(choice):
        say(f"note: {line}")
    say(f"{file}: {choice.model.name} is a model of {len(choice.model.layer_names)} layers; no mistakes found")


@app.command("import")
def import_model(
    path: Annotated[Path, typer.Argument(help="config.json, a folder with one, a safetensors index, or a .gguf file.")],
    name: Annotated[str | None, typer.Option(help="Name of the model; from the file by default.")] = None,
    size: Annotated[str | None, typer.Option(help="Size of the repository's weights, such as 421.5GB.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model here as TOML.")] = None,
    form: EntryFileForm = RecordForm.toml,
) -> None:
    """Import a model from Hugging Face or GGUF files."""
    from dataclasses import replace

    from glmplan.catalog.files import write_atomically
    from glmplan.io.models.resolve import model_toml, resolve_model, with_size
    from glmplan.units import parse_quantity

    choice = resolve_model(str(path if path.is_absolute() else Path.cwd() / path))
    if size is not None:
        choice = with_size(choice, parse_quantity(size, "bytes"))
    if name is not None:
        choice = replace(choice, model=choice.model.model_copy(update={"name": name}))
    for note in choice.notes:
        say(f"note: {note}", err=True)
    if out is not None:
        write_atomically(out, model_toml(choice.model))
        say(str(out))
    else:
        _print(choice, form)
