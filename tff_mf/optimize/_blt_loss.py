"""The loss of a BLT and its gradient, as finite geometric series, at a cost that does not depend on n."""

from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import BLTParameters, OptimizedFor
from tff_mf.mechanisms.series import geometric_sum, weighted_geometric_sum
from tff_mf.optimize._descent import Value


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


class BLTLoss:
    """log(MaxLoss) or log(RmsLoss) of BLTs with a given number of buffers, and its gradient.

    Decays are exponents x = −log θ and y = −log θ̂, interlaced: 0 < x₁ < y₁ < x₂ < y₂ < …. The
    variables are the logarithms of the increments of this sequence. Each value of the variables
    gives ω > 0, ω̂ < 0 and c₁ = Σ(θ_i − θ̂_i) < 1, so that theorem 3.1 of McMahan et al. (2024) holds
    and no penalty is needed.

    The pair (θ, θ̂) fixes the BLT, by the partial fractions of C(s) = Π(1 − θ̂_j s)/Π(1 − θ_j s) and of
    B(s) = 1/((1 − s)·C(s)): c_i = Σ_j ω_j θ_j^(i−1) for i ≥ 1, and b_i = Σ_p β_p p^i over p ∈ {1, θ̂₁, θ̂₂, …},

        ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i),    β_p = Π_i (p − θ_i) / Π_{q≠p} (p − q).

    All ω and β are positive, so that there is no cancellation in the sums over them.
    """

    def __init__(self, optimized_for: OptimizedFor, objective: str, buffers: int) -> None:
        self._form = BLTClosedForm(optimized_for, objective)
        # Node 0 is the pole 1 of B; the odd nodes are the θ, the other even ones the θ̂.
        nodes = 2 * buffers + 1
        sooner, later = np.triu_indices(nodes, 1)
        self._cumulate = np.tril(np.ones((nodes, nodes)))[:, 1:]
        self._differences = self._cumulate[later] - self._cumulate[sooner]
        self._powers = _powers_in_weights(nodes, sooner, later)
        self._offsets = self._powers @ self._cumulate[sooner]

    def __call__(self, variables: np.ndarray) -> Value:
        """Returns log(loss) and its gradient, float64 `[2·buffers]` like `variables`."""
        increments = np.exp(variables)
        exponents = self._cumulate @ increments
        factors, weights = self._weights(increments)
        error = self._form.squared_error(weights[::2], exponents[::2])
        sens = self._form.squared_sensitivity(weights[1::2], exponents[1::2])

        by_log_weight = np.empty_like(weights)
        by_log_weight[::2] = error.by_weight / error.value
        by_log_weight[1::2] = sens.by_weight / sens.value
        by_log_weight *= weights
        by_exponent = np.empty_like(weights)
        by_exponent[::2] = error.by_exponent / error.value
        by_exponent[1::2] = sens.by_exponent / sens.value
        by_difference = (by_log_weight @ self._powers) * (1 / factors - 1)
        by_increment = by_exponent @ self._cumulate + by_difference @ self._differences - by_log_weight @ self._offsets
        return Value(0.5 * float(np.log(error.value) + np.log(sens.value)), 0.5 * by_increment * increments)

    def parameters(self, variables: np.ndarray) -> BLTParameters:
        """Returns (θ, ω) in the order of falling θ."""
        increments = np.exp(variables)
        _, weights = self._weights(increments)
        return BLTParameters(theta=np.exp(-(self._cumulate @ increments)[1::2]), omega=weights[1::2])

    def _weights(self, increments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns 1 − e^−(z_q − z_p) for each pair p < q of nodes, and the β and ω of the nodes.

        The decays of nodes p and q differ by e^(−z_p)·(1 − e^−(z_q − z_p)), and z_q − z_p is the sum of the increments
        between them, so that no two nearly equal numbers are subtracted.
        """
        factors = -np.expm1(-(self._differences @ increments))
        return factors, np.exp(self._powers @ np.log(factors) - self._offsets @ increments)


def _powers_in_weights(nodes: int, sooner: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Returns the power, 1, −1 or 0, of each pair's difference in each node's weight, `[nodes, pairs]`."""
    powers = np.zeros((nodes, len(sooner)))
    pairs = np.arange(len(sooner))
    power = np.where((later - sooner) % 2, 1.0, -1.0)
    powers[sooner, pairs] = power
    powers[later, pairs] = power
    # C, unlike B, has neither a pole nor a zero at 1.
    powers[1::2, sooner == 0] = 0
    return powers
