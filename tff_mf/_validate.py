"""Checks of single values, each with a message that states name, value and rule.

Every check returns the value in the plain Python type that the rest of the code computes with, so
that NumPy scalars do not travel further.
"""

import difflib
import math
import numbers
from collections.abc import Iterable

from tff_mf.errors import InputTypeError, InputValueError

MAX_LISTED_ROUNDS = 10**7
# TensorFlow, SQLite and safetensors count in 64 bits.
MAX_WHOLE = 2**63 - 1
MAX_DENSE_ROUNDS = 2**14
# Within them neither a clipped value nor a sum of all clients on earth leaves the normal range of float32.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-20, 1e20

_DIGEST_DIGITS = 64

# How alike, from 0 to 1, a word must be to be what was meant, and how much of a long one is looked at.
_ALIKE = 0.5
_LONGEST = 100


def whole(name: str, value: object, *, at_least: int = 1) -> int:
    """Returns `value` as an `int` that is no smaller than `at_least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputTypeError(f"{name}={value!r} must be a whole number.")
    if value < at_least:
        raise InputValueError(f"{name}={value!r} must be at least {at_least}.")
    return int(value)


def listable(rounds: object, name: str = "rounds") -> int:
    """Returns `rounds` as an `int` if so many numbers, one a round, may be listed in memory."""
    rounds = whole(name, rounds)
    if rounds > MAX_LISTED_ROUNDS:
        raise InputValueError(
            f"{name}={rounds} is more than the {MAX_LISTED_ROUNDS} whose coefficients are added up one by one."
        )
    return rounds


def dense(rounds: int) -> int:
    """Returns `rounds` if matrices of so many rows and columns may be held in memory."""
    if rounds > MAX_DENSE_ROUNDS:
        raise InputValueError(
            f"rounds={rounds} is more than the {MAX_DENSE_ROUNDS} whose whole matrices are computed with; "
            "take fewer, or a mechanism (and workload) that is Toeplitz."
        )
    return rounds


def real(name: str, value: object) -> float:
    """Returns `value` as a finite `float`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputTypeError(f"{name}={value!r} must be a number.")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InputValueError(f"{name}={value!r} must be finite.")
    return result


def positive(name: str, value: object) -> float:
    """Returns `value` as a finite `float` above 0."""
    result = real(name, value)
    if result <= 0:
        raise InputValueError(f"{name}={value!r} must be greater than 0.")
    return result


def clip_norm(value: object) -> float:
    """Returns a clip norm within which neither a clipped value nor a sum of all clients leaves float32's range."""
    result = positive("clip_norm", value)
    if not SMALLEST_CLIP_NORM <= result <= LARGEST_CLIP_NORM:
        raise InputValueError(
            f"clip_norm={result!r} must be {SMALLEST_CLIP_NORM} at least and {LARGEST_CLIP_NORM} at most: "
            "sums in float32 need room on both sides."
        )
    return result


def nonnegative(name: str, value: object) -> float:
    """Returns `value` as a finite `float` of at least 0."""
    result = real(name, value)
    if result < 0:
        raise InputValueError(f"{name}={value!r} must be at least 0.")
    return result


def open_unit(name: str, value: object) -> float:
    """Returns `value` as a `float` strictly between 0 and 1."""
    result = real(name, value)
    if not 0 < result < 1:
        raise InputValueError(f"{name}={value!r} must lie strictly between 0 and 1.")
    return result


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Returns `value` if it is one of the `allowed` words."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name}={value!r} must be one of {', '.join(allowed)}.")
    if value not in allowed:
        raise InputValueError(f"{name}={value!r} must be one of {', '.join(allowed)}{did_you_mean(value, allowed)}")
    return value


def digest(name: str, value: str) -> str:
    """Returns `value` if it is a SHA-256, as it is printed."""
    if len(value) != _DIGEST_DIGITS or set(value) - set("0123456789abcdef"):
        raise InputValueError(f"{name}={value!r} is no digest: give its {_DIGEST_DIGITS} digits, 0 to 9 and a to f.")
    return value


def did_you_mean(word: str, known: Iterable[str], *, always: bool = False) -> str:
    """Returns the end of a message on a word that is not known: the nearest that is, or a full stop if none is near.

    Args:
        word: What was given.
        known: What could have been given.
        always: Whether the nearest is named however far it is.
    """
    by_fold = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(word[:_LONGEST].casefold(), by_fold, n=1, cutoff=0.0 if always else _ALIKE)
    return f"; did you mean {by_fold[found[0]]!r}?" if found else "."


def instance(name: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Raises unless `value` is an instance of `kind`, or of one of them; `remedy` says what to pass instead."""
    if not isinstance(value, kind):
        kinds = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise InputTypeError(f"{name}={value!r} must be a {kinds}: {remedy}.")
