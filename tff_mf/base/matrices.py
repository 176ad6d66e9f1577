"""Dense matrices of mechanisms and workloads."""

import hashlib
from collections.abc import Iterable

import numpy as np

from tff_mf.base.errors import InputTypeError, InputValueError

# Of the bound of `check_digits`, which exceeds what is lost by a factor of a thousand and more.
_LARGEST_ERROR = 2.0**-16


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


def of_diagonals(diagonals: np.ndarray) -> np.ndarray:
    """Returns the lower-triangular matrix with these diagonals, from the main one down, float64 `[rounds, rounds]`.

    Example:
        >>> of_diagonals(np.array([[1.0, 2.0], [3.0, 9.0]]))
        array([[1., 0.],
               [3., 2.]])
    """
    rounds = diagonals.shape[1]
    matrix = np.zeros((rounds, rounds))
    for offset, diagonal in enumerate(diagonals[:rounds]):
        np.fill_diagonal(matrix[offset:], diagonal)
    return matrix


def numbers(name: str, values: object) -> np.ndarray:
    """Returns a float64 copy of a matrix of finite numbers.

    Example:
        >>> numbers("matrix", [[1, 2]])
        array([[1., 2.]])
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InputTypeError(f"{name} of type {array.dtype} must hold numbers.")
    if array.ndim != 2 or 0 in array.shape:
        raise InputValueError(f"{name} of shape {array.shape} must have two axes of nonzero length.")
    # Adding 0 makes zeros positive: equal mechanisms must hash and save alike.
    copy = array.astype(np.float64) + 0.0
    if not np.all(np.isfinite(copy)):
        raise InputValueError(f"{name} holds NaN or infinity; all its entries must be finite.")
    return copy


def shaped(name: str, array: object, shape: tuple[int, ...]) -> np.ndarray:
    """Returns what a method of a mechanism returned, if it is a float64 array of the documented shape.

    A class from outside may return less, which would pass for a smaller matrix, or whole numbers, whose squares wrap.

    Raises:
        InputTypeError: If it is not an array of float64.
        InputValueError: If it has another shape.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float64:
        raise InputTypeError(f"{name} must return an array of float64.")
    if array.shape != shape:
        raise InputValueError(f"{name} has the shape {array.shape} and must have {shape}.")
    return array


def check_digits(kind: str, rounds: int, *products: float) -> None:
    """Raises unless the digits of a C that was found by forward substitution are known.

    Where C grows, sums of numbers of both signs lose digits, and another C than the one of the noise would be accounted
    for. By forward substitution, lower·X = right + E with |E| ≤ n·2⁻⁵³/(1 − n·2⁻⁵³)·|lower||X|, entry by entry (Higham
    (2002), theorem 8.5). If E, or A⁻¹E, has at most η < 1 as its largest sum of a column, or as its spectral norm, then
    columns of C are off by at most η/(1 − η) of the largest one.

    Args:
        kind: The kind of the mechanism.
        rounds: Number n of rounds.
        products: Bounds of |lower||X| in such a norm, which add up.

    Example:
        >>> check_digits("dense", 100, 50.0)

    Raises:
        InputValueError: If it is not.
    """
    # Twice the bound, for the rounding of the sums.
    if not rounds * 2.0**-52 * sum(products) <= _LARGEST_ERROR:
        raise InputValueError(
            f"rounds={rounds} are too many for this {kind} mechanism: coefficients of C overflow, or lose digits, "
            "because C and its inverse grow. Take a mechanism whose C does not grow, or fewer rounds."
        )


def digest(arrays: Iterable[np.ndarray]) -> str:
    """Returns the SHA-256 of arrays of numbers: of their shapes, and of their bits as float64.

    Example:
        >>> digest([np.zeros(2)]) == digest([np.zeros(2, np.float32)]) != digest([np.zeros(1), np.zeros(1)])
        True
    """
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(f"{array.shape}".encode() + np.ascontiguousarray(array, "<f8").tobytes())
    return sha256.hexdigest()
