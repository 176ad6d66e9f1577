"""Sums, products and inverses of matrices, one operation of IEEE 754 after another: the same bits on every machine.

What integers of noise are computed from must not depend on the machine: where a coefficient is rounded, a last bit can
change it, and noise that is replayed from its keys is then other noise. BLAS, LAPACK, `np.dot`, `np.sum`, `np.power`,
`np.exp` and SciPy's filters promise neither an order of additions nor how a result is rounded; they differ between
processors, versions and numbers of threads. The built-in `sum` compensates floats from Python 3.12 on, and `math.hypot`
has several algorithms: `math.fsum` and `math.sqrt` have one result.

Here NumPy adds, subtracts, multiplies and divides float64 element by element, which rounds each result once, in an
order that the code states. A product and a sum are two calls, so that no compiler fuses them.
"""

from collections.abc import Sequence

import numpy as np

# Rows and columns of a part of `solve`, which stays in the cache; they change no bit.
_ROWS, _COLUMNS = 128, 256
# Terms of a power series that are computed one by one, at least.
_TERMS = 1024


def sums(values: np.ndarray) -> np.ndarray:
    """Returns the sums along the last axis, from its first value to its last one.

    Example:
        >>> sums(np.array([[2.0**53, 1.0, 1.0]])) == 2.0**53
        array([ True])
    """
    return np.add.accumulate(values, axis=-1)[..., -1]


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the matrix product, whose sums begin with the first column of `left`.

    Example:
        >>> product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
        array([[11.]])
    """
    total = np.zeros((len(left), right.shape[1]))
    for column, row in zip(left.T, right, strict=True):
        total += column[:, np.newaxis] * row
    return total


def solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns lower⁻¹·right for two lower-triangular matrices, by forward substitution.

    Column k of `lower` is subtracted before column k + 1, and columns of zeros are left out. Numbers that are too large
    become infinite or NaN.

    Args:
        lower: float64 `[n, n]`, with no 0 on its diagonal.
        right: float64 `[n, n]`.

    Example:
        >>> solve(np.array([[2.0, 0.0], [1.0, 4.0]]), np.eye(2))
        array([[ 0.5  ,  0.   ],
               [-0.125,  0.25 ]])
    """
    solution = np.zeros(right.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        for left in range(0, len(lower), _COLUMNS):
            # What is above is 0.
            below, columns = lower[left:, left:], right[left:, left : left + _COLUMNS].astype(np.float64)
            for begin in range(0, len(columns), _ROWS):
                rows = columns[begin : begin + _ROWS]
                factors, scratch = below[begin : begin + _ROWS, :, np.newaxis], np.empty_like(rows)
                for k in np.flatnonzero(factors[:, :begin].any(axis=0)):
                    np.multiply(factors[:, k], columns[k], out=scratch)
                    np.subtract(rows, scratch, out=rows)
                for place, row in enumerate(rows):
                    row /= factors[place, begin + place]
                    rows[place + 1 :] -= factors[place + 1 :, begin + place] * row
            solution[left:, left : left + _COLUMNS] = columns
    return solution


def reciprocal(coefficients: Sequence[float] | np.ndarray, rounds: int) -> np.ndarray:
    """Returns the first `rounds` coefficients of 1 / Σ_l c_l x^l: the first column of LtToep(c)⁻¹.

    By forward substitution; what a block of rounds adds to later ones is known at its start, so that all of its terms
    are sums of shifted first terms. Methods that are faster for many coefficients lose the digits of small ones.

    Args:
        coefficients: c, the first of which is not 0.
        rounds: Number of terms, at least 1.

    Example:
        >>> reciprocal([2.0, 1.0], 3)
        array([ 0.5  , -0.25 ,  0.125])
    """
    first, *later = np.asarray(coefficients[:rounds], dtype=np.float64).tolist()
    ratios = np.array(later) / first
    reach, block = len(ratios), min(rounds, max(_TERMS, 4 * len(ratios)))
    # Before its own round, a term is the sum of what earlier ones add to it.
    terms = np.zeros(rounds + reach + block)
    terms[0] = 1 / first
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(block):
            terms[t + 1 : t + 1 + reach] -= ratios * terms[t]
        response = terms[:block] * first
        for begin in range(block, rounds, block):
            end = begin + block
            carried = terms[begin : begin + reach].tolist()
            terms[begin : begin + reach] = 0.0
            for shift, value in enumerate(carried):
                terms[begin + shift : end] += value * response[: block - shift]
            for back in range(1, reach + 1):
                terms[end : end + reach + 1 - back] -= ratios[back - 1 :] * terms[end - back]
    return terms[:rounds]
