"""Error of a banded C and its gradient in O(rounds · bands²): the optimizer's inner loop."""

from typing import NamedTuple

import numpy as np

# Rounds by which the window of errors advances: products of small matrices are slow, and long blocks waste work.
_BLOCK = 96


class BandedError:
    """Sum over rounds of the variance of A·C⁻¹z, and its gradient with respect to the diagonals of C.

    The errors x = A·C⁻¹z satisfy M·x = z with M = C·A⁻¹, which is banded if A⁻¹ is: given as many errors as M has bands
    below its diagonal, the next ones are a linear function of them and of fresh noise. The covariance of a window of
    errors therefore advances block by block, by matrix products. No matrix of size [rounds, rounds] is formed. The
    gradient comes from the same recursion run backwards.

    Diagonals are stored as in LAPACK: row l, column j holds the entry (j + l, j).
    """

    def __init__(self, workload_inverse: np.ndarray) -> None:
        """Takes the diagonals of A⁻¹, float64 `[few, rounds]`."""
        self._inverse = workload_inverse

    def __call__(self, diagonals: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the sum of variances and its gradient for the diagonals of C, float64 `[bands, rounds]`."""
        bands, rounds = diagonals.shape
        extra = len(self._inverse) - 1
        reach = max(bands - 1 + extra, 1)
        product = np.zeros((reach + 1, reach + rounds))
        for step, row in enumerate(self._inverse):
            product[step : step + bands, reach : reach + rounds - step] += diagonals[:, step:] * row[: rounds - step]
        value, product_gradient = _sum_of_variances(product, reach, rounds)
        gradient = np.zeros_like(diagonals)
        for step, row in enumerate(self._inverse):
            part = product_gradient[step : step + bands, reach : reach + rounds - step]
            gradient[:, step:] += part * row[: rounds - step]
        return value, gradient


class _Step(NamedTuple):
    """The intermediate results of one block of rounds that the gradient needs.

    Attributes:
        start: Its first round.
        window: Covariance of the errors before it, `[reach, reach]`.
        weights: K, so that the block is R·z − K·window, `[block, reach]`.
        noise: R, the inverse of the diagonal block of M, `[block, block]`.
    """

    start: int
    window: np.ndarray
    weights: np.ndarray
    noise: np.ndarray


def _sum_of_variances(product: np.ndarray, reach: int, rounds: int) -> tuple[float, np.ndarray]:
    """Returns tr((MᵀM)⁻¹) and its gradient, in the padded layout of `product`."""
    import scipy.linalg

    rows = _by_rows(product, reach, rounds)
    window = np.zeros((reach, reach))
    steps: list[_Step] = []
    total = 0.0
    for start in range(0, rounds, min(_BLOCK, reach)):
        dense = _dense(rows[start : start + min(_BLOCK, reach)])
        size = len(dense)
        noise = scipy.linalg.solve_triangular(dense[:, reach:], np.eye(size), lower=True, check_finite=False)
        weights = noise @ dense[:, :reach]
        steps.append(_Step(start, window, weights, noise))
        cross = weights @ window
        inside = noise @ noise.T + cross @ weights.T
        total += np.trace(inside)
        moved = np.empty_like(window)
        moved[: reach - size, : reach - size] = window[size:, size:]
        moved[reach - size :, : reach - size] = -cross[:, size:]
        moved[: reach - size, reach - size :] = -cross[:, size:].T
        moved[reach - size :, reach - size :] = inside
        window = moved
    return float(total), _gradient(steps, reach, rounds)


def _gradient(steps: list[_Step], reach: int, rounds: int) -> np.ndarray:
    gradient = np.zeros((reach + 1, reach + rounds))
    rows = _by_rows(gradient, reach, rounds)
    adjoint = np.zeros((reach, reach))
    for start, window, weights, noise in reversed(steps):
        size = len(noise)
        inside = adjoint[reach - size :, reach - size :] + np.eye(size)
        own = inside @ weights
        across = own.copy()
        across[:, size:] -= adjoint[reach - size :, : reach - size]
        by_weights = 2 * (across @ window)
        by_dense = np.empty((size, reach + size))
        by_dense[:, :reach] = noise.T @ by_weights
        by_dense[:, reach:] = -(noise.T @ (by_weights @ weights.T + 2 * inside @ (noise @ noise.T)))
        rows[start : start + size] = _skewed(by_dense)
        # Half of KᵀΛK belongs to either side of the symmetric update.
        update = weights.T @ (across - 0.5 * own)
        moved = update + update.T
        moved[size:, size:] += adjoint[: reach - size, : reach - size]
        adjoint = moved
    return gradient


def _by_rows(padded: np.ndarray, reach: int, rounds: int) -> np.ndarray:
    """Returns a view of diagonals as rows of M: entry (i, t) belongs to row i and column i − reach + t.

    `padded` has `reach` additional columns on the left, so that these columns exist from the first round on.
    """
    step = padded.itemsize
    return np.lib.stride_tricks.as_strided(
        padded[reach:], (rounds, reach + 1), (step, step - padded.strides[0]), writeable=True
    )


def _dense(rows: np.ndarray) -> np.ndarray:
    """Returns rows of a banded matrix in their columns: each row starts one column after the previous one."""
    size, width = rows.shape
    dense = np.zeros((size, width - 1 + size))
    _skewed(dense)[:] = rows
    return dense


def _skewed(dense: np.ndarray) -> np.ndarray:
    """Returns a view of the band of a result of `_dense`, `[size, width]`."""
    size, width = dense.shape
    step = dense.itemsize
    return np.lib.stride_tricks.as_strided(dense, (size, width - size + 1), (dense.strides[0] + step, step))
