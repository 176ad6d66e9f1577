"""Errata of Denisov et al. (2022) and Choquette-Choo et al. (2023)."""

import itertools
import math
from collections.abc import Iterator

import _first_principles as first
import numpy as np

# Table 4 of Choquette-Choo et al.: ε, σ, and the server rates of DP-SGD and of the full tree.
TABLE_4 = (
    (1, 4.22468, 0.0244, 0.2035),
    (2, 2.23048, 0.0414, 0.3460),
    (4, 1.19352, 0.0704, 0.5882),
    (8, 0.65294, 0.1197, 1.0000),
    (16, 0.36861, 0.3460, 1.7000),
)


def denisov_rho() -> Iterator[tuple]:
    """Rényi divergences of N(0, σ²) and N(γζ, σ²) by quadrature, divided by the order: the smallest ρ of zCDP."""
    yield "σ / γζ", "ρ by quadrature", "(γζ)² / 2σ²", "printed, (γζ)² / σ²"
    for sigma in (0.5, 1.0, 4.0):
        x = np.linspace(-60 * sigma, 60 * sigma, 400_001)
        for order in (2.0, 5.0):
            # The exponent of p^α q^(1−α); the constants of the two densities cancel up to one.
            exponent = -(order * x**2 + (1 - order) * (x - 1) ** 2) / (2 * sigma**2)
            integral = np.sum(np.exp(exponent)) * (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
            rho = math.log(integral) / (order - 1) / order
            assert abs(rho - 1 / (2 * sigma**2)) < 1e-9 * rho
        yield f"{sigma:g}", f"{rho:.6g}", f"{1 / (2 * sigma**2):.6g}", f"{1 / sigma**2:.6g}"


def denisov_epsilons() -> Iterator[tuple]:
    """ε of table 4 at the noise multipliers of table 3: with the 2, at whole orders, as printed; and exactly."""
    yield "σ", "ε printed", "ε with ρ = 1 / 2σ²", "ε with ρ = 1 / σ²", "exact ε"
    for sigma, printed in ((0.341, "18.9"), (0.682, "8.2"), (1.364, "3.7"), (2.728, "1.7"), (5.456, "0.8")):
        orders = np.arange(2, 513)
        with_two, without = (_converted(each / sigma**2, 1e-6, orders) for each in (0.5, 1.0))
        exact = first.epsilon_of(1 / (2 * sigma**2), 1e-6)
        yield f"{sigma:g}", printed, f"{with_two:.1f}", f"{without:.1f}", f"{exact:.2f}"


def denisov_sides() -> Iterator[tuple]:
    """Proof of proposition D.2: P(⟨a, b⟩ > 0) on either side, for ⟨a, b⟩ = ‖a‖(±1 + σηZ)."""
    yield "ση", "side = 0", "side = 1", "exp(−1 / 2(ση)²)"
    for noise in (0.1, 0.2, 0.33):
        above, below = (0.5 * math.erfc(-mean / noise / math.sqrt(2)) for mean in (1, -1))
        assert below <= math.exp(-0.5 / noise**2) < 0.5 <= above
        yield f"{noise:g}", f"{above:.6f}", f"{below:.2e}", f"{math.exp(-0.5 / noise**2):.2e}"


def banded_algorithm_3() -> Iterator[tuple]:
    """Sensitivities of small non-negative C by all patterns, beside algorithm 3 of the supplement, and corrected."""
    yield "C", "n, b, k", "true", "supplement", "one root"
    random = np.random.default_rng(5)
    ones = np.tril(np.ones((4, 4)))
    for name, matrix, min_sep, most in (
        ("prefix sums", ones, 1, 4),
        ("prefix sums", ones, 2, 2),
        ("identity", np.eye(4), 1, 4),
        ("random, in [0, 1]", np.tril(random.random((8, 8))), 2, 4),
    ):
        gram = np.abs(matrix.T @ matrix)
        rounds = len(gram)
        patterns = [each for each in itertools.combinations(range(rounds), most) if _apart(each, min_sep)]
        true = math.sqrt(max(gram[np.ix_(each, each)].sum() for each in patterns))
        twice = _vec_sens(np.sqrt([_vec_sens(row, min_sep, most) for row in gram]), min_sep, most) ** 0.5
        once = _vec_sens(np.array([_vec_sens(row, min_sep, most) for row in gram]), min_sep, most) ** 0.5
        yield name, f"{rounds}, {min_sep}, {most}", f"{true:.4f}", f"{twice:.4f}", f"{once:.4f}"


def banded_code() -> Iterator[tuple]:
    """Sampling probability and compositions of the printed lines, and with n and m exchanged, at table 5's settings."""
    yield "bands", "q printed", "compositions printed", "q", "compositions"
    steps, records, batch = 2052, 342_477, 1000
    for bands in (1, 9, 18, 32, 64):
        printed = (batch / (steps // bands), math.ceil(records / bands))
        right = (batch / (records // bands), math.ceil(steps / bands))
        yield bands, f"{printed[0]:.4g}", printed[1], f"{right[0]:.4g}", right[1]


def banded_table_4() -> Iterator[tuple]:
    """Server rates by the regression of appendix H, for SGD with momentum 0.95, beside the printed ones."""
    yield "ε", "DP-SGD: regression", "DP-SGD: printed", "full tree: regression", "full tree: printed"
    rounds, most, cohort = 2052, 6, 1000
    independent = math.sqrt(most * (rounds + 1) / 2)
    tree = 12.4715
    for epsilon, sigma, for_sgd, for_tree in TABLE_4:
        rates = []
        for loss in (independent, tree):
            rate = math.exp(-0.95 * math.log(loss * sigma / cohort) - 4.64)
            rates.append(f"{1.7 ** round(math.log(rate, 1.7)):.4f}")
        yield epsilon, rates[0], f"{for_sgd:.4f}", rates[1], f"{for_tree:.4f}"


def banded_single_epoch() -> Iterator[tuple]:
    """Rounds in one epoch of 342,477 clients at a constant cohort size."""
    yield "clients a round", "rounds in one epoch", "clients of 2052 rounds"
    for cohort in (166, 167):
        yield cohort, 342_477 // cohort, cohort * 2052


def _converted(rho: float, delta: float, orders: np.ndarray) -> float:
    rest = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return float(np.min(rho * orders + rest))


def _apart(pattern: tuple[int, ...], min_sep: int) -> bool:
    return all(later - sooner >= min_sep for sooner, later in itertools.pairwise(pattern))


def _vec_sens(values: np.ndarray, min_sep: int, most: int) -> float:
    """Algorithm 2 without its root: the largest sum of values that are min_sep apart."""
    rounds = len(values)
    best = np.zeros((most + 1, rounds + min_sep + 1))
    for count in range(1, most + 1):
        for place in range(rounds - 1, -1, -1):
            best[count, place] = max(values[place] + best[count - 1, place + min_sep], best[count, place + 1])
    return float(best[most, 0])
