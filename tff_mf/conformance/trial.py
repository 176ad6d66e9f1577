"""What is checked: a `Subject`, its `Claim`, what clients may send, and how far that moves a release."""

import dataclasses
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import stats

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid

# A false alarm of one law that is kept.
CHANCE = 1e-10
# Numbers of noise that are measured, so that a scale that is off by 2 % is found; rounds that are run for it, at most;
# rounds of a start, and numbers of all of its rounds, which are run if they are no more.
_NUMBERS, _MOST_RUN, _ROUNDS, _MOST_WHOLE = 500_000, 32_000, 8, 2e7
# Numbers that the runs of a history may draw, and how many runs there are at most.
_DRAWN, _MOST_DRAWS = 2e7, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Tests of one law of what clients do.
_TESTS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What an implementation claims, of which its ε follows.

    Attributes:
        mechanism: The mechanism with strategy matrix C; `Identity()` for independent noise.
        clip_norm: ζ: bound on the L2 norm of a client's update.
        noise_multiplier: σ: standard deviation of a coordinate of z, divided by `clip_norm`.
        divisor: What the noised sum is divided by.
        rounds: Last round; `None` if there is none.
        grid: The grid on which sums and noise are integers, or `None` for floating point.
        numbers_covered: Whether single numbers beside the sum, such as noised counts, are accounted for elsewhere.
        not_promised: Names of laws that the implementation does not claim to keep: they are judged, and fail nothing.

    Raises:
        InputError: If a field is of the wrong type or out of range.
    """

    clip_norm: float
    noise_multiplier: float
    mechanism: Mechanism = dataclasses.field(default_factory=Identity)
    divisor: float = 1.0
    rounds: int | None = None
    grid: Grid | None = None
    numbers_covered: bool = False
    not_promised: Sequence[str] = ()

    def __post_init__(self) -> None:
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        for name in ("clip_norm", "noise_multiplier", "divisor"):
            object.__setattr__(self, name, validation.positive(name, getattr(self, name)))
        if self.rounds is not None:
            self.mechanism.check(self.rounds)
        grids.check(self.grid)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Everything that leaves the server in a round.

    Attributes:
        estimate: The noised sum, divided: a tree like a client's update.
        beside: Everything else, such as counts and metrics: any tree of arrays and numbers.
    """

    estimate: Any
    beside: Any = ()


