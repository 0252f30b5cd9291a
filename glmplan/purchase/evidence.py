"""Short labels of evidence levels, for columns of tables."""

from __future__ import annotations

__all__ = ["EVIDENCE_LABELS"]

#: class of `glmplan.prediction.effects.KNOWN_AS` → label of at most 25 characters
EVIDENCE_LABELS: dict[str, str] = {
    "site": "measured here",
    "configuration": "measured",
    "release": "other version",
    "group": "other layout",
    "group_release": "other layout and version",
    "pair": "model and GPU separately",
    "adapters": "without LoRA adapters",
    "apart": "not disaggregated",
    "format": "other quantization",
    "accelerator": "GPU only",
    "model": "model only",
    "engine": "engine only",
    "nothing": "none",
}
