"""The command line: each command parses, calls the library once and prints. Commands are imported only when used."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from typing import Any

__all__ = ["COMMANDS", "main"]

#: command name → (module, one line of help). A module holds either `command` (a function) or `app` (a typer group).
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("glmplan.cli.fit", "Does a model fit a machine, how fast, for how many users, and what binds."),
    "predict": ("glmplan.cli.predict", "Predict every row of a table of runs."),
    "models": ("glmplan.cli.models", "List, show, check and import models."),
    "hardware": ("glmplan.cli.hardware", "List, show, check, import, probe and draw hardware."),
    "walls": ("glmplan.cli.walls", "What an engine cannot do with a model on a machine, and what to do."),
    "runs": ("glmplan.cli.runs", "Import other tools' benchmark results and engines' startup logs."),
    "calibrate": ("glmplan.cli.calibrate", "Refit everything, or update the fit with your own runs."),
    "backtest": ("glmplan.cli.backtest", "How right the predictions are, on runs that the fit has not seen."),
    "reproduce": ("glmplan.cli.reproduce", "Is a measured run what is predicted, and what explains the difference."),
    "simulate": ("glmplan.cli.simulate", "What users see under traffic: latencies, throughput, batch, KV cache."),
    "safe": ("glmplan.cli.safe", "The most users and the highest rate that keep a promise, and what breaks first."),
    "sweep": ("glmplan.cli.sweep", "Every combination of models, machines, formats, layouts and loads, as one table."),
    "size": ("glmplan.cli.size", "What to buy or rent for a model, a load and a promise, by cost and probability."),
    "report": ("glmplan.cli.report", "One file for a decision: answer, plots, options, risks, sources, how to check."),
    "compare": ("glmplan.cli.compare", "Plans side by side, difference by difference, and what causes each."),
    "sensitivity": ("glmplan.cli.sensitivity", "What moves an answer, and how to know it better."),
    "hybrid": ("glmplan.cli.hybrid", "The cheapest mix of machines and APIs for classes of requests."),
    "sheet": ("glmplan.cli.sheet", "Plans as workbooks, and figures in the columns of quote sheets."),
    "serve": ("glmplan.cli.serve", "The same questions over HTTP, and a page for people."),
    "validate": ("glmplan.cli.validate", "Measure a live server step by step and compare it with the prediction."),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    `arguments`: The words after `glmplan`; taken from the process by default.
    """
    # imports make many objects and no rubbish: looking for some as often as usual costs a tenth of an answer
    gc.set_threshold(50_000, 20, 20)
    # nor is anything looked for when the process ends, which gives everything back: another tenth
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    # records of this package want no plugins: looking for some reads the metadata of every installed package
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from glmplan.cli.run import run

    words: list[Any] = list(sys.argv[1:] if arguments is None else arguments)
    run(words, COMMANDS, importlib.import_module)
