"""The pair of distributions that no neighboring runs with balls-in-bins sampling are easier to tell apart than.

Everything depends on C through G alone, the inner products of what a client adds to the released sums in each of its
possible groups. With K = G/σ², the loss of the pair is L = log (1/b) Σ_j exp(a_j − K_jj/2) for a Gaussian vector a with
covariance K. A part of K is the same for all j: K = k·11ᵀ + K′, so that L = L′ + √k·g − k/2 for an independent normal
g, which is integrated out exactly. docs/proofs/amplification.md has the proofs.
"""

import dataclasses

import numpy as np

from tff_mf.accounting.entries import magnitudes_of
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism

# Above them, matrices of bins × bins and of rounds × bins take minutes or gigabytes.
_MOST_BINS = 2**12
_MOST_ENTRIES = 2**27
# What is left to the Gaussian, as a share of the largest that K allows and at least, as a share of the diagonal of K.
_SHARE = 0.999
_LEAST = 1e-8


def balls_in_bins_gram(mechanism: Mechanism, rounds: int, *, bins: int) -> np.ndarray:
    """Returns G with G_ij = ⟨|C|x_i, |C|x_j⟩, where x_j is 1 in the rounds j, j + b, j + 2b, … and 0 elsewhere.

    Everything that balls-in-bins sampling leads to depends on C through G alone. C is that of
    `mechanism.cast_to_float32()`. Each entry has a relative error of at most `gram_error(rounds)`.

    Args:
        mechanism: The mechanism.
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
        InputValueError: If an argument is out of range, or C has an entry that is not finite.
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
    columns = _columns(magnitudes_of(mechanism, rounds), rounds, bins)
    return columns.T @ columns


def gram_error(rounds: int) -> float:
    """Returns a bound on the relative error of each entry of G.

    Sums of n products of numbers of at least 0 have a relative error of at most n·2⁻⁵³ each, in any order; 2⁻⁴⁰ is
    what the package allows for the entries of C.
    """
    return 3 * 2.0**-40 + 4 * (rounds + 64) * 2.0**-53


def _columns(diagonals: np.ndarray, rounds: int, bins: int) -> np.ndarray:
    """Returns the vectors Cx_j as columns, float64 `[rounds, bins]`."""
    if diagonals.shape[1] == 1:
        periods = -(-rounds // bins)
        column = np.pad(diagonals[:, 0], (0, periods * bins - len(diagonals)))
        sums = np.cumsum(column.reshape(periods, bins), axis=0).ravel()[:rounds]
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(bins - 1), sums]), bins)
        return windows[:, ::-1].copy()
    found = np.zeros((rounds, bins))
    for offset, diagonal in enumerate(diagonals):
        steps = np.arange(rounds - offset)
        found[steps + offset, steps % bins] += diagonal[: rounds - offset]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A covariance k·11ᵀ + RRᵀ that is at least K in every entry, and hence dominates K.

    Attributes:
        common: k, above 0.
        root: R, float64 `[bins, bins]`, symmetric up to rounding.
        covariance: K′ = RRᵀ, float64 `[bins, bins]`.
        rounding: Bound on the rounding error of each entry of `covariance`.
    """

    common: float
    root: np.ndarray
    covariance: np.ndarray
    rounding: float

    @property
    def bins(self) -> int:
        return len(self.covariance)

    @property
    def variances(self) -> np.ndarray:
        """The diagonal of K′."""
        return np.diagonal(self.covariance)


def dominating_pair(gram: np.ndarray, *, relative_error: float) -> Pair:
    """Returns the pair for K = `gram`, of which each entry may be too small by `relative_error`.

    R is any matrix; k is then the largest entry of K − RRᵀ, with all rounding errors. Every entry of k·11ᵀ + RRᵀ is
    therefore at least that of K, and both are covariances, so that Kahane's inequality applies.
    """
    bins = len(gram)
    above = gram * (1 + relative_error)
    values, vectors = np.linalg.eigh(above)
    shares = vectors.sum(axis=0) ** 2
    common = _SHARE / np.sum(shares / np.maximum(values, 1e-13 * values[-1]))
    values, vectors = np.linalg.eigh(above - common)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    covariance = root @ root.T
    # Rounding of a product of matrices: at most (bins + 2)·2⁻⁵³ of the product of the absolute values.
    rounding = float(np.max((bins + 8) * 2.0**-52 * (np.abs(root) @ np.abs(root).T) + 2.0**-50 * above))
    common = max(float(np.max(above - covariance)) + rounding, _LEAST * float(np.max(np.diagonal(above))))
    return Pair(common=common, root=root, covariance=covariance, rounding=rounding)
