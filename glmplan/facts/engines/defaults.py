"""What an engine takes for a setting that nobody gives, by version, part and TP degree.

Rules that are formulas, such as the share of memory SGLang chooses, stand in `glmplan.facts.engines.memory`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from glmplan.errors import UnknownFact
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.folders import plain_name

if TYPE_CHECKING:
    from glmplan.facts.schema.engine import Default

__all__ = ["engine_default"]


def engine_default(
    engine: str,
    setting: str,
    *,
    version: str | None = None,
    memory: float | None = None,
    accelerator: str | None = None,
    tp: int = 1,
) -> int | float | str | bool:
    """Return the default of a setting.

    Parameters
    ----------
    engine : str
        Name of the engine.
    setting : str
        The setting as the engine names it.
    version : str, optional
        Version of the engine; the newest by default.
    memory : float, optional
        Memory of one accelerator, [B]
    accelerator : str, optional
        Its catalogue name.
    tp : int, optional
        TP degree, [-]

    Returns
    -------
    int, float, str or bool
        The default, [token] or [-] as the setting says.

    Raises
    ------
    UnknownName
        If the engine is unknown.
    UnknownFact
        If no source says what the default is there.

    Examples
    --------
    >>> engine_default("vllm", "gpu_memory_utilization", version="0.19.0")
    0.9
    >>> engine_default("vllm", "max_num_seqs", memory=96 * 2**30, accelerator="rtx-pro-6000-ws")
    1024
    >>> engine_default("sglang", "cuda_graph_max_bs", memory=96 * 2**30, tp=8)
    512
    """
    for entry in load_engine(engine).defaults:
        if entry.setting == setting and _holds(entry, version, memory, accelerator, tp):
            return entry.value
    raise UnknownFact(f"{engine}: no source says what {setting} is when it is not given")


def _holds(entry: Default, version: str | None, memory: float | None, accelerator: str | None, tp: int) -> bool:
    from glmplan.facts.schema.engine import number_test, version_key

    if version is None:
        if entry.until:
            return False
    elif (entry.since and version_key(version) < version_key(entry.since)) or (
        entry.until and version_key(version) >= version_key(entry.until)
    ):
        return False
    if entry.memory_from is not None and (memory is None or memory < entry.memory_from):
        return False
    if entry.memory_below is not None and (memory is None or memory >= entry.memory_below):
        return False
    if entry.tp is not None and not number_test(entry.tp, tp):
        return False
    name = plain_name(accelerator or "")
    if entry.accelerators and not any(fnmatchcase(name, pattern) for pattern in entry.accelerators):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in entry.without_accelerators)
