"""Rounds of a subject, in units of its claim, and trees of arrays as vectors."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import Claim, Released, Subject


class ReleaseError(InputValueError):
    """A release that is no tree like an update, which cannot be judged. Other errors of a subject refuse a round."""


def leaves(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of a tree of mappings, sequences and arrays, by their paths.

    Example:
        >>> list(leaves({"layer": [np.zeros(2), 1.0]}))
        ['/layer/0', '/layer/1']
    """
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        items = [(str(index), value) for index, value in enumerate(tree)]
    else:
        return {path: np.asarray(tree)}
    return {name: leaf for key, value in items for name, leaf in leaves(value, f"{path}/{key}").items()}


def rebuilt(tree: Any, arrays: list[Any]) -> Any:
    """Returns a tree like another one with these arrays, which are taken from the list in order."""
    if isinstance(tree, Mapping):
        return {key: rebuilt(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [rebuilt(value, arrays) for value in tree]
    return arrays.pop(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A round.

    Attributes:
        state: The state after it.
        estimate: What was released, `[dimension]`.
        sums: The same times the divisor, in clip norms, float64.
        beside: What else was released, by its path.
    """

    state: Any
    estimate: np.ndarray
    sums: np.ndarray
    beside: dict[str, np.ndarray]


class Probe:
    """Runs rounds of a subject.

    Args:
        subject: The subject.
        claim: Its claim.
        like: A tree of arrays, such as an update is.
        clients: Clients of a round.
    """

    def __init__(self, subject: Subject, claim: Claim, like: Any, clients: int) -> None:
        self.subject, self.claim, self.like, self.clients = subject, claim, like, clients
        self.shapes = [leaf.shape for leaf in leaves(like).values()]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.dimension = sum(self.sizes)
        if not self.dimension:
            raise InputValueError("like has no numbers: pass a tree of arrays such as a client's update.")
        self.zeros = self.update(np.zeros(self.dimension))
        # Of equal length in every tensor, so that a clip of single tensors is seen, and of both signs.
        filled = [size for size in self.sizes if size]
        lengths = np.concatenate([np.full(size, (size * len(filled)) ** -0.5) for size in filled])
        self.direction = lengths * np.random.default_rng(0).choice([-1.0, 1.0], self.dimension)

    @property
    def quiet(self) -> list[Any]:
        """A cohort whose updates are zero."""
        return [self.zeros] * self.clients

    def update(self, vector: np.ndarray, dtype: Any = np.float32) -> Any:
        """Returns a vector `[dimension]` as an update."""
        with np.errstate(over="ignore", invalid="ignore"):
            parts = np.split(vector.astype(dtype), np.cumsum(self.sizes)[:-1])
        return rebuilt(self.like, [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)])

    def step(self, state: Any, updates: Sequence[Any]) -> Seen:
        """Runs a round."""
        after, released = self.subject.step(state, list(updates))
        if not isinstance(released, Released):
            released = Released(estimate=released)
        arrays = leaves(released.estimate).values()
        if [array.shape for array in arrays] != self.shapes:
            raise ReleaseError(
                f"released has arrays of the shapes {[array.shape for array in arrays]}, and an update has "
                f"{self.shapes}: return a Released whose estimate is a tree like an update."
            )
        estimate = np.concatenate([array.ravel() for array in arrays])
        with np.errstate(over="ignore", invalid="ignore"):
            sums = estimate.astype(np.float64) * (self.claim.divisor / self.claim.clip_norm)
        return Seen(state=after, estimate=estimate, sums=sums, beside=leaves(released.beside))
