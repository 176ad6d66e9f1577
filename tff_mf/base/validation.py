"""Checks of single values; each error message states the name, the value and the rule.

Every check returns the value as the plain Python type that the rest of the code computes with, so that NumPy scalars
go no further.
"""

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .errors import InputTypeError, InputValueError

# Above it, mechanisms and workloads are not evaluated coefficient by coefficient.
MAX_LISTED_ROUNDS = 10**7
# TensorFlow, SQLite and safetensors count in 64 bits.
MAX_WHOLE = 2**63 - 1
# Above it, matrices are not held in memory.
MAX_DENSE_ROUNDS = 2**14
# Between them neither a clipped value nor a sum over ten billion clients leaves the normal range of float32.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-20, 1e20


# Least similarity, from 0 to 1, of a suggested word, and the number of characters of a long word that are compared.
_ALIKE = 0.5
_LONGEST = 100


def whole(name: str, value: object, *, at_least: int = 1) -> int:
    """Returns `value` as an `int` of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputTypeError(f"{name}={value!r} must be a whole number.")
    if value < at_least:
        raise InputValueError(f"{name}={value!r} must be at least {at_least}.")
    return int(value)


def listable(rounds: object, name: str = "rounds") -> int:
    """Returns `rounds` as an `int` if one number per round fits in memory."""
    rounds = whole(name, rounds)
    if rounds > MAX_LISTED_ROUNDS:
        raise InputValueError(
            f"{name}={rounds} exceeds the maximum of {MAX_LISTED_ROUNDS:,} rounds for mechanisms evaluated coefficient "
            "by coefficient."
        )
    return rounds


def dense(rounds: int) -> int:
    """Returns `rounds` if a matrix with as many rows and columns fits in memory."""
    if rounds > MAX_DENSE_ROUNDS:
        raise InputValueError(
            f"rounds={rounds} exceeds the maximum of {MAX_DENSE_ROUNDS:,} rounds for computations with whole matrices; "
            "take fewer rounds, or a Toeplitz mechanism and workload."
        )
    return rounds


def real(name: str, value: object) -> float:
    """Returns `value` as a finite `float`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputTypeError(f"{name}={value!r} must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputValueError(f"{name}={value!r} must be finite.")
    return number


def positive(name: str, value: object) -> float:
    """Returns `value` as a finite `float` above 0."""
    number = real(name, value)
    if number <= 0:
        raise InputValueError(f"{name}={value!r} must be greater than 0.")
    return number


def clip_norm(value: object) -> float:
    """Returns `value` as a clip norm for which clipped values and their sums stay in the range of float32."""
    number = positive("clip_norm", value)
    if not SMALLEST_CLIP_NORM <= number <= LARGEST_CLIP_NORM:
        raise InputValueError(
            f"clip_norm={number!r} must be at least {SMALLEST_CLIP_NORM} and at most {LARGEST_CLIP_NORM}, so that sums "
            "in float32 neither overflow nor underflow."
        )
    return number


def nonnegative(name: str, value: object) -> float:
    """Returns `value` as a finite `float` of at least 0."""
    number = real(name, value)
    if number < 0:
        raise InputValueError(f"{name}={value!r} must be at least 0.")
    return number


def sequence(name: str, values: object, *, per: str, item: Callable[[str, object], float] = real) -> tuple[float, ...]:
    """Returns a sequence of numbers, one per band, buffer or round, as plain floats that `item` has checked."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise InputTypeError(f"{name}={values!r} must be a sequence of numbers, one per {per}.")
    if (isinstance(values, np.ndarray) and values.ndim != 1) or len(values) == 0:
        raise InputValueError(f"{name}={values!r} must have one axis and not be empty: one number per {per}.")
    return tuple(item(f"{name}[{index}]", value) for index, value in enumerate(values))


def open_unit(name: str, value: object) -> float:
    """Returns `value` as a `float` strictly between 0 and 1."""
    number = real(name, value)
    if not 0 < number < 1:
        raise InputValueError(f"{name}={value!r} must lie strictly between 0 and 1.")
    return number


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Returns `value` if it is one of the `allowed` words."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name}={value!r} must be one of {', '.join(allowed)}.")
    if value not in allowed:
        raise InputValueError(f"{name}={value!r} must be one of {', '.join(allowed)}{did_you_mean(value, allowed)}")
    return value


def did_you_mean(word: str, names: Iterable[str], *, always: bool = False) -> str:
    """Returns the end of a message about an unknown word: the most similar known word, or a full stop if there is none.

    Args:
        word: The unknown word.
        names: The words that would have been allowed.
        always: Whether to name the most similar word even if it is not similar.
    """
    by_fold = {name.casefold(): name for name in names}
    alike = difflib.get_close_matches(word[:_LONGEST].casefold(), by_fold, n=1, cutoff=0.0 if always else _ALIKE)
    return f"; did you mean {by_fold[alike[0]]!r}?" if alike else "."


def instance(name: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Raises unless `value` is an instance of one of the kinds; `remedy` says what to pass instead."""
    if not isinstance(value, kind):
        kinds = " or ".join(class_.__qualname__ for class_ in (kind if isinstance(kind, tuple) else (kind,)))
        raise InputTypeError(f"{name}={value!r} must be of type {kinds}: {remedy}.")
