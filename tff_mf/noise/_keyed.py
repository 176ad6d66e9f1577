"""The state machine of noise, which every engine runs: keys, rounds, the last round, states of other noise."""

import abc
import copy
import hashlib
import secrets
from typing import Any, ClassVar, Self

import numpy as np

from tff_mf.base import in_order, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism, on_grid
from tff_mf.mechanisms.recursion import Operations, Recursion
from tff_mf.numerics import normals
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid

# A key is 128 bits: two words.
KEY_WORDS = 2
OTHER_NOISE = (
    "This state is of other noise than this stream draws: mechanism, stddev (clip_norm, noise_multiplier), grid, "
    "generator, insecure_seed, or what the stream is bound to (restart_every, adaptive_clipping), differ. Continue it "
    "with the arguments that it was begun with."
)
_INT64_LIMIT = 2**63
# Smaller products with normals are near the least numbers of float32, which engines may take for 0.
_SMALLEST, _SMALLEST_PRODUCT = 2.0**-100, 2.0**-110
# Of the recursion of a mechanism from outside, these rounds are compared with C⁻¹, and with C of at most so many.
_FEWEST_ROUNDS, _MOST_ROUNDS, _LONGEST = 32, 2**9, 2**11
# Relative to the largest entry of a row of C⁻¹.
_TOLERANCE = 1e-9


