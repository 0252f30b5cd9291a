"""Define `glmplan sweep`: all combinations, or own machines, as one table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, frame_text, joined, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from glmplan.purchase.axes import Sweep
    from glmplan.purchase.money import Money
    from glmplan.purchase.sweep import Swept

__all__ = ["OutputOptions", "SimulationOptions", "command"]


def _axis(words: str, *names: str) -> Any:
    return Annotated[list[str] | None, typer.Option(*names, help=words)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """Simulated loads instead of predicted ones."""

    traffic: _axis("Kinds of traffic, as in simulate: all loads are simulated.") = None  # type: ignore[valid-type]
    slo: o.OptionalSlo = None
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of each simulated load; as in simulate by default.")
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of simulated loads; 0 by default.")] = None
    shape: Annotated[o.Given, o.traffic("sweep")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Output of a sweep."""

    out: Annotated[Path | None, typer.Option(help="Table to write: .csv, .parquet or .json.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped sweep to the same file.")] = False
    frontier: _axis("Objectives of the Pareto frontier, with commas.") = None  # type: ignore[valid-type]
    plot: Annotated[Path | None, typer.Option(help="Chart of the frontier: .html, .png or .svg.")] = None
    exact: Annotated[bool, typer.Option("--exact", help="Compute every step instead of interpolating step tables.")] = (
        False
    )
    most: Annotated[int | None, typer.Option(min=1, help="Largest number of points.")] = None
    cluster: Annotated[
        str | None, typer.Option(help="Dask cluster that computes: local, local:WORKERS or tcp://HOST:PORT.")
    ] = None
    alone: Annotated[bool, typer.Option("--or-alone", help="Compute here if the cluster cannot be reached.")] = False
    inventory: o.Inventory = None
    form: o.Format = Form.text


