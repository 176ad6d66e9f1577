"""Dense matrices of mechanisms and workloads."""

import numpy as np


def lower_toeplitz(column: np.ndarray) -> np.ndarray:
    """Returns the lower-triangular Toeplitz matrix with this first column, float64 `[rounds, rounds]`.

    Example:
        >>> lower_toeplitz(np.array([1.0, 2.0]))
        array([[1., 0.],
               [2., 1.]])
    """
    rounds = len(column)
    padded = np.concatenate([np.zeros(rounds - 1), column])
    windows = np.lib.stride_tricks.sliding_window_view(padded, rounds)
    return windows[:, ::-1].copy()
