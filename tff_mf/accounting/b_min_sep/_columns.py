"""The columns of a banded C, from the diagonal down."""

import numpy as np

from tff_mf import _matrices, sensitivities, validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism

_MOST_ENTRIES = 2**24


def columns_of(mechanism: Mechanism, rounds: int, min_sep: int) -> np.ndarray:
    """Returns columns[t, i] = C[t + i, t], and 0 where t + i ≥ n, float64 `[rounds, bands]`.

    C is that of `mechanism.cast_to_float32()`; bands are counted from its entries.

    Raises:
        InputValueError: If C has an entry below 0, or more than `min_sep` bands.
    """
    cast = sensitivities.as_released(mechanism)
    sensitivities.check_outside(cast, rounds)
    if isinstance(cast, ToeplitzMechanism):
        column = _matrices.shaped("coefficients", cast.coefficients(validation.listable(rounds)), (rounds,))
        used = np.flatnonzero(column)
        _check_bands(int(used[-1]) + 1, min_sep, rounds)
        found = np.tile(column[: used[-1] + 1], (rounds, 1))
    elif isinstance(cast, BandedMechanism):
        found = np.array(
            _matrices.shaped("diagonals", cast.diagonals(validation.listable(rounds)), (cast.bands, rounds)).T
        )
    else:
        matrix = cast.encoder(validation.dense(rounds))
        bands = 1 + int(np.max(np.subtract(*np.nonzero(matrix)), initial=0))
        _check_bands(bands, min_sep, rounds)
        padded = np.pad(matrix, ((0, bands), (0, 0)))
        found = np.stack([padded[t : t + bands, t] for t in range(rounds)])
    steps = np.arange(rounds)[:, np.newaxis] + np.arange(found.shape[1])
    found = np.where(steps < rounds, found, 0.0)
    bands = 1 + int(np.flatnonzero(found.any(axis=0))[-1])
    _check_bands(bands, min_sep, rounds)
    wrong = np.argwhere(~(found >= 0))
    if len(wrong):
        t, offset = (int(each) for each in wrong[0])
        raise InputValueError(
            f"mechanism has the entry C[{t + offset}, {t}]={float(found[t, offset])!r}, and no theorem amplifies a C "
            "with entries below 0: take another banded mechanism, or account for it without amplification."
        )
    return found[:, :bands]


def _check_bands(bands: int, min_sep: int, rounds: int) -> None:
    if bands > min_sep:
        raise InputValueError(
            f"mechanism has {bands} bands, but min_sep={min_sep}: b-min-sep sampling amplifies mechanisms of at most b "
            "bands. Take fewer bands, a larger min_sep, or tff_mf.BallsInBins."
        )
    if bands * rounds > _MOST_ENTRIES:
        raise InputValueError(
            f"rounds={rounds} times {bands} bands exceeds the {_MOST_ENTRIES:,} entries that are computed with: take "
            "fewer rounds or bands."
        )
