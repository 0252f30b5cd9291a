"""Define `glmplan predict`: predict every row of a table of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

__all__ = ["command"]


@o.with_options()
def command(
    runs: Annotated[Path, typer.Option(help="Table of runs, CSV in the column form of calibration/measurements.")],
    out: Annotated[Path | None, typer.Option(help="File to write; printed if left out.")] = None,
    *,
    plan: Annotated[o.Given, o.plan("predict")],
    form: o.Format = Form.csv,
) -> None:
    """Predict every row of a table of runs.

    The output has one row per `id`: TTFT, TPOT, throughput, prefill speed, KV pool and weights, each with its 90 %
    interval. Further columns give the evidence, conditions outside the calibrated domain, and the error of a row
    without a prediction.
    """
    from glmplan.catalog.files import write_atomically
    from glmplan.cli.screen import bar, frame_text, read_table
    from glmplan.prediction.step_models import site_calibration
    from glmplan.prediction.table import predict_runs, rows_as_frame

    table = read_table(runs)
    with site_calibration(plan.get("calibration")), bar("predicting") as progress:
        rows = predict_runs(table, progress=progress)
    text = frame_text(rows_as_frame(rows), form)
    if out is None:
        say(text, end="")
        return
    write_atomically(out, text)
    unanswered = sum(1 for row in rows if row.error)
    say(f"{len(rows)} rows, {unanswered} without an answer (see the column `error`): {out}", err=True)
