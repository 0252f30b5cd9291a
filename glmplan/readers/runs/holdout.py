"""Which measured groups are held out of development, by a rule that was fixed before the newest rows were opened.

The rule stands in `calibration/holdout.toml`. It goes by names of tables and shapes of the catalogue alone, so that a
row that is added later falls in or out without anybody choosing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.models import load_model
from glmplan.facts.files import read_toml
from glmplan.facts.folders import data_folder
from glmplan.physics.blocks.features import routed_blocks
from glmplan.readers.models.checkpoints import checkpoint_for
from glmplan.readers.runs.record import Run

__all__ = ["group_key", "held_out", "is_held_out", "split_held_out"]

_BITS = re.compile(r"\d+")


@cache
def _rule() -> dict[str, Any]:
    return read_toml(data_folder("calibration") / "holdout.toml")


@cache
def _part_names() -> dict[str, str]:
    return {part: entry["name"] for entry in _rule()["parts"] for part in entry["holds"]}


@lru_cache(maxsize=1024)
def _shape(name: str) -> str:
    try:
        model = load_model(name)
    except GlmplanError:
        return name
    experts = next((f" e{one.experts}k{one.topk}" for one in routed_blocks(model)), "")
    return f"{model.hidden}x{len(model.layer_names)}{experts}"


@lru_cache(maxsize=1024)
def _default_format(name: str, engine: str) -> str:
    try:
        return checkpoint_for(load_model(name), engine=engine).name
    except GlmplanError:
        return "unsaid"


@lru_cache(maxsize=4096)
def _key(engine: str, part: str, model: str, weights: str | None) -> str:
    form = weights or _default_format(model, engine)
    bits = _BITS.search(form)
    return f"{engine}|{_part_names().get(part, part)}|{_shape(model)}|{bits[0] if bits else form}"


def group_key(run: Run) -> str:
    """Group of a run: engine, part, model shape and bits of the format, whatever its table calls them.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    str
        The four, joined by bars.

    Examples
    --------
    >>> group_key(Run("a", "deepseek-r1", "b200-sxm", engine="vllm", weights="nvfp4"))
    'vllm|b200-sxm|7168x61 e256k8|4'
    >>> one, two = Run("b", "glm-5", "rtx-pro-6000-ws"), Run("c", "glm-5.1", "rtx-pro-6000-server", engine="vllm")
    >>> group_key(one) == group_key(two)
    True
    """
    return _key(run.engine or _rule()["engine_unsaid"], run.accelerator, run.model, run.weights)


@lru_cache(maxsize=4096)
def is_held_out(group: str) -> bool:
    """Whether a group is held out.

    Parameters
    ----------
    group : str
        As `group_key` gives it.

    Returns
    -------
    bool
        About one group in five.

    Examples
    --------
    >>> sum(is_held_out(str(number)) for number in range(1000))
    212
    """
    rule = _rule()
    digest = hashlib.sha256(f"{rule['salt']}|{group}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % int(rule["of"]) == int(rule["remainder"])


def held_out(runs: Iterable[Run]) -> frozenset[str]:
    """Identifiers of the runs of a table that are held out.

    Parameters
    ----------
    runs : iterable of Run
        The rows.

    Returns
    -------
    frozenset of str
        Their ids.
    """
    return frozenset(run.id for run in runs if is_held_out(group_key(run)))


def split_held_out(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """Part a table into what development may see and what is held out: the one place where this is done.

    Parameters
    ----------
    runs : iterable of Run
        The rows.

    Returns
    -------
    list of Run, list of Run
        Rows to fit, and rows held out; both in their order.
    """
    seen: list[Run] = []
    out: list[Run] = []
    for run in runs:
        (out if is_held_out(group_key(run)) else seen).append(run)
    return seen, out