class KeyedStream(abc.ABC):
    """Streams the rows of σζ·C⁻¹z, one per round: the state machine of all engines.

    Formal guarantee: row t is σζ(C⁻¹z)_t for the mechanism's C with float32 parameters, up to the rounding of float32,
    where z has independent standard Gaussian rows, and row i is drawn from a key of 128 bits that the operating system
    gives when round i runs. Two steps from one state draw two keys: a round that runs again, after a failure or a
    resume, gets fresh noise, independent of the first attempt, on the same past. A state of another mechanism,
    `stddev`, grid, engine or setting (`bound_to`) is refused: C⁻¹z cancels earlier noise, and with a smaller scale or
    another matrix it would cancel noise that past rounds need. So is a round after the last one. With `insecure_seed`
    only the refusals hold. The recursion of a mechanism from outside of this package is compared with its C first.

    With a grid, rows are integers n_t = R(s_t·z_t − L_t) in units of the grid, with R(v) = ⌊v + ½⌋. L_t is a function
    of past n alone, equal to Σ_{i<t} C_ti n_i / C_tt up to the error of `GridRecursion`, and s_t is s / C_tt, rounded
    up. Released sums y = x + n of integers x are then a function of the adaptive Gaussian release Cx + z, up to that
    error: R commutes with the shift by x_t. Rounding halves to even does not. What errors and the normals cost is in
    `tff_mf.guarantee` with the same grid; see docs/explanation/guarantee.md. Engines give the same integers, bit for
    bit, for the same keys.

    An engine is a subclass of about 200 lines: an interpreter of `Recursion`, which knows no mechanism, and the methods
    below that are abstract. They enforce in the engine's own way what is decided here: which state is continued, which
    round is the last, and where a key comes from. tests/tff_mf/test_noise_laws.py then takes a class of a few lines.

    Args:
        mechanism: The mechanism; streamed with the parameters of `mechanism.cast_to_float32()`.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise: σ times the clip norm; with a grid, σ.
        grid: The grid, in units of which rows are, or `None` for floats.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        engine: What computes the noise: streams of two engines do not continue each other's states.
        fast: Whether a row may change its type on a grid.

    Raises:
        InputTypeError: If the class of the mechanism has no kind of its own, or neither a recursion nor an end.
        InputValueError: If the recursion of a kind from outside is not C⁻¹, or the grid does not fit the noise.
    """

    # What rules of a recursion compute with: an engine has its own.
    _operations: ClassVar[Any] = Operations

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
        validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
        mechanism.check_kind()
        self.mechanism = mechanism.cast_to_float32()
        self._dimension = validation.whole("dimension", dimension)
        self._grid, self._insecure_seed = grids.check(grid), _seed(insecure_seed)
        self._repeated: np.ndarray | None = None
        stddev = validation.nonnegative("stddev", stddev)
        if mechanism.is_outside:
            for candidate in (mechanism, self.mechanism):
                _check_recursion(candidate, candidate.recursion())
        setting: tuple[object, ...] = ()
        if grid is None:
            self._recursion: Recursion = self.mechanism.recursion()
            if 0 < stddev < _SMALLEST:
                raise InputValueError(f"stddev={stddev!r} is too small for float32: the noise would be rounded to 0.")
            smallest = self._recursion.smallest_scale(self.mechanism.max_rounds or self._recursion.rounds)
            if 0 < smallest * min(1.0, stddev) < _SMALLEST_PRODUCT:
                raise InputValueError(
                    f"mechanism has {1 / smallest:.1e} on the diagonal of C, which is too large for float32 with "
                    f"stddev={stddev!r}: noise is divided by it, and would be rounded to 0. Divide C and stddev by it."
                )
            self._stddev: np.floating = float32_at_least("stddev", stddev)
            last = self._recursion.rounds
        else:
            self._stddev = np.float64(stddev * 2**grid.bits)
            bounded = on_grid(mechanism, deviation=float(self._stddev))
            bounded.check(self._dimension)
            self._recursion = bounded.in_place if fast else bounded.recursion
            setting, last = (repr(grid),), bounded.rounds
        limits = (mechanism.max_rounds, self.mechanism.max_rounds, last)
        self._limit = min((limit for limit in limits if limit is not None), default=None)
        self._run_rounds: int | None = None
        drawn = repr((engine, float(self._stddev), insecure_seed, self._recursion.digest, *setting))
        self._fingerprint = hashlib.sha256(mechanism.content_digest() + drawn.encode()).digest()

    def rows_in_use(self, rounds: Any) -> Any:
        """Returns how many rows of memory are in use after `rounds` rounds: not secret."""
        return self._recursion.rows_in_use(rounds, self._operations)

    def _types(self, done: int) -> list[str]:
        """Returns the type of each row of memory after `done` rounds."""
        return ["float32"] * self._recursion.rows if self._grid is None else self._recursion.types(done)

    @abc.abstractmethod
    def init(self) -> Any:
        """Returns the state before round 0."""

    def next(self, state: Any) -> tuple[Any, Any]:
        """Returns this round's noise, `[dimension]`, and the state of the next round. The given one is not changed.

        Raises:
            InputError: Past the last round, or for a state of other noise or a damaged one. TensorFlow raises
                `tf.errors.InvalidArgumentError`, from the graph.
        """
        ends, keys = self._ends(), self._repeated
        if keys is not None:
            ends.append((len(keys), f"keys of {len(keys)} rounds were given, and all of them have run."))
        state, done, stddev = self._admitted(state, ends)
        return self._advanced(state, done, self._key(done), stddev)

    def replay(self, keys: Any) -> Any:
        """Returns the state after the rounds that drew `keys`, int64 `[rounds, 2]`, by running them again.

        Formal guarantee: the state is the one after those rounds, bit for bit: with a grid on every machine, in floats
        on the same one. No key is drawn, and nothing is released a second time: the noise rows are dropped. Later
        rounds draw fresh keys.

        Raises:
            InputValueError: If the shape or type of `keys` is wrong, or it has more rounds than the stream; in a graph
                that does not know their number, it fails when it runs.
        """
        keys = self._as_keys(keys)
        _check_keys(keys)
        # A graph may not know their number: `None`.
        if self._limit is not None and (keys.shape[0] or 0) > self._limit:
            raise InputValueError(f"keys of {keys.shape[0]} rounds are more than the {self._limit} of this stream.")
        return self._replayed(keys, self._ends())

    def _key(self, done: Any) -> Any:
        if self._repeated is not None:
            return self._as_keys(self._repeated)[done]
        if self._insecure_seed is None:
            return self._system_key(done)
        return self._insecure_key(self._insecure_seed, done)

    def _ends(self) -> list[tuple[int, str]]:
        """Returns numbers of rounds after which none may run, and what to say of the next one."""
        if self._limit is None:
            return []
        # A limit below the mechanism's own comes from a run.
        defined = f"{self.mechanism.kind} mechanism"
        if self._limit != self.mechanism.max_rounds:
            defined = f"run of this {defined}"
        return [(self._limit, f"The {defined} is defined for {self._limit} rounds, and all of them have run.")]

    @abc.abstractmethod
    def _admitted(self, state: Any, ends: list[tuple[int, str]]) -> tuple[Any, Any, Any]:
        """Refuses a state with another fingerprint (`OTHER_NOISE`) and a round at one of the ends.

        Returns:
            The state; its number of rounds, read after the refusals; and `_stddev`, or NaN where an engine may lose
            its refusals, as graphs lose assertions.
        """

    @abc.abstractmethod
    def _advanced(self, state: Any, done: Any, key: Any, stddev: Any) -> tuple[Any, Any]:
        """Returns the noise of the round after `done` rounds with this key, and the state after it."""

    @abc.abstractmethod
    def _replayed(self, keys: Any, ends: list[tuple[int, str]]) -> Any:
        """Returns the state after the rounds of these keys."""

    @abc.abstractmethod
    def _as_keys(self, keys: Any) -> Any:
        """Returns keys as an array of the engine."""

    def _system_key(self, done: Any) -> Any:
        """Returns a fresh key, int64 `[2]`, from the operating system, when the round runs."""
        del done
        return np.frombuffer(secrets.token_bytes(8 * KEY_WORDS), np.int64)

    def _insecure_key(self, seed: int, done: Any) -> Any:
        """Returns the key of a round for the seed, which is not secret: for tests, and the same in all engines.

        In TensorFlow it is `tf.random.experimental.stateless_fold_in` of the seed.
        """
        return np.array([normals.words(np.array([seed, 0]), 0, 1)[0], done])

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
            InputError: If `rounds` is no whole number of at least 1, or more than the stream is defined for.
        """
        limited = copy.copy(self)
        limited._limit = limited._run_rounds = self.mechanism.check(validation.whole("rounds", rounds))
        if self._limit is not None and rounds > self._limit:
            raise InputValueError(f"rounds={rounds} is more than the {self._limit} that this stream is defined for.")
        return limited

    def repeating(self, keys: np.ndarray) -> Self:
        """Returns the same stream, which takes the key of round t from `keys[t]`: for verification only.

        What has run once can be computed again with it, and compared. Nothing that it gives may be released: anyone who
        has the keys can subtract the noise.

        Args:
            keys: Keys that were drawn, int64 `[rounds, 2]`.
        """
        repeating = copy.copy(self)
        repeating._repeated = np.array(keys)
        _check_keys(repeating._repeated)
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
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys, and of the settings that it is bound to.

        The dimension is no part of it: noise of other coordinates is drawn from the same words of a key.
        """
        return self._fingerprint

    @property
    def max_rounds(self) -> int | None:
        """Number of rounds; `None` for any number."""
        return self._limit

    @property
    def run_rounds(self) -> int | None:
        """Number of rounds that `limited_to` left; `None` without it."""
        return self._run_rounds


