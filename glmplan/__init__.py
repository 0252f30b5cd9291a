"""Plan and simulate the serving of large language models.

The names below are what a program needs to ask a question; everything else is reached through its module. Each is
imported when it is first used, so that `import glmplan` costs nothing.

Examples
--------
>>> import glmplan
>>> glmplan.load_model("glm-5.1").hidden
6144
>>> glmplan.load_machine("6xrtx-pro-6000-ws").accelerator_count
6
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glmplan.errors import GlmplanError, Infeasible, SpecError
    from glmplan.facts.catalogue.accelerators import accelerator_names, load_accelerator
    from glmplan.facts.catalogue.hosts import host_names, load_host, load_machine
    from glmplan.facts.catalogue.models import load_model, model_names
    from glmplan.physics.memory import kv_pool, part_memory, rank_memory
    from glmplan.prediction.deployment import Deployment
    from glmplan.prediction.load import Load
    from glmplan.prediction.predict import Figure, Prediction, predict_many, step_seconds
    from glmplan.serving.simulate import simulate

__all__ = [
    "Deployment",
    "Figure",
    "GlmplanError",
    "Infeasible",
    "Load",
    "Prediction",
    "SpecError",
    "accelerator_names",
    "host_names",
    "kv_pool",
    "load_accelerator",
    "load_host",
    "load_machine",
    "load_model",
    "model_names",
    "part_memory",
    "predict_many",
    "rank_memory",
    "simulate",
    "step_seconds",
]

_PLACES = {
    "glmplan.facts.catalogue.models": ("load_model", "model_names"),
    "glmplan.facts.catalogue.accelerators": ("accelerator_names", "load_accelerator"),
    "glmplan.facts.catalogue.hosts": ("host_names", "load_host", "load_machine"),
    "glmplan.prediction.deployment": ("Deployment",),
    "glmplan.errors": ("GlmplanError", "Infeasible", "SpecError"),
    "glmplan.physics.memory": ("kv_pool", "part_memory", "rank_memory"),
    "glmplan.prediction.load": ("Load",),
    "glmplan.prediction.predict": ("Figure", "Prediction", "predict_many", "step_seconds"),
    "glmplan.serving.simulate": ("simulate",),
}
_MODULE = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module 'glmplan' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
