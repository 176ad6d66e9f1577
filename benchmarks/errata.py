"""Prints the tables of docs/papers.md, computed with NumPy alone: `python benchmarks/errata.py [--json] [NAME ...]`.

Long tables are in docs/results/errata.json instead, which has what `--json` prints. Nothing comes from the package, so
that the two can be compared: privacy and node counts are computed from their definitions.
"""

import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np


def delta_of(mu: float, epsilon: float) -> float:
    """Returns δ of a Gaussian release of sensitivity μ·σ: Balle and Wang (2018), theorem 8."""
    upper = 0.5 * math.erfc((epsilon / mu - mu / 2) / math.sqrt(2))
    lower = 0.5 * math.erfc((epsilon / mu + mu / 2) / math.sqrt(2))
    return upper - (math.exp(epsilon + math.log(lower)) if lower > 0 else 0.0)


def epsilon_of(rho: float, delta: float) -> float:
    """Returns the exact ε of a Gaussian release that is ρ-zCDP, by bisection."""
    mu = math.sqrt(2 * rho)
    low, high = 0.0, rho + 2 * math.sqrt(rho * math.log(1 / delta))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(mu, middle) > delta else (low, middle)
    return high


def converted(rho: float, delta: float) -> float:
    """Returns ε by today's conversion of Rényi privacy, at the orders of dp-accounting: larger than the exact ε."""
    alpha = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024])
    return float(np.min(rho * alpha + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)))


def converted_by_mironov(rho: float, delta: float) -> float:
    """Returns ε by the conversion of Mironov (2017), at the orders that were usual: larger still."""
    alpha = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
    return float(np.min(rho * alpha + math.log(1 / delta) / (alpha - 1)))


def node_matrix(rounds: int) -> np.ndarray:
    """Returns C of the tree: a row for each node that is complete within the rounds, with ones at its leaves."""
    levels = [np.kron(np.eye(rounds >> level), np.ones(2**level)) for level in range(rounds.bit_length())]
    return np.concatenate([np.pad(each, ((0, 0), (0, rounds - each.shape[1]))) for each in levels])


