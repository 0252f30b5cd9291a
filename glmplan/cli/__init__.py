"""Define the command line.

Each command parses its options, calls the library once and prints. A command is imported when it is used.
"""

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
    "fit": ("glmplan.cli.fit", "Plan a model on a machine: memory, speed, safe concurrency, limiting resource."),
    "predict": ("glmplan.cli.predict", "Predict every row of a table of runs."),
    "models": ("glmplan.cli.models", "List, show, check and import models."),
    "hardware": ("glmplan.cli.hardware", "List, show, check, import, probe and draw hardware."),
    "walls": ("glmplan.cli.walls", "List limitations of an engine for a model on a machine, with workarounds."),
    "runs": ("glmplan.cli.runs", "Import other tools' benchmark results and engines' startup logs."),
    "calibrate": ("glmplan.cli.calibrate", "Refit everything, or update the fit with your own runs."),
    "backtest": ("glmplan.cli.backtest", "Report prediction errors on runs that were held out of the fit."),
    "reproduce": ("glmplan.cli.reproduce", "Compare a measured run with its prediction and explain the difference."),
    "simulate": ("glmplan.cli.simulate", "Simulate a service under traffic: latencies, throughput, batch, KV cache."),
    "safe": ("glmplan.cli.safe", "Find the highest concurrency and request rate that meet an SLO."),
    "sweep": ("glmplan.cli.sweep", "Predict all combinations of models, machines, formats, layouts and loads."),
    "size": ("glmplan.cli.size", "Find the cheapest machines to buy or rent for a model, a load and an SLO."),
    "report": ("glmplan.cli.report", "Write a decision report: answer, plots, options, risks, sources, checks."),
    "compare": ("glmplan.cli.compare", "Compare plans: each difference and its cause."),
    "sensitivity": ("glmplan.cli.sensitivity", "Rank assumptions by their effect on a result."),
    "hybrid": ("glmplan.cli.hybrid", "Find the cheapest mix of machines and APIs for classes of requests."),
    "sheet": ("glmplan.cli.sheet", "Write plans as workbooks, and predictions into quote sheets."),
    "serve": ("glmplan.cli.serve", "Serve the commands over HTTP, with a web page."),
    "site": ("glmplan.cli.site", "Write the web page with stored answers, for any static host."),
    "mcp": ("glmplan.cli.mcp", "Answer assistants over the Model Context Protocol."),
    "validate": ("glmplan.cli.validate", "Measure a live server step by step and compare it with the prediction."),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    `arguments`: Arguments after `glmplan`; those of the process by default.
    """
    # imports allocate many objects and no garbage: collecting at the usual rate costs a tenth of an answer
    gc.set_threshold(50_000, 20, 20)
    # the process end frees all memory: a final collection costs another tenth
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    # records of this package use no plugins: the search for them reads the metadata of every installed package
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from glmplan.cli.run import run

    words: list[Any] = list(sys.argv[1:] if arguments is None else arguments)
    run(words, COMMANDS, importlib.import_module)
