"""What nodes' updates are summed as: floating-point numbers, or integers of a grid."""

import abc
from collections.abc import Mapping

import numpy as np

from tff_mf.grids import Grid

from . import clipping, integers, mods

# What nodes reply with: the model that they trained, its difference from the one that they were sent, or that
# difference in integers.
MODEL, UPDATE, INTEGERS = "model", "update", "integers"
REPLIES = (MODEL, UPDATE, INTEGERS)

Arrays = dict[str, np.ndarray]


class Summands(abc.ABC):
    """How a reply becomes a summand, and how the noised sum becomes a model's change.

    Attributes:
        sent: Type of the arrays in a reply.
        summed: Type of a sum.
    """

    sent: np.dtype = np.dtype(np.float32)
    summed: np.dtype = np.dtype(np.float32)

    @abc.abstractmethod
    def bounded(self, reply: Arrays, model: Mapping[str, np.ndarray]) -> clipping.Clipped:
        """Returns a reply as it is added to the sum, whatever its node sent, and how it was clipped."""

    @abc.abstractmethod
    def noised(self, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Returns a sum with its noise, float32 `[dimension]`, in units of the model."""

    @property
    def for_nodes(self) -> Mapping[str, int | float | str]:
        """What nodes have to know of it, for the settings in a message."""
        return {}


class Floats(Summands):
    """Updates are clipped and summed in float32."""

    def __init__(self, clip_norm: np.float32, replies: str) -> None:
        self._clip_norm, self._replies = clip_norm, replies

    def bounded(self, reply: Arrays, model: Mapping[str, np.ndarray]) -> clipping.Clipped:
        return clipping.clip_again(_update(reply, model, self._replies), self._clip_norm)

    def noised(self, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return total + noise


class Integers(Summands):
    """Updates are integers in units of g = ζ·2^-bits; their sum and the noise are exact in int64.

    Formal guarantee: the release is a function of y = exact sum + integer noise alone, and does not depend on the order
    of the nodes. Each summand has Σq² ≤ 4^bits, whatever its node sent. Nothing overflows: the sum of at most
    `max_clients` summands is at most 2⁵², and so is the noise. The product with g and its rounding to float32 are
    post-processing.

    Args:
        grid: The grid; no more than its `max_clients` updates may be summed.
        clip_norm: ζ.
        replies: What nodes reply with. Floats become integers on the server.
    """

    summed: np.dtype = np.dtype(np.int64)

    def __init__(self, grid: Grid, clip_norm: np.float32, replies: str) -> None:
        self._grid, self._clip_norm, self._replies = grid, clip_norm, replies
        if replies == INTEGERS:
            self.sent = np.dtype(grid.integers)

    def bounded(self, reply: Arrays, model: Mapping[str, np.ndarray]) -> clipping.Clipped:
        if self._replies == INTEGERS:
            return integers.clip_integers_again(list(reply.values()), bits=self._grid.bits)
        return integers.clip_to_grid(_update(reply, model, self._replies), self._clip_norm, bits=self._grid.bits)

    def noised(self, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        # Exact up to the product: both are whole numbers of at most 2⁵².
        unit = float(self._clip_norm) * 2.0**-self._grid.bits
        return ((total + noise).astype(np.float64) * unit).astype(np.float32)

    @property
    def for_nodes(self) -> Mapping[str, int | float | str]:
        if self._replies != INTEGERS:
            return {}
        return {
            mods.BITS: self._grid.bits,
            mods.TYPE: self._grid.integers,
            mods.CLIP_NORM: float(self._clip_norm),
        }


def _update(reply: Arrays, model: Mapping[str, np.ndarray], replies: str) -> list[np.ndarray]:
    """Returns the update in a reply of floats."""
    if replies == UPDATE:
        return list(reply.values())
    with np.errstate(over="ignore", invalid="ignore"):
        return [reply[name] - model[name] for name in reply]