def squared_counts(patterns: np.ndarray, rounds: int, *, vanilla: bool = False) -> np.ndarray:
    """Returns ‖Cu‖² of the tree for patterns, int `[patterns, participations]`: squared participations below a node.

    With `vanilla` only left children and roots are counted. The sums that `GetSum` returns are sums of these, and each
    is the difference of two such sums, so that this is the exact squared sensitivity of what `GetSum` releases.
    """
    patterns = np.asarray(patterns)
    total = np.zeros(len(patterns), dtype=np.int64)
    owner = np.arange(len(patterns))[:, None] * 2 * rounds
    for level in range(rounds.bit_length()):
        nodes = patterns >> level
        complete = ((nodes + 1) << level <= rounds) & (not vanilla or nodes % 2 == 0)
        keys, counts = np.unique((owner + nodes)[complete], return_counts=True)
        total += np.bincount(keys // (2 * rounds), counts**2, len(patterns)).astype(np.int64)
    return total


def fixed_epoch_squares(rounds: int, epoch: int, *, vanilla: bool = False) -> int:
    """Returns the largest ‖Cu‖² over all clients whose place in each epoch is fixed: `epoch` patterns, all tried."""
    patterns = np.arange(epoch)[:, None] + np.arange(0, rounds, epoch)
    return int(squared_counts(patterns, rounds, vanilla=vanilla).max())


def min_sep_squares(rounds: int) -> dict[tuple[int, int], int]:
    """Returns the largest ‖Cu‖² for every (b, k), over all 2ⁿ sets of rounds.

    The result for k is over patterns of exactly k rounds, which is the largest over at most k, since ‖Cu‖² grows
    with the pattern, if k rounds fit.
    """
    sets = np.arange(2**rounds)
    bits = (sets[:, None] >> np.arange(rounds)) & 1
    squares = np.sum((bits @ node_matrix(rounds).T.astype(np.int64)) ** 2, axis=1)
    size = bits.sum(axis=1)
    best = {}
    allowed = np.full(len(sets), True)
    for min_sep in range(1, rounds):
        for most in range(2, (rounds - 1) // min_sep + 2):
            best[min_sep, most] = int(squares[allowed & (size == most)].max())
        allowed &= (sets & sets >> min_sep) == 0
    return best


# Kairouz et al. (2021).

# Name, examples, batch, epochs, δ, and the printed σ and ε of tables 6 and 7. Table 7 prints no epochs: with these,
# theorem D.2 gives its ε.
IMAGES = (
    ("6a MNIST", 60_000, 250, 20, 1e-5, ((4, 26.21), (7, 12.76), (20, 3.70), (50, 1.34))),
    ("6a MNIST", 60_000, 1000, 80, 1e-5, ((8, 26.21), (14, 12.76), (40, 3.70), (100, 1.34))),
    ("6b CIFAR-10", 50_000, 500, 100, 1e-5, ((10, 23.73), (12.1, 18.51), (18.1, 11.17), (27, 6.91), (50, 3.40))),
    ("6b CIFAR-10", 50_000, 2000, 400, 1e-5, ((20, 23.73), (24.2, 18.51), (36.2, 11.17), (54, 6.91), (100, 3.40))),
    ("6c EMNIST", 697_932, 500, 50, 1e-6, ((8, 24.64), (16, 10.46), (30, 5.06), (100, 1.35))),
    ("6c EMNIST", 697_932, 2000, 200, 1e-6, ((16, 24.64), (32, 10.46), (60, 5.06), (200, 1.35))),
    ("7 MNIST", 60_000, 500, 40, 1e-5, ((14, 8.37),)),
    ("7 MNIST", 60_000, 1000, 80, 1e-5, ((28, 5.57),)),
    ("7 CIFAR-10", 50_000, 100, 20, 1e-5, ((2.42, 55.44),)),
    ("7 CIFAR-10", 50_000, 1000, 200, 1e-5, ((24.2, 11.96),)),
    ("7 EMNIST", 697_932, 100, 10, 1e-6, ((3.2, 28.51),)),
    ("7 EMNIST", 697_932, 1000, 100, 1e-6, ((32, 6.97),)),
)
CLIENTS, ROUNDS = 342_477, 1600


def kairouz_tables_6_and_7() -> Iterator[tuple]:
    """Theorem D.2's squared sensitivity, E·⌈lg nE⌉, beside that of what `GetSum` releases, and of all nodes."""
    yield (
        *("table", "batch", "epochs", "E·⌈lg nE⌉", "`GetSum`", "all nodes"),
        *("σ", "ε printed", "ε by D.2", "ε of `GetSum`", "ε of all nodes"),
    )
    for name, examples, batch, epochs, delta, rows in IMAGES:
        epoch = -(-examples // batch)
        rounds = epoch * epochs
        printed = epochs * math.ceil(math.log2(rounds))
        vanilla, tree = (fixed_epoch_squares(rounds, epoch, vanilla=each) for each in (True, False))
        for sigma, epsilon in rows:
            by_theorem = converted(printed / (2 * sigma**2), delta)
            exact = [f"{epsilon_of(squares / (2 * sigma**2), delta):.2f}" for squares in (vanilla, tree)]
            row = (name, batch, epochs, printed, vanilla, tree, f"{sigma:g}", f"{epsilon:.2f}")
            yield *row, f"{by_theorem:.2f}", *exact


def kairouz_noise_of_theorems() -> Iterator[tuple]:
    """σ of theorems C.3, D.1 and D.2 at δ = 1e-6, and the exact ε that it gives with their own sensitivity."""
    yield "ε claimed", "ε with σ of D.1 and D.2", "ε with σ of C.3"
    delta = 1e-6
    for epsilon in (0.1, 0.5, 1.0, 2.0, 8.0, 16.0):
        # Divided by the sensitivity, σ is √ln(1/δ) / ε, and √(2 ln(1/δ)) / ε: that of C.3 serves two trees.
        rho = epsilon**2 / (2 * math.log(1 / delta))
        yield f"{epsilon:g}", f"{epsilon_of(rho, delta):.3f}", f"{epsilon_of(rho / 2, delta):.3f}"


def kairouz_levels() -> Iterator[tuple]:
    """Nodes of a tree over n rounds that hold one round, beside the printed ⌈lg n⌉."""
    yield "n", "⌈lg n⌉", "most nodes that hold one round"
    for rounds in (1, 2, 3, 4, 7, 8, 9, 1024, 1600, 2048):
        most = squared_counts([[each] for each in range(rounds)], rounds).max()
        yield rounds, math.ceil(math.log2(rounds)), int(most)


def kairouz_report_goal() -> Iterator[tuple]:
    """ε of DP-FTRLM with restarts at the noise of G.2, by theorem D.1 with ⌊lg n⌋ + 1 nodes a round."""
    yield "report goal", "σ", "epochs", "E·(⌊lg n⌋ + 1)", "ε", "printed"
    for goal, sigma, printed in (
        (1000, 1.49, "33.80"),
        (5060, 7.53, "10.53"),
        (_least_goal(), None, ""),
        (16_300, 24.29, "4.57"),
        (20_600, None, "below 10"),
    ):
        multiplier = 0.149 * goal / 100 if sigma is None else sigma
        squares, epochs = _restarted(goal)
        epsilon = converted_by_mironov(squares / (2 * multiplier**2), 1e-6)
        yield goal, f"{multiplier:.2f}", epochs, squares, f"{epsilon:.2f}", printed


def _restarted(goal: int) -> tuple[int, int]:
    epoch = CLIENTS // goal
    epochs = math.ceil(ROUNDS * goal / CLIENTS)
    return epochs * epoch.bit_length(), epochs


def _least_goal() -> int:
    """Returns the smallest report goal, in steps of 10, whose ε is below 10."""
    for goal in range(1000, 20_600, 10):
        rho = _restarted(goal)[0] / (2 * (0.149 * goal / 100) ** 2)
        if converted_by_mironov(rho, 1e-6) < 10:
            return goal
    return 0


# McMahan et al. (2024).

# Appendix F.
BLTS = {
    "b100": (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    "b400": (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    "b1000": (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
    ),
}
# Model, matrix, σ, rounds, MinS, MaxP, and the printed ρ, its digits after the point, and ε.
TABLE_2 = (
    ("es-ES", "b400", 7.379, 1280, 300, 4, 0.16, 2, 3.46),
    ("id-ID", "b400", 7.379, 2350, 447, 5, 0.20, 2, 3.93),
    ("pt-BR", "b1000", 8.681, 2000, 2001, 1, 2.23e-2, 4, 1.25),
    ("pt-BR", "b1000", 16.1, 2000, 1181, 2, 1.40e-2, 4, 0.98),
    ("pt-PT", "b100", 3.12, 430, 92, 4, 1.11, 2, 10.19),
    ("pt-PT", "b100", 5.5, 320, 49, 6, 0.75, 2, 8.19),
)
DELTA = 1e-10
# Two patterns whose node counts anyone can add up.
WITNESSES = ((16, 3, (0, 3, 6, 12, 15)), (2350, 437, (128, 578, 1015, 1576, 2031)))


def blt_table_1() -> Iterator[tuple]:
    """MaxLoss and RmsLoss of the full tree, from the covariance of its noise, at the sensitivity of remark C.1."""
    yield "mechanism", "MaxLoss", "RmsLoss", "printed as RMS loss", "printed as Max loss"
    rounds, min_sep, most = 2052, 342, 6
    # The noise of the prefix sums has the covariance A(CᵀC)⁻¹Aᵀ, whatever square root of CᵀC it is generated with.
    inverse = np.zeros((rounds, rounds))
    # Two complete trees, of 2048 and 4 rounds.
    inverse[:2048, :2048], inverse[2048:, 2048:] = _inverse_gram(11), _inverse_gram(2)
    variances = np.diag(np.cumsum(np.cumsum(inverse, axis=0), axis=1))
    sensitivity = math.sqrt(squared_counts([[min_sep * each for each in range(most)]], rounds)[0])
    largest, mean = (f"{sensitivity * math.sqrt(each):.2f}" for each in (variances.max(), variances.mean()))
    yield "TreeAgg-full", largest, mean, "14.98", "12.47"


def blt_table_2_tree() -> Iterator[tuple]:
    """ρ and ε of pt-PT's tree row: over all patterns, and by a bound that needs no search."""
    yield "squared sensitivity", "value", "ρ at σ = 7", "ε at δ = 1e-10"
    rounds, min_sep, most, sigma = 430, 91, 4, 7
    nodes = node_matrix(rounds).astype(np.int64)
    common = nodes.T @ nodes
    # Of two rounds that are min_sep apart, at most as many nodes hold both as of any two such rounds.
    shared = int(np.triu(common, min_sep).max())
    simple = most * int(common.diagonal().max()) + most * (most - 1) * shared
    printed = 1.33 * 2 * sigma**2
    for name, squares in (
        ("all patterns of 4 rounds, 91 apart", _largest_of_four(common, min_sep)),
        (f"bound: 4 rounds in ≤ {common.diagonal().max()} nodes each, two of them in ≤ {shared} together", simple),
        ("needed for the printed ρ = 1.33, ε = 11.27", printed),
    ):
        rho = squares / (2 * sigma**2)
        yield name, f"{squares:g}", f"{rho:.3f}", f"{epsilon_of(rho, DELTA):.3f}"


def blt_table_2_min_sep() -> Iterator[tuple]:
    """ρ and ε of the BLT rows with MinS as b of appendix C.2, and with b = MinS + 1."""
    yield "model", "σ", "MinS", "ρ at b = MinS", "ρ at b = MinS + 1", "printed", "ε at MinS", "ε at MinS + 1", "printed"
    for name, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon in TABLE_2:
        ours = [_blt_rho(matrix, rounds, each, most, sigma) for each in (min_sep, min_sep + 1)]
        epsilons = [f"{epsilon_of(each, DELTA):.4f}" for each in ours]
        shown = [f"{each:.{digits + 2}f}" for each in ours]
        yield name, f"{sigma:g}", min_sep, *shown, f"{rho:.{digits}f}", *epsilons, f"{epsilon:.2f}"


def blt_remark_c1() -> Iterator[tuple]:
    """Squared sensitivity of the tree beside remark C.1's bound: all 2ⁿ patterns for n ≤ 16, and one pattern above."""
    yield "n", "b", "k", "bound of remark C.1", "larger", "pattern"
    for rounds, min_sep, pattern in WITNESSES:
        most = len(pattern)
        earliest, found = squared_counts([[min_sep * each for each in range(most)], pattern], rounds)
        yield rounds, min_sep, most, int(earliest), int(found), ", ".join(map(str, pattern))
    exceptions = [
        f"(n={rounds}, b={min_sep}, k={most})"
        for rounds in range(2, 17)
        for (min_sep, most), largest in min_sep_squares(rounds).items()
        if largest != squared_counts([[min_sep * each for each in range(most)]], rounds)[0]
    ]
    yield "≤ 16", "all", "all", "not tight only at", ", ".join(exceptions), ""


def blt_algorithm_5() -> Iterator[tuple]:
    """ω of algorithm 5 as printed, and with p and q exchanged, beside ω whose BLT has an inverse with decays θ̂."""
    yield "θ", "θ̂", "printed", "p and q exchanged", "decays of C⁻¹ for the latter"
    for theta, inverse_theta in (((0.9,), (0.5,)), ((0.99, 0.6), (0.9, 0.3)), ((0.999, 0.9, 0.5), (0.98, 0.8, 0.2))):
        printed = _output_scale(np.array(theta), np.array(inverse_theta))
        decays = np.linalg.eigvals(np.diag(theta) + np.outer(np.ones(len(theta)), printed))
        assert np.allclose(np.sort(decays.real), np.sort(inverse_theta))
        yield _list(theta), _list(inverse_theta), _list(printed), _list(-printed), _list(sorted(decays.real)[::-1])


def _largest_of_four(common: np.ndarray, min_sep: int) -> int:
    """Returns the largest Σ over s, t of X_st, X the nodes in common, over all patterns of four rounds."""
    rounds, own, best = len(common), common.diagonal(), 0
    for one in range(rounds - 3 * min_sep):
        for two in range(one + min_sep, rounds - 2 * min_sep):
            with_both = own + 2 * (common[one] + common[two])
            three, four = with_both[two + min_sep : rounds - min_sep], with_both[two + 2 * min_sep :]
            sums = three[:, None] + four + 2 * common[two + min_sep : rounds - min_sep, two + 2 * min_sep :]
            allowed = np.tri(len(three), dtype=bool).T
            largest = int(sums[allowed].max())
            best = max(best, int(own[one] + own[two] + 2 * common[one, two]) + largest)
    return best


def _blt_rho(matrix: str, rounds: int, min_sep: int, most: int, sigma: float) -> float:
    theta, omega = map(np.array, BLTS[matrix])
    column = np.concatenate([[1.0], (theta ** np.arange(rounds - 1)[:, None]) @ omega])
    response = np.zeros(rounds)
    for each in range(most):
        response[each * min_sep :] += column[: rounds - each * min_sep]
    return float(np.sum(response**2)) / (2 * sigma**2)


def _inverse_gram(height: int) -> np.ndarray:
    """Returns (CᵀC)⁻¹ of a complete tree, by the formula of Sherman and Morrison for the ones of each root."""
    if height == 0:
        return np.ones((1, 1))
    halves = np.kron(np.eye(2), _inverse_gram(height - 1))
    sums = halves.sum(axis=1)
    return halves - np.outer(sums, sums) / (1 + sums.sum())


def _output_scale(theta: np.ndarray, inverse_theta: np.ndarray) -> np.ndarray:
    """Algorithm 5, line by line."""
    result = []
    for index, each in enumerate(theta):
        at = 1 / each
        f = (np.prod(1 - theta * at) - np.prod(1 - inverse_theta * at)) / at
        others = np.delete(theta, index)
        weight = 1 / np.prod(1 / each - 1 / others)
        result.append(f * -each * weight / np.prod(-theta))
    return np.array(result)


def _list(values) -> str:
    return ", ".join(f"{each:.4g}".replace("-", "−") for each in values)


# Denisov et al. (2022) and Choquette-Choo et al. (2023).

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
        exact = epsilon_of(1 / (2 * sigma**2), 1e-6)
        yield f"{sigma:g}", printed, f"{with_two:.1f}", f"{without:.1f}", f"{exact:.2f}"


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


CHECKS: dict[str, Callable[[], Iterator[tuple]]] = {
    name.replace("_", "-"): check
    for name, check in list(globals().items())
    if name.startswith(("kairouz_", "blt_", "denisov_", "banded_"))
}


@functools.cache
def rows(name: str) -> list[tuple]:
    """Returns the rows of a check, its header first."""
    return list(CHECKS[name]())


def table(name: str) -> str:
    """Returns the table of a check in Markdown."""
    cells = [[str(cell) for cell in row] for row in rows(name)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def main(arguments: list[str]) -> int:
    as_json = arguments[:1] == ["--json"]
    names = arguments[as_json:]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    if as_json:
        lines = {
            name: ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows(name)) for name in names or CHECKS
        }
        print("{\n" + ",\n".join(f'"{name}": [\n{text}\n]' for name, text in lines.items()) + "\n}")
        return 0
    for name in names or CHECKS:
        print(f"{name}\n\n{table(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
