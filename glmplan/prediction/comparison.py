"""Measured beside predicted: one sign for every error, and one rule for what is reproduced."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["DIFFERENT", "REPRODUCED", "relative_error", "verdict_of"]

#: errors up to which a figure is reproduced, and beyond which it is different, [-]
REPRODUCED, DIFFERENT = 0.10, 0.20


def relative_error(predicted: ArrayLike, measured: ArrayLike) -> np.ndarray:
    """Error of predictions: positive where the prediction is too high, be it a time or a rate.

    Parameters
    ----------
    predicted, measured : array_like
        Any shapes that broadcast, [any one unit]

    Returns
    -------
    ndarray
        Predicted over measured, less one, [-]

    Examples
    --------
    >>> relative_error([110.0, 90.0], 100.0).round(3).tolist()
    [0.1, -0.1]
    """
    return np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0


def verdict_of(error: float) -> str:
    """Say what an error means.

    Parameters
    ----------
    error : float
        As `relative_error` gives it, [-]

    Returns
    -------
    str
        ``reproduced`` up to 10 % to either side, ``different`` beyond 20 %, ``in between`` otherwise.

    Examples
    --------
    >>> verdict_of(-0.08), verdict_of(0.15), verdict_of(0.3)
    ('reproduced', 'in between', 'different')
    """
    if abs(error) <= REPRODUCED:
        return "reproduced"
    return "different" if abs(error) > DIFFERENT else "in between"
