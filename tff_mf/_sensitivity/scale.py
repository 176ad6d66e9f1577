"""Scales strategy matrices so that squares neither overflow nor underflow."""

import numpy as np

from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism

_SMALL, _LARGE = 2.0**-300, 2.0**400


def scaled(mechanism: Mechanism, numbers: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns `numbers`, divided by a power of two if all are very small, and that power.

    Squares of numbers below 1e-162 are zero in float64, and so would the sensitivity be. Scaling rounds nothing.

    Raises:
        InputValueError: If a number is NaN, infinite, or so large that sums of squares may be.
    """
    largest = np.max(np.abs(numbers))
    if not largest < _LARGE:
        raise InputValueError(f"the coefficients of this {mechanism.kind} mechanism overflow within its rounds.")
    if largest == 0 or largest >= _SMALL:
        return numbers, 1.0
    exponent = max(int(np.frexp(largest)[1]), -1000)
    return np.ldexp(numbers, -exponent), 2.0**exponent