def _seed(insecure_seed: int | None) -> int | None:
    """Returns the seed of repeatable noise, or `None`."""
    if insecure_seed is None:
        return None
    checked = validation.whole("insecure_seed", insecure_seed, at_least=0)
    if checked >= _INT64_LIMIT:
        raise InputValueError(f"insecure_seed={checked} must be below 2**63.")
    return checked


def _check_keys(keys: Any) -> None:
    if keys.dtype != np.int64 or len(keys.shape) != 2 or keys.shape[1] != KEY_WORDS:
        raise InputValueError(f"keys of type {keys.dtype.name} and shape {keys.shape} must be int64 [rounds, 2].")


def float32_at_least(name: str, value: float) -> np.float32:
    """Returns the smallest float32 that is at least `value`: noise is never rounded down.

    Example:
        >>> float(float32_at_least("stddev", 0.5)), bool(float32_at_least("stddev", 0.1) >= 0.1)
        (0.5, True)
    """
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    if not np.isfinite(rounded):
        raise InputValueError(f"{name}={value!r} is too large for float32.")
    return rounded


def _check_recursion(mechanism: Mechanism, recursion: Recursion) -> None:
    """Raises unless the recursion of a mechanism begins with the inverse of its C, whatever the rounds.

    Formal guarantee: for the first rounds (32, or twice its rows of memory and eight, or as many as the mechanism has)
    the weights of z in what the recursion computes are C⁻¹ for the C of `coefficients`, `diagonals` or `encoder`, of
    which the sensitivity is, and `encoder` of fewer rounds, of half of them and of one, and of more, is the same matrix
    as far as it goes. Noise that is not C⁻¹z voids every guarantee of this package. On a grid, the sensitivity includes
    how far the recursion's own C may be from C, over all rounds.
    """
    # A subclass could compute anything.
    if type(recursion) is not Recursion:
        raise InputTypeError(
            f"the recursion of kind {mechanism.kind!r} is {recursion!r}: return a mechanisms.Recursion."
        )
    enough = min(max(_FEWEST_ROUNDS, 2 * recursion.rows + 8), _MOST_ROUNDS)
    rounds = min(mechanism.max_rounds or enough, recursion.rounds or enough, enough)
    # What the sensitivity is computed from; a class may have an encoder of its own beside it.
    encoder = mechanism.encoder(rounds)
    if isinstance(mechanism, ToeplitzMechanism):
        encoder = ToeplitzMechanism.encoder(mechanism, rounds)
    elif isinstance(mechanism, BandedMechanism):
        encoder = BandedMechanism.encoder(mechanism, rounds)
    longest = min(mechanism.max_rounds or 2 * rounds, recursion.rounds or _LONGEST, _LONGEST)
    for length in (1, (rounds + 1) // 2, longest):
        common = min(rounds, length)
        change = mechanism.encoder(length)[:common, :common] - encoder[:common, :common]
        if not np.abs(change).max() <= _TOLERANCE * np.abs(encoder).max():
            raise InputValueError(
                f"mechanism of kind {mechanism.kind!r} has another C in {length} rounds than in {rounds}, by which its "
                "sensitivity is known: let encoder(n) be the first n rows and columns of one matrix, also of the one "
                "that coefficients or diagonals give."
            )
    inverse, weights = in_order.solve(encoder, np.eye(rounds)), recursion.responses(rounds)
    error = np.abs(weights - inverse).max(axis=1) / np.abs(inverse).max(axis=1)
    # NaN must not pass.
    wrong = ~(error <= _TOLERANCE)
    if np.any(wrong):
        first = int(np.argmax(wrong))
        raise InputValueError(
            f"the recursion of kind {mechanism.kind!r} is not C⁻¹z: row {first} has the weights "
            f"{weights[first, : first + 1][-3:].tolist()} and must have {inverse[first, : first + 1][-3:].tolist()}. "
            "There is no privacy with other noise."
        )
