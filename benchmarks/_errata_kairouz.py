"""Errata of Kairouz et al. (2021)."""

import math
from collections.abc import Iterator

import _first_principles as first

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
        vanilla, tree = (first.fixed_epoch_squares(rounds, epoch, vanilla=each) for each in (True, False))
        for sigma, epsilon in rows:
            by_theorem = first.converted(printed / (2 * sigma**2), delta)
            exact = [f"{first.epsilon_of(squares / (2 * sigma**2), delta):.2f}" for squares in (vanilla, tree)]
            row = (name, batch, epochs, printed, vanilla, tree, f"{sigma:g}", f"{epsilon:.2f}")
            yield *row, f"{by_theorem:.2f}", *exact


def kairouz_noise_of_theorems() -> Iterator[tuple]:
    """σ of theorems C.3, D.1 and D.2 at δ = 1e-6, and the exact ε that it gives with their own sensitivity."""
    yield "ε claimed", "ε with σ of D.1 and D.2", "ε with σ of C.3"
    delta = 1e-6
    for epsilon in (0.1, 0.5, 1.0, 2.0, 8.0, 16.0):
        # Divided by the sensitivity, σ is √ln(1/δ) / ε, and √(2 ln(1/δ)) / ε: that of C.3 serves two trees.
        rho = epsilon**2 / (2 * math.log(1 / delta))
        yield f"{epsilon:g}", f"{first.epsilon_of(rho, delta):.3f}", f"{first.epsilon_of(rho / 2, delta):.3f}"


def kairouz_levels() -> Iterator[tuple]:
    """Nodes of a tree over n rounds that hold one round, beside the printed ⌈lg n⌉."""
    yield "n", "⌈lg n⌉", "most nodes that hold one round"
    for rounds in (1, 2, 3, 4, 7, 8, 9, 1024, 1600, 2048):
        most = first.squared_counts([[each] for each in range(rounds)], rounds).max()
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
        epsilon = first.converted_by_mironov(squares / (2 * multiplier**2), 1e-6)
        yield goal, f"{multiplier:.2f}", epochs, squares, f"{epsilon:.2f}", printed


def _restarted(goal: int) -> tuple[int, int]:
    epoch = CLIENTS // goal
    epochs = math.ceil(ROUNDS * goal / CLIENTS)
    return epochs * epoch.bit_length(), epochs


def _least_goal() -> int:
    """Returns the smallest report goal, in steps of 10, whose ε is below 10."""
    for goal in range(1000, 20_600, 10):
        rho = _restarted(goal)[0] / (2 * (0.149 * goal / 100) ** 2)
        if first.converted_by_mironov(rho, 1e-6) < 10:
            return goal
    return 0
