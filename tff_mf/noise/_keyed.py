"""What the streams of all engines share: settings, checks, the fingerprint of the noise, the last round, given keys."""

import copy
import hashlib
from typing import Any, Self

import numpy as np

from tff_mf import registry, sensitivities
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.grids import LARGEST_NORMAL, Grid, recursion
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Recursion

# A key is 128 bits: two words.
KEY_WORDS = 2
_INT64_LIMIT = 2**63
# Smaller products with normals are near the least numbers of float32, which engines may take for 0.
_SMALLEST = 2.0**-100
# Of the recursion of a mechanism from outside, these rounds are compared with C⁻¹.
_FEWEST_ROUNDS, _MOST_ROUNDS = 32, 2**9
# Relative to the largest entry of a row of C⁻¹.
_TOLERANCE = 1e-9


class KeyedStream:
    """The noise of a mechanism, and the limits of its rounds, apart from the engine that computes it.

    Formal guarantee: for a mechanism from outside of this package, matrices and recursion are checked to be consistent.

    Args:
        mechanism: The mechanism.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise, in units of the clip norm with a grid.
        grid: The grid, or `None` for floats.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        engine: What computes the noise: streams of two engines do not continue each other's states.
        fast: Whether to keep rows of memory in place of draws, and to let a row change its type on a grid.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the grid does not fit the noise.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        dimension: int,
        stddev: float,
        grid: Grid | None,
        insecure_seed: int | None,
        engine: str,
        fast: bool = False,
    ) -> None:
        record = registry.registered(mechanism)
        self.mechanism = mechanism.cast_to_float32()
        self._dimension = validation.whole("dimension", dimension)
        self._grid, self._insecure_seed = grid, _seed(insecure_seed)
        self._repeated: np.ndarray | None = None
        stddev = validation.nonnegative("stddev", stddev)
        if record.outside:
            _check_recursion(mechanism)
        setting: tuple[object, ...] = ()
        if grid is None:
            found = self.mechanism.recursion()
            self._recursion: Recursion = found.kept if fast and found.kept is not None else found
            if 0 < stddev < _SMALLEST:
                raise InputValueError(f"stddev={stddev!r} is too small for float32: the noise would be rounded to 0.")
            self._stddev: np.floating = float32_at_least("stddev", stddev)
            limits = (mechanism.max_rounds, self.mechanism.max_rounds, self._recursion.rounds)
        else:
            self._stddev = np.float64(stddev * 2**grid.bits)
            bounded = recursion(mechanism, deviation=float(self._stddev), largest_normal=LARGEST_NORMAL)
            bounded.check(self._dimension)
            self._recursion = bounded.in_place if fast else bounded.recursion
            setting = (repr(grid),)
            limits = (mechanism.max_rounds, self.mechanism.max_rounds, bounded.rounds)
        self._limit = min((limit for limit in limits if limit is not None), default=None)
        drawn = repr((engine, float(self._stddev), insecure_seed, self._recursion.digest, *setting))
        self._fingerprint = hashlib.sha256(registry.content_digest(mechanism) + drawn.encode()).digest()

    def bound_to(self, setting: str) -> Self:
        """Returns the same stream with a fingerprint of its own for `setting`.

        For settings that the noise does not depend on but that must not change during a run: the clip norm, of which a
        stream knows only the product with σ, and the rounds of restarts.
        """
        bound = copy.copy(self)
        bound._fingerprint = hashlib.sha256(self._fingerprint + setting.encode()).digest()
        return bound

    def limited_to(self, rounds: int) -> Self:
        """Returns the same stream limited to `rounds` rounds: it refuses the next one, and `replay` more keys.

        Noise and fingerprint are the same: a stream of more rounds can continue the state.

        Raises:
            InputTypeError: If `rounds` is not a whole number.
            InputValueError: If it is below 1, or more than the stream is defined for.
        """
        limited = copy.copy(self)
        limited._limit = self.mechanism.check(validation.whole("rounds", rounds))
        if self._limit is not None and rounds > self._limit:
            raise InputValueError(f"rounds={rounds} is more than the {self._limit} that this stream is defined for.")
        return limited

    def repeating(self, keys: np.ndarray) -> Self:
        """Returns the same stream, which takes the key of round t from `keys[t]`: for verification only.

        What has run once can be computed again with it, and compared. Nothing that it gives may be released: anyone who
        has the keys can subtract the noise.

        Args:
            keys: Keys that were drawn, int64 `[rounds, 2]`.

        Raises:
            InputValueError: If they are of another shape or type.
        """
        repeating = copy.copy(self)
        repeating._repeated = checked_keys(keys)
        return repeating

    @property
    def dimension(self) -> int:
        """Number of coordinates of a row."""
        return self._dimension

    @property
    def stddev(self) -> np.floating:
        """Standard deviation of each coordinate of the independent noise, in units of the grid if there is one."""
        return self._stddev

    @property
    def insecure_seed(self) -> int | None:
        """The seed of repeatable noise, or `None`."""
        return self._insecure_seed

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys, and of the settings that it is bound to."""
        return self._fingerprint

    @property
    def max_rounds(self) -> int | None:
        """Number of rounds; `None` for any number."""
        return self._limit

    @property
    def row_count(self) -> int:
        """Number of rows of memory; they are zero before round 0."""
        return self._recursion.rows

    def _past_the_end(self) -> str:
        # A limit below the mechanism's own comes from a run.
        defined = f"{self.mechanism.kind} mechanism"
        if self._limit != self.mechanism.max_rounds:
            defined = f"run of this {defined}"
        return f"The {defined} is defined for {self._limit} rounds, and all of them have run."

    def _check_replayed(self, rounds: int) -> None:
        """Refuses to replay more rounds than the stream has.

        Raises:
            InputValueError: If there are more.
        """
        if rounds:
            self.mechanism.check(rounds)
        if self._limit is not None and rounds > self._limit:
            raise InputValueError(f"keys of {rounds} rounds are more than the {self._limit} of this stream.")


