"""Rounds of a subject, what clients may send in them, and trees of arrays as vectors."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import BrokenError, Claim, Released, Subject

_T = TypeVar("_T")


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


def rebuilt(tree: Any, arrays: list[Any]) -> Any:
    """Returns a tree like another one with these arrays, which are taken from the list in order."""
    if isinstance(tree, Mapping):
        return {key: rebuilt(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [rebuilt(value, arrays) for value in tree]
    return arrays.pop(0)


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
        """Returns an update of so many clip norms, as much in every tensor."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A round.

    Attributes:
        before: The state before it.
        state: The state after it.
        estimate: What was released, `[dimension]`.
        sums: The same times the divisor, in clip norms, float64.
        beside: What else was released, by its path.
    """

    before: Any
    state: Any
    estimate: np.ndarray
    sums: np.ndarray
    beside: dict[str, np.ndarray]


class Probe:
    """Runs rounds of a subject.

    Args:
        subject: The subject.
        claim: Its claim.
        updates: What clients may send.
        clients: Clients of a round.
    """

    def __init__(self, subject: Subject, claim: Claim, updates: Updates, clients: int) -> None:
        self.subject, self.claim, self.updates, self.clients = subject, claim, updates, clients
        self.dimension = updates.dimension
        self.quiet = [updates.zeros] * clients
        self.factor = claim.divisor / claim.clip_norm

    def run(self, cohorts: Iterable[list[Any]]) -> Iterator[Seen]:
        """Runs one round after another from a new start."""
        state = self.subject.start()
        for cohort in cohorts:
            seen = self.step(state, cohort)
            yield seen
            state = seen.state

    def step(self, state: Any, updates: Sequence[Any]) -> Seen:
        """Runs a round."""
        after, released = self.subject.step(state, list(updates))
        if not isinstance(released, Released):
            released = Released(estimate=released)
        arrays = leaves(released.estimate).values()
        if (shapes := [array.shape for array in arrays]) != self.updates.shapes:
            raise BrokenError(f"It releases arrays of the shapes {shapes}, and an update has {self.updates.shapes}.")
        estimate = np.concatenate([array.ravel() for array in arrays])
        sums = estimate.astype(np.float64) * self.factor
        return Seen(before=state, state=after, estimate=estimate, sums=sums, beside=leaves(released.beside))


def unless_refused(function: Callable[..., _T], *arguments: Any) -> _T | None:
    """Calls a function that runs rounds, which the subject may refuse; then it is `None`."""
    try:
        return function(*arguments)
    except BrokenError:
        raise
    except Exception:
        return None


def main() -> None:
    """Writes the first noise of the subject of MODULE:FUNCTION, the first argument, to a file, the second."""
    module, _, function = sys.argv[1].partition(":")
    subject, claim, like = getattr(importlib.import_module(module), function)()
    probe = Probe(subject, claim, Updates(like, claim.clip_norm, 1), 1)
    np.save(sys.argv[2], next(probe.run([probe.quiet])).sums)
