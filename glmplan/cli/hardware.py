"""Define `glmplan hardware`: accelerators and hosts."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.cli import screen as forms
from glmplan.cli.screen import RecordForm, say, width

app = typer.Typer(help="List, show, check, import, probe and draw hardware.", no_args_is_help=True)


class Kind(StrEnum):
    """Kind of catalogue entries."""

    all = "all"
    accelerators = "accelerators"
    hosts = "hosts"


class Picture(StrEnum):
    """Format of a drawing."""

    text = "text"
    svg = "svg"
    png = "png"


@app.command("list")
def list_hardware(
    kind: Annotated[Kind, typer.Argument(help="Kind of entries to list.")] = Kind.all,
    form: o.EntryForm = RecordForm.text,
) -> None:
    """List accelerators and hosts of the catalogue."""
    from glmplan.present.hardware_page import accelerator_rows, host_rows, list_text

    accelerators = accelerator_rows() if kind is not Kind.hosts else []
    hosts = host_rows() if kind is not Kind.accelerators else []
    if form is RecordForm.json:
        say(json.dumps({"accelerators": accelerators, "hosts": hosts}, indent=2))
    else:
        say(list_text(accelerators, hosts))


@app.command("show")
def show_hardware(
    name: Annotated[str, typer.Argument(help="An accelerator, a host, NxACCELERATOR or a TOML file.")],
    form: o.EntryForm = RecordForm.text,
) -> None:
    """Show the values, sources, contradictions and unknowns of a record."""
    from glmplan.present.hardware_page import resolve_hardware

    _print(resolve_hardware(name), form)


def _print(record: Any, form: RecordForm) -> None:
    from glmplan.io.machines.resolve import record_toml
    from glmplan.present.hardware_page import record_text

    if form is RecordForm.toml:
        say(record_toml(record), end="")
    elif form is RecordForm.json:
        say(json.dumps(record.model_dump(mode="json", exclude_none=True), indent=2))
    else:
        say(record_text(record))


@app.command("prices")
def list_prices(
    name: Annotated[str, typer.Argument(help="An accelerator, a machine, a model, electricity or colocation.")],
    form: o.Format = forms.Form.text,
    today: o.Today = None,
) -> None:
    """List published prices side by side, with the contents of each."""
    from glmplan.cli.options import day_of
    from glmplan.present.hardware_page import price_list_text, price_rows, prices_of

    found, day = prices_of(name), day_of(today)
    if form is forms.Form.text:
        say(price_list_text(found, today=day, wide=width()))
        return
    import pandas as pd

    from glmplan.cli.screen import frame_text

    say(frame_text(pd.DataFrame(price_rows(found, today=day)), form), end="")


@app.command("check")
def check_file(
    file: Annotated[Path, typer.Argument(help="A TOML file of an accelerator or a host.")],
) -> None:
    """Check a file of an accelerator or a host."""
    from glmplan.errors import SpecError
    from glmplan.present.hardware_page import check_notes, resolve_hardware

    if file.suffix != ".toml":
        raise SpecError("is not a TOML file", value=str(file))
    record = resolve_hardware(str(file))
    for line in check_notes(record):
        say(f"note: {line}")
    say(f"{file}: {record.name}: no mistakes found")


@app.command("import")
def import_dumps(
    files: Annotated[list[Path], typer.Argument(help="Dumps of one machine: nvidia-smi, lspci, lscpu, numactl, …")],
    name: Annotated[str, typer.Option(help="Name of the host.")] = "imported",
    accelerator: Annotated[str | None, typer.Option(help="Accelerator of the host, if no dump names it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the host here as TOML.")] = None,
    form: o.EntryFileForm = RecordForm.toml,
) -> None:
    """Merge dumps of one machine into a host.

    Assumptions and unknown facts go to the error stream.
    """
    from glmplan.io.machines.dump_kinds import read_dumps
    from glmplan.io.machines.dump_merge import host_from_dumps

    dumps = [dump for file in files for dump in read_dumps(file)]
    for dump in dumps:
        say(f"{dump.file}: {dump.tool}", err=True)
    if accelerator is not None:
        from glmplan.catalog.entries.accelerators import load_accelerator

        accelerator = load_accelerator(accelerator).name
    host = host_from_dumps(dumps, name=out.stem if out and name == "imported" else name, accelerator=accelerator)
    _hand_over(host, out, form)


def _hand_over(record: Any, out: Path | None, form: RecordForm) -> None:
    """Write a record to a file, or print it in the given format."""
    from glmplan.catalog.files import write_atomically
    from glmplan.io.machines.resolve import record_toml

    for line in getattr(record, "assumptions", ()):
        say(f"assumed: {line}", err=True)
    for line in getattr(record, "unknown", ()):
        say(f"unknown: {line}", err=True)
    if out is not None:
        write_atomically(out, record_toml(record))
        say(str(out))
    else:
        _print(record, form)


@app.command("probe")
def probe(
    name: Annotated[str, typer.Option(help="Name of the host.")] = "this-machine",
    out: Annotated[Path | None, typer.Option(help="Write the host here as TOML, and its CPU beside it.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each measurement of a CPU.")] = 1.0,
    form: o.EntryFileForm = RecordForm.toml,
) -> None:
    """Describe this machine; measure its CPU if it has no accelerator."""
    from glmplan.catalog.files import write_atomically
    from glmplan.io.machines.resolve import record_toml
    from glmplan.io.machines.this_machine import probe_machine

    found = probe_machine(
        name=out.stem if out else name, seconds=seconds, progress=lambda line: say(f"{line} …", err=True)
    )
    if found.part is not None:
        if out is not None:
            write_atomically(out.with_name(f"{found.part.name}.toml"), record_toml(found.part))
            say(str(out.with_name(f"{found.part.name}.toml")))
        elif form is RecordForm.toml:
            say(f"# {found.part.name}.toml\n{record_toml(found.part)}\n# {found.host.name}.toml")
    _hand_over(found.host, out, form)


@app.command("draw")
def draw(
    name: Annotated[str, typer.Argument(help="A host, NxACCELERATOR or a TOML file.")],
    tp: Annotated[int, typer.Option(min=0, help="Draw a plan with this tensor-parallel size.")] = 0,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages of the plan.")] = 1,
    form: Annotated[
        Picture | None, typer.Option("--format", help="Format of the drawing; by the ending of --out, else text.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the drawing here.")] = None,
) -> None:
    """Draw a host and its links, and optionally a plan on it.

    A plan adds its placement, transfers and link loads.
    """
    from glmplan.catalog.entries.hosts import load_machine
    from glmplan.catalog.files import write_atomically
    from glmplan.costs.network.topology import place
    from glmplan.errors import SpecError
    from glmplan.present.charts import standalone
    from glmplan.present.host_drawing import draw_svg, draw_text, svg_to_png

    host = load_machine(name)
    placement = place(host, tp=tp or 1, pp=pp) if tp or pp > 1 else None
    ending = {".svg": Picture.svg, ".png": Picture.png}.get(out.suffix.lower()) if out is not None else None
    if form is not None and ending is not None and form is not ending:
        raise SpecError(f"ends in another format than --format {form.value}", field="--out", value=str(out))
    form = form or ending or Picture.text
    if form is Picture.png and out is None:
        raise SpecError("must be given for a picture", field="--out")
    drawing = draw_text(host, placement) + "\n" if form is Picture.text else standalone(draw_svg(host, placement))
    if out is None:
        say(drawing, end="")
    else:
        write_atomically(out, svg_to_png(drawing) if form is Picture.png else drawing)
        say(str(out))
