"""Error and sensitivity of BLTs as finite geometric series, at a cost that does not depend on n."""

from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import OptimizedFor
from tff_mf.mechanisms.geometric import geometric_sum, weighted_geometric_sum


class Term(NamedTuple):
    """A sum over exponentials with weights w and exponents x, and its gradients.

    Attributes:
        value: The sum.
        by_weight: Its gradient by w, of the shape of w.
        by_exponent: Its gradient by x, of the shape of x.
    """

    value: float
    by_weight: np.ndarray
    by_exponent: np.ndarray


class BLTClosedForm:
    """Squared error and squared sensitivity of any BLT in one setting.

    Exponents are x = −log θ: near 0 they have the precision that θ lacks near 1.
    """

    def __init__(self, optimized_for: OptimizedFor, objective: str) -> None:
        participation = optimized_for.participation
        self._rounds = float(optimized_for.rounds)
        starts = participation.min_sep * np.arange(participation.max_participations, dtype=np.float64)
        self._starts = starts[:, np.newaxis]
        self._bridge = participation.min_sep - 1.0
        self._stretches = np.array([self._bridge, optimized_for.rounds - starts[-1] - 1.0])[:, np.newaxis, np.newaxis]
        self._sum = geometric_sum if objective == "max" else weighted_geometric_sum

    def squared_error(self, beta: np.ndarray, exponents: np.ndarray) -> Term:
        """Returns MaxError² or RmsError² of b_i = Σ_p β_p e^(−x_p·i): proposition 3.2."""
        sums, slopes = self._sum(_added(exponents), self._rounds)
        summed = sums @ beta
        return Term(value=float(beta @ summed), by_weight=2 * summed, by_exponent=2 * beta * (slopes @ beta))

    def squared_sensitivity(self, omega: np.ndarray, exponents: np.ndarray) -> Term:
        """Returns ‖C·u(π*)‖² of c_i = Σ_j ω_j e^(−x_j·(i−1)), c₀ = 1: theorem 3.1.

        Participations are at 0, b, 2b, …. From the (m+1)-th of them to the next, row mb + s of C·u(π*) is
        Σ_j ω_j θ_j^(s−1) P_mj with P_mj = Σ_{i≤m} θ_j^(ib): a sum of exponentials in s. Row mb itself is
        1 + Σ_j ω_j θ_j^(b−1) P_(m−1)j.
        """
        carried = np.exp(-self._starts * exponents)
        carried_slope = np.cumsum(-self._starts * carried, axis=0)
        carried = np.cumsum(carried, axis=0)
        before, last = carried[:-1], carried[-1]
        before_slope, last_slope = carried_slope[:-1], carried_slope[-1]
        (sums, last_sums), (slopes, last_slopes) = geometric_sum(_added(exponents), self._stretches)

        bridge = np.exp(-self._bridge * exponents)
        bridged = omega * bridge
        hits = 1 + before @ bridged
        overlap = before.T @ before
        last_overlap = np.multiply.outer(last, last)
        half_by_omega = (overlap * sums + last_overlap * last_sums) @ omega
        half_by_bridged = hits @ before

        # By the exponents in the sums over a stretch, and by those in the sums carried into it.
        by_stretch = (overlap * slopes + last_overlap * last_slopes) @ omega
        by_carried = omega @ ((before.T @ before_slope) * sums + np.multiply.outer(last, last_slope) * last_sums)
        half_by_exponent = omega * (by_stretch + by_carried)
        half_by_exponent += bridged * (hits @ before_slope - self._bridge * half_by_bridged)
        return Term(
            value=1 + hits @ hits + omega @ half_by_omega,
            by_weight=2 * (half_by_omega + half_by_bridged * bridge),
            by_exponent=2 * half_by_exponent,
        )


def _added(exponents: np.ndarray) -> np.ndarray:
    return exponents[:, np.newaxis] + exponents
