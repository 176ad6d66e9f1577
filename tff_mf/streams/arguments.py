"""Checks of arguments that the streams in NumPy and in TensorFlow share."""

from typing import Any

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError

# A key is 128 bits: two words.
KEY_WORDS = 2
_INT64_LIMIT = 2**63


def seed(insecure_seed: int | None) -> int | None:
    """Returns the seed of repeatable noise, or `None`.

    Raises:
        InputTypeError: If it is anything else than a whole number.
        InputValueError: If it is out of range.
    """
    if insecure_seed is None:
        return None
    checked = validation.whole("insecure_seed", insecure_seed, at_least=0)
    if checked >= _INT64_LIMIT:
        raise InputValueError(f"insecure_seed={checked} must be below 2**63.")
    return checked


def keys(drawn: Any) -> np.ndarray:
    """Returns a copy of keys of rounds, int64 `[rounds, 2]`.

    Raises:
        InputValueError: If they are of another shape or type.
    """
    found = np.array(drawn)
    if found.dtype != np.int64 or found.ndim != 2 or found.shape[1] != KEY_WORDS:
        raise InputValueError(f"keys of type {found.dtype} and shape {found.shape} must be int64 [rounds, 2].")
    return found


def float32_at_least(name: str, value: float) -> np.float32:
    """Returns the smallest float32 that is at least `value`: noise is never rounded down.

    Example:
        >>> bool(float32_at_least("stddev", 0.1) >= 0.1)
        True

    Raises:
        InputValueError: If it is too large for float32.
    """
    with np.errstate(over="ignore"):
        result = np.float32(value)
    if float(result) < value:
        result = np.nextafter(result, np.float32(np.inf))
    if not np.isfinite(result):
        raise InputValueError(f"{name}={value!r} is too large for float32.")
    return result


def past_the_end(mechanism: Any, limit: int) -> str:
    """Returns what is said where a round after the last one is refused."""
    # A limit below the mechanism's own comes from a run.
    defined = f"{mechanism.kind} mechanism"
    if limit != mechanism.max_rounds:
        defined = f"run of this {defined}"
    return f"The {defined} is defined for {limit} rounds, and all of them have run."
