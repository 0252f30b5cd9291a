"""Define `glmplan reproduce`: compare a run with its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli.screen import say

if TYPE_CHECKING:
    from glmplan.io.runs.record import Run
    from glmplan.prediction.reproduce import Reproduction

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(help="Id of a run: of the shipped measurements, or of the table in --runs.")],
    runs: Annotated[
        Path | None, typer.Option(help="Table of runs, CSV in the column form of the measurements.")
    ] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option("--set", help="Other values of the run, as column=value: --set host=machine.toml."),
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="Calibration of your site, from `calibrate --from`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a measured run with its prediction and explain differences.

    The run is reproduced (within 10 %), different (over 20 %), or in between. A difference is positive if the
    prediction is too high. Conditions that could explain the difference follow, the likeliest first. Each is predicted
    and scored by its likelihood ratio.
    """
    from glmplan.prediction.reproduce import reproduce
    from glmplan.prediction.step_models import site_calibration

    with site_calibration(calibration):
        found = reproduce(_with(_find(run, runs), facts or []))
    if as_json:
        import json

        say(json.dumps(_record(found), indent=2))
        return
    say(f"{found.run.id}: {found.verdict}")
    say(f"evidence: {found.basis}" + (f"; assumed {', '.join(found.assumed)}" if found.assumed else ""))
    if found.run.power_limit_w is not None:
        watts = f"{found.run.power_limit_w:g} W"
        say(f"not in the prediction: the power limit of {watts} (--power-limit of fit plans it where it was measured)")
    say("")
    for one in found.compared:
        figure = one.predicted
        say(
            f"  {one.column:32} measured {one.measured:10.4g}   predicted {figure.value:10.4g} "
            f"({figure.low:.4g} to {figure.high:.4g})   {100 * one.difference:+6.1f} %   {one.verdict}"
        )
    _say_population(found)
    if not found.explanations:
        if found.verdict != "reproduced":
            say("\nno single condition explains the measurement better")
        return
    say("\npossible causes, likeliest first (gain: likelihood ratio of the measured values):")
    import math

    for place, explanation in enumerate(found.explanations, 1):
        gain = math.exp(min(explanation.gain, 50.0))
        moved = ", ".join(f"{name} {value:.4g}" for name, value in explanation.figures.items())
        say(f"  {place}. {explanation.name} (gain {gain:.3g}): {explanation.what}")
        say(f"     then: {moved}")
        say(f"     check: {explanation.check}")


def _say_population(found: Reproduction) -> None:
    """Print where the run stands among runs of its configuration."""
    others = found.population
    if others is not None:
        apart = 100 * (others.own / others.median - 1)
        side = "above" if apart > 0 else "below"
        say(f"\nthis run is {abs(apart):.0f} % {side} the median speed of {len(others.runs)} runs of its configuration")
    if found.slow:
        than = "the 90 % interval" if others is None else "nine tenths of them"
        words = f"slow machine: slower than {than}"
    elif others is None and found.verdict == "different" and all(one.slower for one in found.compared):
        words = "slower than predicted, inside the interval"
    else:
        return
    say(("" if others is not None else "\n") + f"{words}; usual causes and their checks:")
    for cause, check in found.causes:
        say(f"  {cause}: {check}")


def _with(run: Run, pairs: list[str]) -> Run:
    """Return a run with other values in its columns."""
    from glmplan.io.runs.columns import column_value
    from glmplan.io.runs.ledger import known_names
    from glmplan.io.runs.table import run_from_row

    if not pairs:
        return run
    changed = {name: str(value) for name, value in map(column_value, pairs)}
    return known_names(run_from_row({**run.cells, **changed}))


def _find(name: str, table: Path | None) -> Run:
    from glmplan.errors import SpecError

    if table is not None:
        from glmplan.cli.screen import read_table

        rows = list(read_table(table))
    else:
        from glmplan.io.runs.ledger import load_measurements

        rows = load_measurements()
    found = next((one for one in rows if one.id == name), None)
    if found is None:
        raise SpecError("is not a run", field="RUN", value=name, choices=[one.id for one in rows])
    return found


def _record(found: Reproduction) -> dict[str, object]:
    return {
        "run": found.run.id,
        "verdict": found.verdict,
        "slow": found.slow,
        "basis": found.basis,
        "assumed": list(found.assumed),
        "population": None if found.population is None else {
            "runs": list(found.population.runs), "median": found.population.median, "low": found.population.low,
            "own": found.population.own, "slow": found.population.slow,
        },
        "figures": [
            {"figure": one.column, "measured": one.measured, "predicted": one.predicted.value,
             "low": one.predicted.low, "high": one.predicted.high, "difference": one.difference,
             "verdict": one.verdict}
            for one in found.compared
        ],
        "explanations": [
            {"name": one.name, "what": one.what, "log_gain": one.gain, "figures": one.figures, "check": one.check}
            for one in found.explanations
        ],
    }  # fmt: skip
