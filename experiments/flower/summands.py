"""A model's arrays as one vector, and what nodes' updates are summed as: floats, or integers of a grid."""

import abc
import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from tff_mf.grids import Grid

from . import clipping, mods


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Names and shapes of a model's float32 arrays, in order.

    Attributes:
        shapes: Shape of each array by its name.

    Example:
        >>> layout = Layout(shapes={"w": (2, 2), "b": (1,)})
        >>> layout.dimension, layout.arrays(np.arange(5, dtype=np.float32))["b"]
        (5, array([4.], dtype=float32))
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def dimension(self) -> int:
        """Number of model parameters d."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def vector(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns arrays as one vector, float32 `[dimension]`."""
        return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in self.shapes])

    def arrays(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a vector `[dimension]` as arrays, which are views of it."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(vector, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def as_json(self) -> list[list[object]]:
        """Returns names and shapes as JSON."""
        return [[name, list(shape)] for name, shape in self.shapes.items()]


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
            return clipping.clip_integers_again(list(reply.values()), bits=self._grid.bits)
        return clipping.clip_to_grid(_update(reply, model, self._replies), self._clip_norm, bits=self._grid.bits)

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
