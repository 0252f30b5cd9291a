"""What there is: models and hardware of the catalogue as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.facts.catalogue.accelerators import accelerator_names, load_accelerator
from glmplan.facts.catalogue.hosts import host_names, load_host
from glmplan.facts.catalogue.models import load_model, model_names
from glmplan.facts.tables import frame_of, table_text
from glmplan.physics.blocks.cache import model_cache_bytes_per_token
from glmplan.physics.blocks.stack import model_parameters
from glmplan.units import GIB

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Listing", "hardware", "models"]


@dataclass(frozen=True, repr=False)
class Listing:
    """Entries of a catalogue, one row each.

    Attributes
    ----------
    title : str
        What is listed.
    rows : tuple of dict
        Column → value; every row has a ``name``.
    """

    title: str
    rows: tuple[dict[str, Any], ...]

    def __iter__(self) -> Iterator[str]:
        return (row["name"] for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return any(row["name"] == name for row in self.rows)

    def to_frame(self) -> pd.DataFrame:
        """One row for each entry."""
        return frame_of(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self.rows)} {self.title}: {', '.join(list(self)[:3])} …>"

    def __str__(self) -> str:
        return table_text(self.rows)


def models() -> Listing:
    """Models of the catalogue.

    Returns
    -------
    Listing
        Names, parameters in 10⁹ [-], layers [-], cache of a token in BF16 [B], longest context [token], checkpoints.

    Examples
    --------
    >>> "glm-5.1" in models()
    True
    """
    rows = []
    for name in model_names():
        model = load_model(name)
        count = model_parameters(model)
        rows.append(
            {
                "name": name,
                "total_b": round(count.total / 1e9, 3),
                "active_b": round(count.active / 1e9, 3),
                "layers": len(model.layer_names),
                "kv_bytes_per_token_bf16": model_cache_bytes_per_token(model, "bf16"),
                "max_context": model.max_context,
                "checkpoints": [one.name for one in model.checkpoints],
            }
        )
    return Listing("models", tuple(rows))


def hardware() -> Listing:
    """Accelerators and hosts of the catalogue.

    Returns
    -------
    Listing
        Names, kind, memory of an accelerator [GiB], its bandwidth [GB/s], number of accelerators [-]; None where it is
        not published.

    Examples
    --------
    >>> "rtx-pro-6000-ws" in hardware(), "hgx-b200-8" in hardware()
    (True, True)
    """
    parts = [load_accelerator(name) for name in accelerator_names()]
    rows = [_row(part.name, "accelerator", part, 1) for part in parts]
    by_name = {part.name: part for part in parts}
    for name in host_names():
        host = load_host(name)
        rows.append(_row(name, "host", by_name[host.accelerator], host.accelerator_count))
    return Listing("parts and hosts", tuple(rows))


def _row(name: str, kind: str, part: Any, count: int) -> dict[str, Any]:
    memory, bandwidth = part.memory, part.memory_bandwidth
    return {
        "name": name,
        "kind": kind,
        "accelerator": part.name,
        "accelerator_count": count,
        "memory_gib": None if memory is None else round(memory / GIB, 1),
        "memory_bandwidth_gb_per_s": None if bandwidth is None else round(bandwidth / 1e9, 1),
    }
