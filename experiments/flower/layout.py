"""A model's arrays as one vector, in which noise is added, and back."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np


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
