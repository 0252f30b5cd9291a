"""Start-up logs collected after the fit of memory, and their settings.

`calibration/memory/start-up-logs-later.csv` holds many launches of few settings, so each setting (engine, version,
model, format, accelerator, layout and cache format) has one vote. `held-out.toml` leaves settings out of development
and of every fit by their hash.
"""

from __future__ import annotations

import hashlib
from functools import cache

from glmplan.catalog.files import data_folder, read_toml
from glmplan.io.runs.importers.startup_logs import LoggedStart, start_up_logs

__all__ = ["is_held_out_setting", "later_starts", "setting_of", "starts_to_fit"]


def later_starts() -> list[LoggedStart]:
    """Return the start-up logs of the later table.

    Examples
    --------
    >>> len(later_starts())
    159
    """
    return start_up_logs(data_folder("calibration") / "memory" / "start-up-logs-later.csv")


def starts_to_fit() -> list[LoggedStart]:
    """Return the logs of the later table whose settings are not held out.

    Examples
    --------
    >>> len(starts_to_fit())
    139
    """
    return [start for start in later_starts() if not is_held_out_setting(setting_of(start))]


def setting_of(start: LoggedStart) -> str:
    """Return the setting of a launch, which has one vote.

    Examples
    --------
    >>> setting_of(later_starts()[0])
    'vllm|0.21.0|kimi-k2.5|mxfp4|mi355x|tp4 pp1 dp1 ep1 dcp1|fp8'
    """
    log = start.log
    model = start.model or (log.model or "").rsplit("/", 1)[-1].lower()
    layout = " ".join(f"{name}{getattr(log, name) or 1}" for name in ("tp", "pp", "dp", "ep", "dcp"))
    parts = (log.engine, log.version, model, start.weights, start.accelerator, layout, log.kv_cache or "auto")
    return "|".join(part or "" for part in parts)


@cache
def _held_rule() -> tuple[str, int, int]:
    content = read_toml(data_folder("calibration") / "memory" / "held-out.toml")
    return content["salt"], content["of"], content["remainder"]


def is_held_out_setting(setting: str) -> bool:
    """Return True if a setting is held out of development, by its hash.

    Examples
    --------
    >>> sum(is_held_out_setting(one) for one in {setting_of(start) for start in later_starts()})
    6
    """
    salt, of, remainder = _held_rule()
    digest = hashlib.sha256(f"{salt}|{setting}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % of == remainder
