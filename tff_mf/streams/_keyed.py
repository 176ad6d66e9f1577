"""What streams of all engines share: settings, the fingerprint of the noise, the last round, and repeated keys."""

import copy
import hashlib
from typing import Self

import numpy as np

from tff_mf import registry, validation
from tff_mf.errors import InputValueError
from tff_mf.grids import LARGEST_NORMAL, Grid, recursion
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Recursion
from tff_mf.streams import arguments
from tff_mf.streams._outside import check_recursion


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
        self._grid, self._insecure_seed = grid, arguments.seed(insecure_seed)
        self._repeated: np.ndarray | None = None
        stddev = validation.nonnegative("stddev", stddev)
        if record.outside:
            check_recursion(mechanism)
        setting: tuple[object, ...] = ()
        if grid is None:
            found = self.mechanism.recursion()
            self._recursion: Recursion = found.kept if fast and found.kept is not None else found
            self._stddev: np.floating = arguments.float32_at_least("stddev", stddev)
            limits = (mechanism.max_rounds, self._recursion.rounds)
        else:
            self._stddev = np.float64(stddev * 2**grid.bits)
            bounded = recursion(mechanism, deviation=float(self._stddev), largest_normal=LARGEST_NORMAL)
            bounded.check(self._dimension)
            self._recursion = bounded.in_place if fast else bounded.recursion
            setting, limits = (repr(grid),), (bounded.rounds,)
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
        repeating._repeated = arguments.keys(keys)
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
