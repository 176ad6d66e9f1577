"""Privacy of a Gaussian release and squared node counts of trees, from their definitions, with NumPy alone.

The errata are computed with these, and not with the package, so that the two can be compared.
"""

import math

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


def rounded_up(value: float, digits: int) -> float:
    """Returns a figure rounded up to some digits after the point."""
    return math.ceil(value * 10**digits) / 10**digits


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
