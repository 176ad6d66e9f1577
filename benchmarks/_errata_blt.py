"""Errata and open questions of McMahan et al. (2024)."""

import math
from collections.abc import Iterator

import _first_principles as first
import numpy as np

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
    sensitivity = math.sqrt(first.squared_counts([[min_sep * each for each in range(most)]], rounds)[0])
    largest, mean = (f"{sensitivity * math.sqrt(each):.2f}" for each in (variances.max(), variances.mean()))
    yield "TreeAgg-full", largest, mean, "14.98", "12.47"


def blt_table_2_tree() -> Iterator[tuple]:
    """ρ and ε of pt-PT's tree row: over all patterns, and by a bound that needs no search."""
    yield "squared sensitivity", "value", "ρ at σ = 7", "ε at δ = 1e-10"
    rounds, min_sep, most, sigma = 430, 91, 4, 7
    nodes = first.node_matrix(rounds).astype(np.int64)
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
        yield name, f"{squares:g}", f"{rho:.3f}", f"{first.epsilon_of(rho, DELTA):.3f}"


def blt_table_2_min_sep() -> Iterator[tuple]:
    """ρ and ε of the BLT rows with MinS as b of appendix C.2, and with b = MinS + 1."""
    yield "model", "σ", "MinS", "ρ at b = MinS", "ρ at b = MinS + 1", "printed", "ε at MinS", "ε at MinS + 1", "printed"
    for name, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon in TABLE_2:
        ours = [_blt_rho(matrix, rounds, each, most, sigma) for each in (min_sep, min_sep + 1)]
        epsilons = [f"{first.epsilon_of(each, DELTA):.4f}" for each in ours]
        shown = [f"{each:.{digits + 2}f}" for each in ours]
        yield name, f"{sigma:g}", min_sep, *shown, f"{rho:.{digits}f}", *epsilons, f"{epsilon:.2f}"


def blt_remark_c1() -> Iterator[tuple]:
    """Squared sensitivity of the tree beside remark C.1's bound: all 2ⁿ patterns for n ≤ 16, and one pattern above."""
    yield "n", "b", "k", "bound of remark C.1", "larger", "pattern"
    for rounds, min_sep, pattern in WITNESSES:
        most = len(pattern)
        earliest, found = first.squared_counts([[min_sep * each for each in range(most)], pattern], rounds)
        yield rounds, min_sep, most, int(earliest), int(found), ", ".join(map(str, pattern))
    exceptions = [
        f"(n={rounds}, b={min_sep}, k={most})"
        for rounds in range(2, 17)
        for (min_sep, most), largest in first.min_sep_squares(rounds).items()
        if largest != first.squared_counts([[min_sep * each for each in range(most)]], rounds)[0]
    ]
    yield "≤ 16", "all", "all", "not tight only at", ", ".join(exceptions), ""


def blt_full_tree_stream() -> Iterator[tuple]:
    """How far FᵀF is from CᵀC, and the streamed rows from F⁻¹z, for complete trees; rows of state."""
    yield "rounds", "rows of state", "‖FᵀF − CᵀC‖", "‖stream − F⁻¹z‖"
    random = np.random.default_rng(7)
    for height in range(1, 8):
        rounds = 2**height
        nodes = first.node_matrix(rounds)
        inverse = _inverse_factor(height, 0.0)
        factor = np.linalg.inv(inverse)
        noise = random.standard_normal(rounds)
        streamed, rows = _streamed(height, noise)
        apart = [np.abs(factor.T @ factor - nodes.T @ nodes).max(), np.abs(streamed - inverse @ noise).max()]
        yield rounds, rows, *("below 1e-12" if each < 1e-12 else f"{each:.1e}" for each in apart)


