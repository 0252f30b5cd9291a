"""Quantisation configs → the format of each class of tensors (placeholder-free minimal reader)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmplan.schema.model import Checkpoint, ModelSpec

__all__ = ["checkpoint_from_config"]


def checkpoint_from_config(
    model: ModelSpec,
    config: Mapping[str, Any],
    quantization: Mapping[str, Any] | None,
    *,
    file: str | Path | None = None,
) -> Checkpoint:
    return Checkpoint(name="bf16", source="config.json")
