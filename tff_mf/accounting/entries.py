"""The entries of the C that is released, from the diagonal down: what every theorem here is about."""

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism


def diagonals_of(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Returns D[i, t] = C[t + i, t], and 0 below the last row of C; all t share one column if C is Toeplitz.

    C is the matrix that noise runs with. Its bands are counted from its entries.

    Returns:
        float64 `[bands, rounds]`, or `[bands, 1]` for a Toeplitz C.

    Example:
        >>> from tff_mf import Banded, BandedToeplitz
        >>> diagonals_of(BandedToeplitz(column=[1.0, 0.75, 0.0]), 4)
        array([[1.  ],
               [0.75]])
        >>> diagonals_of(Banded(values=[[1.0, 2.0], [0.5, 0.25]]), 2)
        array([[1. , 2. ],
               [0.5, 0. ]])
    """
    mechanism, rounds = mechanism.cast_to_float32(), mechanism.check(rounds)
    if isinstance(mechanism, ToeplitzMechanism):
        column = mechanism.coefficients(validation.listable(rounds))
        diagonals = matrices.shaped("coefficients", column, (rounds,))[:, np.newaxis]
    elif isinstance(mechanism, BandedMechanism):
        diagonals = mechanism.checked_diagonals(rounds)
    else:
        matrix = matrices.shaped("encoder", mechanism.encoder(validation.dense(rounds)), (rounds, rounds))
        bands = 1 + int(np.max(np.subtract(*np.nonzero(matrix)), initial=0))
        diagonals = np.zeros((bands, rounds))
        for offset, diagonal in enumerate(diagonals):
            diagonal[: rounds - offset] = np.diagonal(matrix, -offset)
    return diagonals[: 1 + int(np.max(np.flatnonzero(diagonals.any(axis=1)), initial=0))]


def bands_and_norm(mechanism: Mechanism, rounds: int) -> tuple[int, float]:
    """Returns the number of bands of the C that is released, counted from its entries, and its largest column norm.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> bands_and_norm(BandedToeplitz(column=[1.0, 0.75, 0.0]), 4)
        (2, 1.25)
    """
    diagonals = diagonals_of(mechanism, rounds)
    return len(diagonals), float(np.sqrt(np.max(np.sum(np.square(diagonals), axis=0))))


def magnitudes_of(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Returns `diagonals_of` the matrix |C|, whose entries are the absolute values of C's.

    Contributions of norm at most 1 have inner products of at least −1, so that entries below 0 can add up as those
    above 0 do: docs/proofs.md has the proof that a theorem for |C| holds for C.

    Raises:
        InputValueError: If C has an entry that is not finite.
    """
    diagonals = diagonals_of(mechanism, rounds)
    if not np.all(np.isfinite(diagonals)):
        raise InputValueError(f"mechanism of kind {mechanism.kind!r} has entries of C that are not finite: scale it.")
    return np.abs(diagonals)