def blt_algorithm_5() -> Iterator[tuple]:
    """ω of algorithm 5 as printed, and with p and q exchanged, beside ω whose BLT has an inverse with decays θ̂."""
    yield "θ", "θ̂", "printed", "p and q exchanged", "decays of C⁻¹ for the latter"
    for theta, inverse_theta in (((0.9,), (0.5,)), ((0.99, 0.6), (0.9, 0.3)), ((0.999, 0.9, 0.5), (0.98, 0.8, 0.2))):
        printed = _output_scale(np.array(theta), np.array(inverse_theta))
        decays = np.linalg.eigvals(np.diag(theta) + np.outer(np.ones(len(theta)), printed))
        assert np.allclose(np.sort(decays.real), np.sort(inverse_theta))
        yield _list(theta), _list(inverse_theta), _list(printed), _list(-printed), _list(sorted(decays.real)[::-1])


def blt_small_slips() -> Iterator[tuple]:
    """Matrices of appendix A.3 and sums of proposition 3.2 as printed, beside what they are to be."""
    yield "place", "as printed", "to be"
    rounds = 8
    levels = math.ceil(math.log2(rounds))
    yield f"A.3, columns of Cˡ with l = ⌈log₂ {rounds}⌉", 2 ** (levels - 1), rounds
    decoder = np.zeros((rounds, 2 * rounds - 1), dtype=np.int64)
    for total in range(1, rounds + 1):
        decoder[total - 1, [2 ** (bit + 1) - 2 for bit in range(total.bit_length()) if total >> bit & 1]] = 1
    sums = decoder @ _post_order(levels)
    wrong = [total for total in range(1, rounds + 1) if list(sums[total - 1]) != [1] * total + [0] * (rounds - total)]
    yield "A.3, rows of BC, n = 8, that are no prefix sums", ", ".join(map(str, wrong)), "none"
    inverse = np.array([1.0, -0.5, -0.25])
    true = math.sqrt(np.mean(np.cumsum(np.cumsum(inverse) ** 2)))
    for start, name in ((0, "from 0"), (1, "from 1")):
        places = range(start, len(inverse) + start)
        sums = {place: inverse[:place].sum() for place in places}
        error = math.sqrt(sum((len(inverse) - place) * sums[place] ** 2 for place in places) / len(inverse))
        yield f"proposition 3.2, RmsError of ĉ = (1, −0.5, −0.25), [n] {name}", f"{error:.4f}", f"{true:.4f}"


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


def _inverse_factor(height: int, alpha: float) -> np.ndarray:
    if height == 0:
        return np.array([[1 / math.sqrt(1 + alpha)]])
    a, half = 1 + alpha, 2 ** (height - 1)
    g = 1 / (2**height - 1 + a * half)
    left, right = _inverse_factor(height - 1, a - a * a * half * g), _inverse_factor(height - 1, a)
    corner = -a * g * np.outer(np.ones(half), left.sum(axis=0))
    return np.block([[left, np.zeros((half, half))], [corner, right]])


def _streamed(height: int, noise: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns F⁻¹z, computed a round at a time with one sum a level, and the number of these sums."""
    sums = np.zeros(height)
    rows = []
    for place, new in enumerate(noise):
        alpha, corrections = 0.0, []
        for level in range(height - 1, -1, -1):
            a, half = 1 + alpha, 2**level
            g = 1 / (2 * half - 1 + a * half)
            right = place >> level & 1
            corrections.append((level, a * g, right))
            alpha = a if right else a - a * a * half * g
        row = new / math.sqrt(1 + alpha)
        for level, coupling, right in reversed(corrections):
            if right:
                row -= coupling * sums[level]
            else:
                sums[level] = row + (sums[level] if place % 2**level else 0.0)
        rows.append(row)
    return np.array(rows), len(sums)


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


def _post_order(levels: int) -> np.ndarray:
    """C of appendix A.3 for 2^levels leaves: both halves, then a row of ones."""
    if levels == 0:
        return np.ones((1, 1), dtype=np.int64)
    half = _post_order(levels - 1)
    return np.concatenate([np.kron(np.eye(2, dtype=np.int64), half), np.ones((1, 2 * half.shape[1]), dtype=np.int64)])


def _list(values) -> str:
    return ", ".join(f"{each:.4g}".replace("-", "−") for each in values)