def _seed(insecure_seed: int | None) -> int | None:
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


def checked_keys(drawn: Any) -> np.ndarray:
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


def _check_recursion(mechanism: Mechanism) -> None:
    """Raises unless matrices and recursion of a mechanism are consistent.

    Formal guarantee: for the first rounds (32, or twice its rows of memory and eight, or as many as the mechanism has)
    the weights of z in what the recursion computes are C⁻¹, for C of the mechanism and as cast to float32. Noise that
    is not C⁻¹z voids every guarantee of this package. On a grid, what the recursion's own C differs from C in all
    rounds is added to the sensitivity.

    Raises:
        InputTypeError: If `recursion` returns anything but a `Recursion`.
        InputValueError: If anything does not hold.
    """
    for each in (mechanism, mechanism.cast_to_float32()):
        recursion = each.recursion()
        _check_first_rounds(each, recursion)
        if recursion.kept is not None:
            _check_first_rounds(each, recursion.kept)


def _check_first_rounds(mechanism: Mechanism, recursion: Recursion) -> None:
    # A subclass could compute anything.
    if type(recursion) is not Recursion:
        raise InputTypeError(
            f"the recursion of kind {mechanism.kind!r} is {recursion!r}: return a mechanisms.Recursion."
        )
    enough = min(max(_FEWEST_ROUNDS, 2 * recursion.rows + 8), _MOST_ROUNDS)
    rounds = min(mechanism.max_rounds or enough, recursion.rounds or enough, enough)
    sensitivities.check_outside(mechanism, rounds)
    inverse, found = mechanism.inverse(rounds), recursion.responses(rounds)
    error = np.abs(found - inverse).max(axis=1) / np.abs(inverse).max(axis=1)
    # NaN must not pass.
    wrong = ~(error <= _TOLERANCE)
    if np.any(wrong):
        first = int(np.argmax(wrong))
        raise InputValueError(
            f"the recursion of kind {mechanism.kind!r} is not C⁻¹z: row {first} has the weights "
            f"{found[first, : first + 1][-3:].tolist()} and must have {inverse[first, : first + 1][-3:].tolist()}. "
            "There is no privacy with other noise."
        )
