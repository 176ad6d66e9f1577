"""Memory of rows on a CPU, which is used again: new pages take longer to get than a row takes to compute."""

import weakref
from typing import Any

import numpy as np
import torch

# Rows that are remembered, at most: two states of a mechanism with seven rows of memory.
_MOST = 16


class Memory:
    """Gives rows that are not filled, where nothing holds the memory any more that it gave before.

    Args:
        dimension: Number of coordinates of a row.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        # Arrays, and what tells whether a tensor still holds the view that was given of it.
        self._given: list[tuple[np.ndarray, weakref.ref]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies none of the memory."""
        return Memory, (self._dimension,)

    def empty(self, number: torch.dtype) -> torch.Tensor:
        """Returns a row that is not filled."""
        kind = np.dtype(str(number).removeprefix("torch."))
        for _ in range(len(self._given)):
            # What a thread has taken from the list is not seen by another one.
            array, view = self._given.pop(0)
            if view() is None and array.dtype == kind:
                return self._give(array)
            self._given.append((array, view))
        return self._give(np.empty(self._dimension, kind))

    def _give(self, array: np.ndarray) -> torch.Tensor:
        view = array[:]
        # Every tensor and array that shares this memory holds the view.
        row = torch.from_numpy(view)
        if len(self._given) < _MOST:
            self._given.append((array, weakref.ref(view)))
        return row
