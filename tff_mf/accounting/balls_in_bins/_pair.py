"""The pair of distributions that no neighboring runs with balls-in-bins sampling are easier to tell apart than.

With K = G/σ², the loss of the pair is L = log (1/b) Σ_j exp(a_j − K_jj/2) for a Gaussian vector a with covariance K. A
part of K is the same for all j: K = k·11ᵀ + K′, so that L = L′ + √k·g − k/2 for an independent normal g, which is
integrated out exactly. docs/amplification.md has the proofs.
"""

import dataclasses

import numpy as np

# Bounds the rounding error of everything that is computed from a sample, as an amount of ε and as a share of δ.
LOSS_SLACK = 1e-9
DELTA_SLACK = 1e-7

# What is left to the Gaussian, as a share of the largest that K allows and at least, as a share of the diagonal of K.
_SHARE = 0.999
_LEAST = 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A covariance k·11ᵀ + RRᵀ that is at least K in every entry, and hence dominates K.

    Attributes:
        common: k, above 0.
        root: R, float64 `[bins, bins]`, symmetric up to rounding.
        covariance: K′ = RRᵀ, float64 `[bins, bins]`.
        variances: The diagonal of K′, float64 `[bins]`.
        rounding: Bound on the rounding error of each entry of `covariance`.
    """

    common: float
    root: np.ndarray
    covariance: np.ndarray
    variances: np.ndarray
    rounding: float

    @property
    def bins(self) -> int:
        """Number of groups b."""
        return len(self.variances)


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
    variances = np.diagonal(covariance).copy()
    return Pair(common=common, root=root, covariance=covariance, variances=variances, rounding=rounding)


def log_mean_exp(values: np.ndarray) -> np.ndarray:
    """Returns log of the mean of exp over the last axis.

    Example:
        >>> float(log_mean_exp(np.zeros(3)))
        0.0
    """
    most = values.max(axis=-1, keepdims=True)
    return most[..., 0] + np.log(np.exp(values - most).mean(axis=-1))


def gaussian_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """Returns δ(ε) of one Gaussian release for an array of ε of any sign: E[(e^(μg − μ²/2) − e^ε)₊].

    It is also E[(1 − e^(ε + μg − μ²/2))₊]. The relative error is below 1e-8.

    Example:
        >>> gaussian_delta(np.array([1.0]), 1 / 4.22468).round(8)
        array([1.e-06])
    """
    # Imported here: it takes half of the import time of the package.
    from scipy.special import erfcx, log_ndtr, ndtr

    epsilon = np.asarray(epsilon, dtype=np.float64)
    at = epsilon / mu - mu / 2
    above = np.maximum(at, 0)
    below = np.minimum(at, 0)
    tails = erfcx(above / np.sqrt(2)) - erfcx((above + mu) / np.sqrt(2))
    far = 0.5 * np.exp(-above * above / 2) * np.maximum(tails, 0)
    near = ndtr(-below) - np.exp(np.minimum(epsilon, mu * mu / 2) + log_ndtr(-below - mu))
    return np.where(at > 0, far, near)
