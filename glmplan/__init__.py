"""Plan and simulate the serving of large language models.

The names below suffice for programs and notebooks; other names are in their modules. Each name is imported on first
use, so `import glmplan` is cheap.

Examples
--------
>>> import glmplan
>>> answer = glmplan.fit("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", users=(1, 8), tp=2)
>>> answer.verdict
'fits'
>>> glmplan.load_model("glm-5.1").hidden
6144
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.hosts import load_host, load_machine
    from glmplan.catalog.entries.models import load_model
    from glmplan.errors import DoesNotFit, GlmplanError, Infeasible, SpecError, UnknownFact, UnknownName
    from glmplan.planner.ask import (
        Deployed,
        Listing,
        StepTimes,
        deployment,
        fit,
        hardware,
        kept,
        memory,
        models,
        predict,
        safe,
        simulate,
        step_time,
    )
    from glmplan.planner.make_plan import FitAnswer
    from glmplan.planner.pool import MemoryPlan
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load
    from glmplan.prediction.predict import Figure, Prediction
    from glmplan.prediction.table import predict_table
    from glmplan.present.answer_text import fit_text as fit_text
    from glmplan.present.outcome_text import outcome_text as outcome_text
    from glmplan.simulation.safe_load import Kept, SafeLoad
    from glmplan.simulation.simulate import Outcome

__all__ = [
    "Deployed",
    "Deployment",
    "DoesNotFit",
    "Figure",
    "FitAnswer",
    "GlmplanError",
    "Infeasible",
    "Kept",
    "Listing",
    "Load",
    "MemoryPlan",
    "Outcome",
    "Prediction",
    "SafeLoad",
    "SpecError",
    "StepTimes",
    "UnknownFact",
    "UnknownName",
    "deployment",
    "fit",
    "hardware",
    "kept",
    "load_accelerator",
    "load_host",
    "load_machine",
    "load_model",
    "memory",
    "models",
    "predict",
    "predict_table",
    "safe",
    "simulate",
    "step_time",
]

_PLACES = {
    "glmplan.errors": ("DoesNotFit", "GlmplanError", "Infeasible", "SpecError", "UnknownFact", "UnknownName"),
    "glmplan.catalog.entries.accelerators": ("load_accelerator",),
    "glmplan.catalog.entries.hosts": ("load_host", "load_machine"),
    "glmplan.catalog.entries.models": ("load_model",),
    "glmplan.planner.ask": (
        "Deployed", "Listing", "StepTimes", "deployment", "fit", "hardware", "kept", "memory", "models", "predict",
        "safe", "simulate", "step_time",
    ),
    "glmplan.planner.pool": ("MemoryPlan",),
    "glmplan.planner.make_plan": ("FitAnswer",),
    "glmplan.prediction.deployment": ("Deployment",),
    "glmplan.prediction.load": ("Load",),
    "glmplan.prediction.predict": ("Figure", "Prediction"),
    "glmplan.prediction.table": ("predict_table",),
    # text of the records above them: `print(answer)`
    "glmplan.present.answer_text": ("fit_text",),
    "glmplan.present.outcome_text": ("outcome_text",),
    "glmplan.simulation.safe_load": ("Kept", "SafeLoad"),
    "glmplan.simulation.simulate": ("Outcome",),
}  # fmt: skip
_MODULE = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module 'glmplan' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
