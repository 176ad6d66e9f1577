"""Loss of a BLT and its gradient in variables all of whose values are valid BLTs."""

import numpy as np

from tff_mf.mechanisms import BLTParameters, OptimizedFor
from tff_mf.optimize._blt_closed_form import BLTClosedForm


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

    def __call__(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
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
        by_increment = self._by_increment(factors, by_log_weight, by_exponent)
        return 0.5 * float(np.log(error.value) + np.log(sens.value)), 0.5 * by_increment * increments

    def gradient(self, variables: np.ndarray, by_log_omega: np.ndarray, by_exponent: np.ndarray) -> np.ndarray:
        """Returns the gradient by the variables of a function of log ω and x = −log θ, whose gradients are given."""
        increments = np.exp(variables)
        factors, weights = self._weights(increments)
        by_log_weight, by_node = np.zeros_like(weights), np.zeros_like(weights)
        by_log_weight[1::2], by_node[1::2] = by_log_omega, by_exponent
        return self._by_increment(factors, by_log_weight, by_node) * increments

    def _by_increment(self, factors: np.ndarray, by_log_weight: np.ndarray, by_exponent: np.ndarray) -> np.ndarray:
        by_difference = (by_log_weight @ self._powers) * (1 / factors - 1)
        return by_exponent @ self._cumulate + by_difference @ self._differences - by_log_weight @ self._offsets

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