class Subject(Protocol):
    """An implementation under check. It may raise, which refuses a round."""

    def start(self) -> Any:
        """Returns the state before the first round."""

    def step(self, state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the next state and what is released: a tree like an update, or a `Released`.

        Args:
            state: A state, which must not change.
            updates: A tree of arrays for each client that reports.
        """


class BrokenError(InputValueError):
    """A law is broken, by this evidence; or no law can be judged, if rounds of zero updates are wrong."""

    status = "failed"


class NotJudgedError(InputValueError):
    """A law cannot be judged: why, and what would let it be judged."""

    status = "not judged"


class RefusedError(NotJudgedError):
    """The subject refuses a round, which may be right."""


def deviations_of(tests: int = _TESTS, missed: float = 0.5) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`.

    Or where a number has to be that is found, unless it is missed with this probability.
    """
    return float(stats.norm.isf(CHANCE / 4 / tests) + stats.norm.isf(missed))


def leaves(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of a tree of mappings, sequences and arrays, by their paths.

    Example:
        >>> list(leaves({"layer": [np.zeros(2), 1.0]}))
        ['/layer/0', '/layer/1']
    """
    if not isinstance(tree, Mapping | list | tuple):
        return {path: np.asarray(tree)}
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    return {name: leaf for key, value in items for name, leaf in leaves(value, f"{path}/{key}").items()}


def rebuilt(tree: Any, arrays: Iterable[Any]) -> Any:
    """Returns a tree like another one with these arrays in the order of `leaves`."""
    remaining = iter(arrays)
    if isinstance(tree, Mapping):
        return {key: rebuilt(value, remaining) for key, value in tree.items()}
    return [rebuilt(value, remaining) for value in tree] if isinstance(tree, list | tuple) else next(remaining)


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
        zeros, half, long: Updates; `half` of half a clip norm, or of more if none is known to be.
        cohort: Updates of a round that are all different.
        odd: What a client may send among others, by name.
        huge: What is sent in a single place.
        lacking: Why they cannot show how far a client moves a release; or empty.
    """

    cosine, huge, lacking = 1.0, 3e38, ""

    def __init__(self, like: Any, clip_norm: float, clients: int) -> None:
        self._like, self._clip_norm = like, clip_norm
        self.shapes = [leaf.shape for leaf in leaves(like).values()]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.dimension = sum(self.sizes)
        if not self.dimension:
            raise InputValueError("like has no numbers: pass a tree of arrays such as a client's update.")
        generator = np.random.default_rng(0)
        # Of equal length in every tensor, so that a clip of single tensors is seen, and of both signs.
        tensors = np.count_nonzero(self.sizes)
        lengths = np.repeat([max(1, size * tensors) ** -0.5 for size in self.sizes], self.sizes)
        self.direction = lengths * generator.choice([-1.0, 1.0], self.dimension)
        self.zeros, self.half, self.long = (self._along(length) for length in (0.0, 0.5, 1e3))
        scale = clip_norm / 2 / self.dimension**0.5
        self.cohort = [self.tree(scale * generator.normal(size=self.dimension)) for _ in range(clients)]
        self.odd = {"a long update": self.long, "the opposite": self._along(-1e3), "NaN": self._along(np.nan)}

    def tree(self, vector: np.ndarray, dtype: Any = np.float32) -> Any:
        """Returns a vector `[dimension]` as an update."""
        parts = np.split(vector.astype(dtype), np.cumsum(self.sizes)[:-1])
        return rebuilt(self._like, [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)])

    def _along(self, length: float) -> Any:
        """Returns an update of this many clip norms, as much in every tensor."""
        return self.tree(self.direction * (length * self._clip_norm))

    def single(self, rounds: int, clients: int) -> Iterator[list[Any]]:
        """Yields cohorts whose clients send updates that are large in one place each, another one for each client."""
        places = np.random.default_rng(0).permutation(self.dimension)[: rounds * clients]
        for chosen in np.split(places, range(clients, len(places), clients)):
            yield [self.tree(np.where(np.arange(self.dimension) == place, self.huge, 0.0)) for place in chosen]

    def hostile(self) -> Iterator[tuple[str, Any]]:
        """Yields what else a client may send, by name."""
        for length in (1.5, 1e6):
            yield f"an update of {length:g} clip norms", self._along(length)
        plain = [(value, np.float32) for value in (3e38, -3e38, 1e-40, np.inf, -np.inf)]
        for value, dtype in (*plain, (1e300, np.float64), (2.0**40, np.int64), (6e4, np.float16)):
            yield f"{value:g} of {np.dtype(dtype)} in every place", self.tree(np.full(self.dimension, value), dtype)
        places, long = np.arange(self.dimension), 1e3 * self._clip_norm * self.direction
        for value, others in ((3e38, 0.0), (np.nan, long), (np.inf, long), (-np.inf, long)):
            yield f"{value:g} in one place", self.tree(np.where(places == self.dimension // 3, value, others))
        yield "no tensors", []
        # NumPy repeats a number for all places.
        yield "a number for each tensor", rebuilt(self._like, [np.float32(1e6)] * len(self.shapes))


class Seen(NamedTuple):
    """A round: the state after it, and what was released, with everything else.

    `estimate` is a vector `[dimension]` of the released type, and `sums` the same times the divisor in clip norms.
    """

    state: Any
    estimate: np.ndarray
    sums: np.ndarray
    beside: Any


class Trial:
    """A subject that is run: the noise of rounds whose updates are zero, and how far cohorts move a release.

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
        most, times: Draws that may be taken to see what clients do, and those that are.
        deviations: Standard deviations of the mean of so many releases, along any direction.
        fault: How far a client that is found moves a release, at least.
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
            except RefusedError as error:
                raise RefusedError(f"{error} If it has fewer rounds than {self.rounds}, pass rounds=.") from error
            whitened[:] = encoder @ np.stack([one.sums for one in seen]) / claim.noise_multiplier
        states = [subject.start(), *(one.state for one in seen)]
        self.states, self.last = (states[0], states[-2]), states[-1]
        least = deviations_of(missed=1e-6) * float(self.stddevs[0]) / (clients * updates.cosine)
        self.most = max(2, int(np.clip(_DRAWN / updates.dimension, 4, _MOST_DRAWS) * effort))
        self.times = int(np.clip(math.ceil((least / (_FAULT - 1)) ** 2), 2, self.most))
        self.deviations, self.fault = self.stddevs / math.sqrt(self.times), 1 + least / math.sqrt(self.times)
        # By the identity of updates, which are kept beside them.
        self._contributions: dict[int, tuple[float, Any]] = {id(updates.zeros): (0.0, updates.zeros)}

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
            released = released if isinstance(released, Released) else Released(estimate=released)
            arrays = leaves(released.estimate).values()
        except Exception as error:
            raise RefusedError(f"It refuses a round of {len(updates)} clients: {error!r}. Pass other ones.") from error
        if (shapes := [array.shape for array in arrays]) != self.updates.shapes:
            raise BrokenError(f"It releases arrays of the shapes {shapes}, and an update has {self.updates.shapes}.")
        estimate = np.concatenate([array.ravel() for array in arrays])
        return Seen(after, estimate, estimate.astype(np.float64) * self.factor, released.beside)

    def check(self, who: str, *history: list[Any], expected: float | None = None, variance: float = 0.0) -> float:
        """Runs a history of cohorts many times, and checks how far they move releases, and that there is enough noise.

        A client moves the release of its round alone, by at most 1, and a client that sends zero by nothing.

        Args:
            who: Whom the evidence names.
            history: The cohorts.
            expected: How far a single cohort moves its release along the direction, if that is known.
            variance: How much `expected` varies, relative to a measured move.

        Returns:
            How far the first release is moved along the direction.
        """
        total, squares, along = np.zeros(self.updates.dimension), 0.0, np.empty((self.times, len(history)))
        for row in along:
            seen = self.run(*history)
            row[:] = [one.sums @ self.updates.direction for one in seen]
            total += seen[-1].sums
            squares += float(seen[-1].sums @ seen[-1].sums)
        moved, deviations = np.abs(along.mean(0)), self.deviations[: len(history)]
        clients = np.array([sum(sent is not self.updates.zeros for sent in cohort) for cohort in history], float)
        off = moved - clients if expected is None else np.abs(along.mean(0) - expected)
        excess = off - deviations_of() * math.sqrt(1 + variance) * deviations
        # |m + noise|² = |m|² + 2·m·noise + |noise|², for a last release that clients move by m.
        square, most, deviation = float(total @ total) / self.times**2, clients[-1], deviations[-1]
        longest = deviation**2 * stats.chi2.isf(CHANCE / 4 / _TESTS, len(total))
        if square > most**2 + 2 * most * deviations_of() * deviation + longest:
            moved[-1], excess[-1] = math.sqrt(square - deviation**2 * len(total)), np.inf
        if not np.all(excess <= 0):
            done = int(np.argmax(excess))
            text = f"With {who}, the release of round {done + 1} is moved by {moved[done]:.3g} clip norms, and"
            limit = f"may be by {clients[done]:.0f}" if expected is None else f"of equals by {expected:.3g}"
            raise BrokenError(f"{text} {limit}.")
        counts = np.array([len(total), 1]) * (self.times - 1)
        scatter = np.array([squares - self.times * square, self.times * np.var(along[:, -1])])
        ratios = np.sqrt(scatter.clip(0) / counts) / self.stddevs[len(history) - 1]
        if np.any(stats.chi2.cdf(ratios**2 * counts, counts) < CHANCE / _TESTS):
            text = f"{ratios[0]:.3g} times as large as claimed, and along their updates {ratios[1]:.3g} times"
            raise BrokenError(f"With {who}, the noise is {text}.")
        return float(along[:, 0].mean())

    def contribution(self, update: Any, name: str = "such updates") -> float:
        """Returns how far a client moves a first release along the direction, among equals, which is checked."""
        if id(update) not in self._contributions:
            moved = self.check(f"{self.clients} clients that send {name}", [update] * self.clients)
            self._contributions[id(update)] = moved / self.clients, update
        return self._contributions[id(update)][0]

    def check_sum(self, who: str, *groups: tuple[int, Any]) -> None:
        """Checks that groups of clients, so many that send the same each, move a release as far as among equals."""
        expected = sum(number * self.contribution(update) for number, update in groups)
        senders = [number / self.clients for number, update in groups if update is not self.updates.zeros]
        cohort = [update for number, update in groups for _ in range(number)]
        self.check(who, cohort, expected=expected, variance=float(np.square(senders).sum()))

    def check_seen(self) -> None:
        """Checks that clients can be seen in the noise."""
        if self.updates.lacking:
            raise NotJudgedError(self.updates.lacking)
        if self.fault > _LARGEST_FAULT:
            factor = (self.fault - 1) / (_LARGEST_FAULT - 1)
            clients, smaller = math.ceil(self.clients * factor), self.claim.noise_multiplier / factor
            text = f"Noise hides a client: pass {clients=}, or check with noise_multiplier={smaller:.3g}."
            raise NotJudgedError(text)

    @staticmethod
    def noise_of(elsewhere: str) -> np.ndarray:
        """Returns numbers of the first noise of the subject of MODULE:FUNCTION."""
        module, _, function = elsewhere.partition(":")
        subject, claim, like = getattr(importlib.import_module(module), function)()
        return Trial(subject, claim, Updates(like, claim.clip_norm, 1), 1, 1e-9, None).whitened[..., :500]
