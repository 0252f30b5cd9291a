"""Where a site's calibration starts: how far its machine may differ, and how exactly a run measures it."""

from __future__ import annotations

import numpy as np

from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["SITE_NOISE", "site_spread"]

#: how far the same configuration measured again is off, in logarithms: medians of the 100 repeats in the ledger are
#: 1-2 % for TPOT and 4-14 % for TTFT [-]
SITE_NOISE: dict[str, float] = {"decode": 0.02, "ttft": 0.10, "prefill": 0.05}
#: machines of one configuration differ more than rows of one campaign do: chosen on the sweeps
#: (`glmplan.calibrate.step.own_site.site_errors`), where 1 to 2.5 make no difference of more than 0.2 % [-]
_WIDER = 1.5
#: how much more or less than the shipped fit's spread a parameter may move: two points of a sweep cannot tell all of
#: them. What a group differs by is how well its kernels for many tokens fit its shapes, not the bandwidth that it
#: reaches, nor all parts of a step alike. What a request costs the host is in the engine's code and grows with the
#: load. Chosen on the sweeps; what half of the groups choose helps the other half: docs/physics/calibration.md [-]
_MOVED: dict[str, float] = {
    "request_seconds": 0.15, "activation_slowdown": 4.0, "gemm_flop_slowdown": 2.0, "expert_flop_slowdown": 2.0,
    "prefill_attention_slowdown": 2.0, "gemm_bytes_slowdown": 0.5, "expert_bytes_slowdown": 0.5,
    "collective_slowdown": 2.0, "collective_bytes_slowdown": 2.0, "host_seconds": 1.4, "layer_seconds": 1.4,
    "arrival_seconds": 1.5, "prompt_token_seconds": 1.5, "wake_seconds": 1.5, "scale": 0.25,
}  # fmt: skip
_CONFIGURATION = LEVELS.index("configuration")


def site_spread(spread: np.ndarray) -> np.ndarray:
    """Spread of each level for a site; the configuration also carries what builds and machines of one differ by.

    Parameters
    ----------
    spread : (levels, 22) array
        Prior standard deviations of the joint fit, [-]

    Returns
    -------
    (levels, 22) array
        [-]
    """
    spread = spread.copy()
    spread[_CONFIGURATION] = np.hypot(spread[_CONFIGURATION], spread[-1])
    return _WIDER * spread * np.array([_MOVED.get(name, 1.0) for name in COLUMNS]) + 1e-9
