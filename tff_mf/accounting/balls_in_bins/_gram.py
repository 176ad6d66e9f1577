"""Inner products of what a client adds to the released sums in each of its possible groups of rounds."""

import numpy as np

from tff_mf import _matrices, sensitivities, validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism

# Above them, matrices of bins × bins and of rounds × bins take minutes or gigabytes.
_MOST_BINS = 2**12
_MOST_ENTRIES = 2**27


def balls_in_bins_gram(mechanism: Mechanism, rounds: int, *, bins: int) -> np.ndarray:
    """Returns G with G_ij = ⟨Cx_i, Cx_j⟩, where x_j is 1 in the rounds j, j + b, j + 2b, … and 0 elsewhere.

    Everything that balls-in-bins sampling leads to depends on C through G alone. C is that of
    `mechanism.cast_to_float32()`. Each entry has a relative error of at most `gram_error(rounds)`.

    Args:
        mechanism: A mechanism whose C has no entry below 0.
        rounds: Number of rounds n.
        bins: Number of groups b, at most n.

    Returns:
        G, float64 `[bins, bins]`.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", section 3.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> balls_in_bins_gram(BandedToeplitz(column=[1.0, 0.5]), 4, bins=2)
        array([[2.5 , 1.5 ],
               [1.5 , 2.25]])

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has an entry below 0; the message names the entry.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    rounds = mechanism.check(rounds)
    bins = validation.whole("bins", bins)
    if bins > min(rounds, _MOST_BINS):
        raise InputValueError(f"bins={bins} must be at most {min(rounds, _MOST_BINS)} for {rounds} rounds.")
    if rounds * bins > _MOST_ENTRIES:
        raise InputValueError(
            f"rounds={rounds} times bins={bins} exceeds the {_MOST_ENTRIES:,} entries that are computed with: take "
            "fewer rounds or bins."
        )
    cast = sensitivities.as_released(mechanism)
    sensitivities.check_outside(cast, rounds)
    columns = _columns(cast, rounds, bins)
    return columns.T @ columns


def gram_error(rounds: int) -> float:
    """Returns a bound on the relative error of each entry of G.

    Sums of n products of numbers of at least 0 have a relative error of at most n·2⁻⁵³ each, in any order; 2⁻⁴⁰ is
    what the package allows for the entries of C.

    Example:
        >>> gram_error(2052) < 1e-11
        True
    """
    return 3 * 2.0**-40 + 4 * (rounds + 64) * 2.0**-53


def _columns(mechanism: Mechanism, rounds: int, bins: int) -> np.ndarray:
    """Returns the vectors Cx_j as columns, float64 `[rounds, bins]`."""
    if isinstance(mechanism, ToeplitzMechanism):
        column = _matrices.shaped("coefficients", mechanism.coefficients(validation.listable(rounds)), (rounds,))
        _refuse_negative(column, lambda index: (index, 0))
        periods = -(-rounds // bins)
        padded = np.concatenate([column, np.zeros(periods * bins - rounds)]).reshape(periods, bins)
        sums = np.cumsum(padded, axis=0).ravel()[:rounds]
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(bins - 1), sums]), bins)
        return windows[:, ::-1].copy()
    if isinstance(mechanism, BandedMechanism):
        found = mechanism.diagonals(validation.listable(rounds))
        diagonals = _matrices.shaped("diagonals", found, (mechanism.bands, rounds))[:rounds]
        result = np.zeros((rounds, bins))
        for offset, diagonal in enumerate(diagonals):
            used = diagonal[: rounds - offset]
            _refuse_negative(used, lambda index, offset=offset: (index + offset, index))
            steps = np.arange(rounds - offset)
            result[steps + offset, steps % bins] += used
        return result
    matrix = _matrices.shaped("encoder", mechanism.encoder(validation.dense(rounds)), (rounds, rounds))
    _refuse_negative(matrix.ravel(), lambda index: divmod(index, rounds))
    periods = -(-rounds // bins)
    padded = np.pad(matrix, ((0, 0), (0, periods * bins - rounds)))
    return padded.reshape(rounds, periods, bins).sum(axis=1)


def _refuse_negative(values, place) -> None:
    """Raises unless all values are at least 0; NaN is not. `place` turns an index into a row and a column of C."""
    wrong = np.flatnonzero(~(values >= 0))
    if len(wrong):
        row, column = place(int(wrong[0]))
        raise InputValueError(
            f"mechanism has the entry C[{row}, {column}]={float(values[wrong[0]])!r}, and no theorem amplifies a "
            "C with entries below 0: take a BLT or a banded mechanism, or account for it without amplification."
        )
