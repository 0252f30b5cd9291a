"""Compare generated text with text that another kind of processor may have written."""

from __future__ import annotations

import re

#: a number with decimals that stands alone: not part of a version, a name or a date
_DECIMAL = re.compile(r"(?<![\w.\-])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w\-])(?!\.\d)")


def same_to_rounding(written: str, fresh: str) -> bool:
    """Say whether two texts have the same words and integers, and decimals within one unit of their last digit.

    What is computed differs between processors in the sixteenth digit, because exponentials, logarithms and sums are
    other code with and without AVX-512. On paper that is nothing, or one unit where a number lay between two.
    """
    if _DECIMAL.split(written) != _DECIMAL.split(fresh):
        return False
    pairs = zip(_DECIMAL.findall(written), _DECIMAL.findall(fresh), strict=True)
    return all(abs(float(one) - float(other)) <= 1.001 * max(_unit(one), _unit(other)) for one, other in pairs)


def _unit(number: str) -> float:
    """Return the last digit's worth of a number as it is written: 0.01 for 3.14, 1e-9 for 3.14e-7."""
    mantissa, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