@o.with_options()
def command(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with the axes as lists.")] = None,
    *,
    axes: Annotated[o.Given, o.plan_axes()],
    arriving: SimulationOptions = SimulationOptions(),
    money: o.MoneyOptions = o.MoneyOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Predict all combinations, with intervals and costs.

    Infeasible points keep their reason. List options take commas and may be repeated. Ctrl-C keeps finished points
    beside the file of --out; --resume continues. --inventory assigns own machines to models.
    """
    if output.inventory is not None:
        _inventory(output, axes | o.given(arriving), file, money)
        return
    from glmplan.cli.options import read_money
    from glmplan.errors import SpecError
    from glmplan.purchase.axes import read_sweep
    from glmplan.purchase.frontier import check_objectives
    from glmplan.purchase.sweep import check_table

    sweep = read_sweep(joined(axes | o.given(arriving)), file=file, most=output.most)
    if sweep.simulation is not None and output.exact:
        raise SpecError("is about predicted loads: simulated ones are timed step by step", field="--exact")
    paid = read_money(money)
    if output.out is not None:
        check_table(output.out)
    if output.frontier:
        check_objectives(_objectives(output.frontier))
    if output.plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(output.plot)
    if output.cluster is not None and not output.alone:
        from glmplan.extras import check_extra

        check_extra("distributed", field="--cluster")
    found = _computed(sweep, paid, money, output)
    columns = found.columns()
    if output.out is not None:
        from glmplan.purchase.sweep import write_table

        write_table(columns, output.out)
    _show(columns, found, paid, output)


def _inventory(output: OutputOptions, said: dict[str, Any], file: Path | None, money: o.MoneyOptions) -> None:
    """Print which of the own machines serves which model best."""
    from glmplan.cli.options import read_money
    from glmplan.cli.screen import bar
    from glmplan.errors import SpecError
    from glmplan.present.sweep_text import inventory_record, inventory_text
    from glmplan.purchase.inventory import assigned, pairs_of, read_inventory
    from glmplan.request.option import options_of, spelled
    from glmplan.request.plan import PlanRequest

    known, options = options_of(PlanRequest), {}
    for name, values in joined(said).items():
        if name in ("model", "on", "users", "power_limit") or name not in known or "," in str(values):
            raise SpecError("is given with --inventory, whose file holds machines, models and users; other options "
                            "of a plan take one value", field=spelled(name), value=values)  # fmt: skip
        options[name] = known[name].read(values, spelled(name))
    if file is not None or output.out is not None or output.plot is not None:
        field = "FILE" if file is not None else "--out" if output.out is not None else "--plot"
        raise SpecError("is given with --inventory: use --format csv or json", field=field)
    own = read_inventory(str(output.inventory), options)
    with bar("pairs") as progress:
        pairs = pairs_of(own, read_money(money), progress)
    record = inventory_record(own, pairs, assigned(own, pairs))
    if output.form is Form.json:
        say(json.dumps(record, indent=2))
    elif output.form is Form.text:
        say(inventory_text(record))
    else:
        from glmplan.present.tables import csv_table, markdown_rows

        rows = record["pairs"]
        say(csv_table(rows) if output.form is Form.csv else markdown_rows(rows) + "\n", end="")


def _computed(sweep: Sweep, paid: Money, money: o.MoneyOptions, output: OutputOptions) -> Swept:
    from glmplan.cli.screen import bar
    from glmplan.errors import SpecError
    from glmplan.purchase.sweep import Checkpoints, Swept

    words = {"price": money.price, "term": money.term, "region": money.region, "exact": output.exact}
    words |= {"rent_term": money.rent_term} if money.rent_term is not None else {}
    words |= {"kinds": list(paid.kinds)} if len(paid.kinds) == 1 else {}
    kept = Checkpoints(output.out, sweep, words) if output.out is not None else None
    if output.resume and kept is None:
        raise SpecError("needs --out, the file of the sweep that was stopped", field="--resume")
    done = kept.read() if kept is not None and output.resume else []
    if kept is not None and not done:
        kept.start()
    reached = {one.number: one for one in done}

    def keep(block: Any) -> None:
        reached[block.number] = block
        if kept is not None:
            kept.keep(block)

    try:
        with bar("combinations") as progress:
            found = _run(sweep, paid, output, done=done, progress=progress, keep=keep)
    except KeyboardInterrupt:
        found = Swept(sweep, tuple(reached[number] for number in sorted(reached)))
        left = f"{len(reached)} of {sweep.structures} combinations are done"
        after = f"; go on with --resume --out {output.out}" if kept is not None else ""
        say(f"interrupted: {left}{after}", err=True)
        raise
    if kept is not None:
        kept.close()
    return found


def _run(sweep: Sweep, paid: Money, output: OutputOptions, **hooks: Any) -> Swept:
    from glmplan.purchase.sweep import swept

    if output.cluster is None:
        return swept(sweep, money=paid, exact=output.exact, **hooks)
    from glmplan.errors import SpecError
    from glmplan.purchase.cluster import blocks_on

    try:
        return swept(sweep, money=paid, exact=output.exact, blocks=blocks_on(output.cluster), **hooks)
    except SpecError as error:
        if not output.alone:
            raise
        say(f"{error}; computing here, because of --or-alone", err=True)
        return swept(sweep, money=paid, exact=output.exact, **hooks)


def _show(columns: Mapping[str, Any], found: Swept, paid: Money, output: OutputOptions) -> None:
    import numpy as np

    from glmplan.present.sweep_text import sweep_text
    from glmplan.purchase.frontier import OBJECTIVE_LABELS, OBJECTIVES, frontier
    from glmplan.purchase.sweep import rows_of

    measures = {
        name: np.where(found.possible, np.asarray(rows_of(columns[name]), dtype=float), np.nan)
        for name in columns
        if name in OBJECTIVES
    }
    names = _objectives(output.frontier) if output.frontier else _usual(measures)
    labels = ", ".join(OBJECTIVE_LABELS.get(name, name) for name in names)
    best = frontier(measures, names)
    if output.plot is not None:
        from glmplan.present.charts import sweep_chart, write_chart

        frame = found.to_frame()
        of = ", ".join(dict.fromkeys(frame["model"])) if "model" in frame else "a model"
        title = f"Speed of {of} in a sweep" if best.any() else "No point of this sweep is feasible"
        told = f"Circles: Pareto-optimal ({labels}); bands: 90 % prediction intervals." if best.any() else ""
        write_chart(sweep_chart(frame, best, title=told or title), output.plot, title=title, told=told)
    if output.form is not Form.text:
        say(frame_text(found.to_frame(), output.form), end="")
        return
    say(sweep_text(columns, found, best, names, paid.terms.notes))
    if output.out is not None:
        say(f"all points: {output.out}")


def _objectives(words: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for word in ",".join(words).split(",") if word.strip())


def _usual(measures: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return the default objectives of the Pareto frontier.

    They are speed per user, total throughput, and monthly cost if any is known.
    """
    known = measures.get("usd_month")
    # NaN differs from itself
    money = ("usd_month",) if known is not None and (known == known).any() else ()
    return ("user_tokens_per_s", "output_tokens_per_s", *money)
