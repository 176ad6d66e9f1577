"""Rounds of a subject, what clients may send in them, and trees of arrays as vectors."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import BrokenError, Claim, NotJudgedError, Released, Subject

# Numbers of noise that are measured, so that a scale that is off by 2 % is found; rounds that are run for it, at most;
# rounds of a start, and numbers of all of its rounds, which are run if they are no more.
_NUMBERS, _MOST_RUN, _ROUNDS, _MOST_WHOLE = 500_000, 32_000, 8, 2e7


def leaves(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of a tree of mappings, sequences and arrays, by their paths.

    Example:
        >>> list(leaves({"layer": [np.zeros(2), 1.0]}))
        ['/layer/0', '/layer/1']
    """
    if isinstance(tree, list | tuple):
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping):
        return {path: np.asarray(tree)}
    return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, f"{path}/{key}").items()}


def rebuilt(tree: Any, arrays: Iterable[Any]) -> Any:
    """Returns a tree like another one with these arrays in the order of `leaves`."""
    remaining = iter(arrays)
    if isinstance(tree, Mapping):
        return {key: rebuilt(value, remaining) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [rebuilt(value, remaining) for value in tree]
    return next(remaining)


class Updates:
    """What clients may send: trees like one of arrays.

    Args:
        like: The tree.
        clip_norm: The claimed bound.
        clients: Clients of a round.

    Attributes:
        shapes, sizes: Of the arrays of a release; `dimension` is how many numbers it has.
        direction: Unit vector along which `half`, `long` and the opposite of it move a release.
        cosine: Of the angle between the direction and how long updates move a release, if the direction was measured.
        zeros, half, long: Updates; `half` of half a clip norm, or `None` if none is known to be.
        cohort: Updates of a round that are all different.
        odd: What a client may send among others, by name.
        lacking: Why they cannot show how far a client moves a release; or empty.
    """

    cosine, lacking = 1.0, ""

    def __init__(self, like: Any, clip_norm: float, clients: int) -> None:
        self._like, self._clip_norm = like, clip_norm
        self.shapes = [leaf.shape for leaf in leaves(like).values()]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.dimension = sum(self.sizes)
        if not self.dimension:
            raise InputValueError("like has no numbers: pass a tree of arrays such as a client's update.")
        generator = np.random.default_rng(0)
        # Of equal length in every tensor, so that a clip of single tensors is seen, and of both signs.
        filled = [size for size in self.sizes if size]
        lengths = np.concatenate([np.full(size, (size * len(filled)) ** -0.5) for size in filled])
        self.direction = lengths * generator.choice([-1.0, 1.0], self.dimension)
        self.zeros, self.half, self.long = (self._along(length) for length in (0.0, 0.5, 1e3))
        scale = clip_norm / 2 / self.dimension**0.5
        self.cohort = [self.tree(scale * generator.normal(size=self.dimension)) for _ in range(clients)]
        self.odd = {"a long update": self.long, "the opposite": self._along(-1e3), "NaN": self._filled(np.nan)}

    def tree(self, vector: np.ndarray, dtype: Any = np.float32) -> Any:
        """Returns a vector `[dimension]` as an update."""
        parts = np.split(vector.astype(dtype), np.cumsum(self.sizes)[:-1])
        return rebuilt(self._like, [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)])

    def _along(self, length: float) -> Any:
        """Returns an update of this many clip norms, as much in every tensor."""
        return self.tree(self.direction * (length * self._clip_norm))

    def _filled(self, value: float, dtype: Any = np.float32) -> Any:
        return self.tree(np.full(self.dimension, value), dtype)

    def single(self, rounds: int, clients: int) -> Iterator[list[Any]]:
        """Yields cohorts whose clients send updates that are large in one place each, another one for each client."""
        places = np.random.default_rng(0).permutation(self.dimension)[: rounds * clients]
        for chosen in np.split(places, range(clients, len(places), clients)):
            yield [self.tree(np.where(np.arange(self.dimension) == place, 3e38, 0.0)) for place in chosen]

    def hostile(self) -> Iterator[tuple[str, Any]]:
        """Yields what a client may send, by name; first a long update, which no subject refuses."""
        yield "an update of 1,000 clip norms", self.long
        for length in (-1e3, 1.5, 1e6):
            yield f"an update of {length:g} clip norms", self._along(length)
        for value in (3e38, -3e38, 1e-40, np.nan, np.inf, -np.inf):
            yield f"{value:g} in every place", self._filled(value)
        for value, dtype in ((1e300, np.float64), (2.0**40, np.int64), (6e4, np.float16)):
            yield f"{value:g} of {np.dtype(dtype)} in every place", self._filled(value, dtype)
        places, long = np.arange(self.dimension), 1e3 * self._clip_norm * self.direction
        for value, others in ((3e38, 0.0), (np.nan, long), (np.inf, long), (-np.inf, long)):
            yield f"{value:g} in one place", self.tree(np.where(places == self.dimension // 3, value, others))
        yield "no tensors", []
        # NumPy repeats a number for all places.
        yield "a number for each tensor", rebuilt(self._like, [np.float32(1e6)] * len(self.shapes))


class RefusedError(NotJudgedError):
    """The subject refuses a round, which may be right."""


class Seen(NamedTuple):
    """A round: the state after it, and what was released, with everything else by its path.

    `estimate` is a vector `[dimension]` of the released type, and `sums` the same times the divisor in clip norms.
    """

    state: Any
    estimate: np.ndarray
    sums: np.ndarray
    beside: dict[str, np.ndarray]


class Trial:
    """A subject that is run, and the noise of its rounds whose updates are zero.

    Args:
        subject: The implementation; and the other arguments are as for `check`.
        updates: What clients may send.

    Attributes:
        quiet: A cohort of clients that send zero.
        factor: What releases are multiplied by, to be sums in clip norms.
        rounds: Rounds of a start: all that are claimed if they do not take long.
        stddevs: Standard deviations of a number of each round's release, in clip norms.
        whitened: Row t of C·noise / σ, float32 `[starts, rounds, dimension]`: standard normal, and independent of all
            other rows.
        states: A state before the first round, and one before the last of `rounds`; `last` is the one after it.
    """

    def __init__(
        self, subject: Subject, claim: Claim, updates: Updates, clients: int, effort: float, elsewhere: str | None
    ) -> None:
        self.subject, self.claim, self.updates, self.clients = subject, claim, updates, clients
        self.effort, self.elsewhere = effort, elsewhere
        self.quiet, self.factor = [updates.zeros] * clients, claim.divisor / claim.clip_norm
        mechanism = claim.mechanism.cast_to_float32()
        rounds = claim.rounds or min(_ROUNDS, mechanism.max_rounds or _ROUNDS)
        self.rounds = rounds if rounds * max(updates.dimension, rounds) <= _MOST_WHOLE else min(_ROUNDS, rounds)
        encoder = mechanism.encoder(self.rounds)
        self.stddevs = claim.noise_multiplier * np.linalg.norm(np.linalg.inv(encoder), axis=1)
        starts = min(math.ceil(_NUMBERS * effort / (self.rounds * updates.dimension)), _MOST_RUN // self.rounds)
        self.whitened, seen = np.empty((max(starts, 2), self.rounds, updates.dimension), np.float32), []
        for whitened in self.whitened:
            try:
                seen = self.run(*[self.quiet] * self.rounds)
            except Exception as error:
                text = f"subject refuses a round of zero updates: {error!r}. Pass a tree like that has their shapes."
                raise InputValueError(text) from error
            whitened[:] = encoder @ np.stack([one.sums for one in seen]) / claim.noise_multiplier
        states = [subject.start(), *(one.state for one in seen)]
        self.states, self.last = (states[0], states[-2]), states[-1]

    def run(self, *cohorts: list[Any]) -> list[Seen]:
        """Runs one round after another from a new start."""
        rounds, state = [], self.subject.start()
        for cohort in cohorts:
            rounds.append(self.step(state, cohort))
            state = rounds[-1].state
        return rounds

    def step(self, state: Any, updates: Sequence[Any]) -> Seen:
        """Runs a round, or raises `RefusedError`."""
        try:
            after, released = self.subject.step(state, list(updates))
            if not isinstance(released, Released):
                released = Released(estimate=released)
            arrays, beside = leaves(released.estimate).values(), leaves(released.beside)
        except Exception as error:
            raise RefusedError(f"It refuses a round of {len(updates)} clients: {error!r}.") from error
        if (shapes := [array.shape for array in arrays]) != self.updates.shapes:
            raise BrokenError(f"It releases arrays of the shapes {shapes}, and an update has {self.updates.shapes}.")
        estimate = np.concatenate([array.ravel() for array in arrays])
        return Seen(after, estimate, estimate.astype(np.float64) * self.factor, beside)
