"""Figures of Kairouz et al. (2021) that need no training."""

import math
from collections.abc import Iterator

import _errata_kairouz
import _first_principles as first
import dp_accounting
import numpy as np
from dp_accounting import rdp

import tff_mf
from tff_mf import SingleParticipation

# A figure: what it is, as printed, and ours.
Figures = Iterator[tuple[str, str, float]]

CLIENTS = 342_477
MIRONOV_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
# Printed σ and ε of DP-SGD in table 6: amplified, and without amplification.
_DP_SGD = {
    ("6a MNIST", 250): (
        ((0.42, 26.90), (0.52, 12.26), (0.74, 3.75), (1.14, 1.35)),
        ((1.08, 27.15), (1.89, 13.19), (5.48, 3.75), (13.7, 1.35)),
    ),
    ("6a MNIST", 1000): (
        ((0.62, 26.48), (0.8, 13.12), (1.61, 3.71), (3.67, 1.34)),
        ((2.2, 26.50), (3.67, 13.68), (11.06, 3.71), (27.68, 1.34)),
    ),
    ("6b CIFAR-10", 500): (
        ((0.61, 23.81), (0.66, 18.60), (0.79, 11.29), (0.98, 6.98), (1.51, 3.43)),
        ((2.66, 23.88), (3.22, 18.61), (4.79, 11.30), (7.15, 6.99), (13.26, 3.43)),
    ),
    ("6b CIFAR-10", 2000): (
        ((1.26, 23.89), (1.46, 18.67), (2.06, 11.22), (2.98, 6.92), (5.4, 3.41)),
        ((5.4, 23.42), (6.42, 18.68), (9.63, 11.23), (14.42, 6.93), (26.68, 3.41)),
    ),
    ("6c EMNIST", 500): (
        ((0.41, 25.34), (0.5, 10.50), (0.6, 5.08), (0.97, 1.36)),
        ((1.89, 25.50), (3.86, 10.53), (7.24, 5.08), (24.06, 1.36)),
    ),
    ("6c EMNIST", 2000): (
        ((0.56, 25.58), (0.73, 10.63), (1.02, 5.07), (2.69, 1.35)),
        ((3.77, 25.59), (7.65, 10.64), (14.5, 5.08), (48.42, 1.35)),
    ),
}


def kairouz_table_2() -> Figures:
    """Parameters of table 2c's layers."""
    words, embedding, units = 10_004, 96, 670
    yield "embedding", "960384", words * embedding
    yield "LSTM", "2055560", 4 * (embedding + units + 1) * units
    yield "dense, 96", "64416", (units + 1) * embedding
    yield "dense, 10004", "970388", (embedding + 1) * words


def kairouz_table_4() -> Figures:
    """ε of tables 3 and 4, by the conversion of that time."""
    for sigma, printed in ((1.13, "19.74"), (2.33, "8.50"), (4.03, "4.66"), (6.21, "2.95"), (8.83, "2.04")):
        nodes = tff_mf.sensitivity(tff_mf.Tree(1600), 1600, SingleParticipation()) ** 2
        yield f"DP-FTRLM, σ={sigma}", printed, first.converted_by_mironov(nodes / (2 * sigma**2), 1e-6)
    for sigma, printed in ((0.3, "19.74"), (0.4, "8.53"), (0.5, "4.66"), (0.6, "2.95"), (0.7, "2.05")):
        yield f"DP-SGDM, σ={sigma}", printed, _sampled(100 / CLIENTS, sigma, 1600, 1e-6, mironov=True)


def kairouz_table_5() -> Figures:
    """ε of table 5: theorem D.1's E·⌈lg n⌉ with restarts, and sampling for DP-SGDM."""
    yield "DP-FTRLM, σ=0.149, 100", "364.74", first.converted_by_mironov(11 / (2 * 0.149**2), 1e-6)
    for sigma, goal, population, printed in (
        (1.49, 1000, CLIENTS, "33.80"),
        (7.53, 5060, CLIENTS, "10.53"),
        (24.29, 16_300, CLIENTS, "4.57"),
        (5.73, 3850, 10**6, "8.24"),
        (15.29, 10_300, 10**6, "4.00"),
    ):
        squares = math.ceil(1600 * goal / population) * math.ceil(math.log2(population // goal))
        yield f"DP-FTRLM, σ={sigma}, {goal}", printed, first.converted_by_mironov(squares / (2 * sigma**2), 1e-6)
    for sigma, probability, printed in (
        (0.007, 100 / CLIENTS, "1.78e7"),
        (0.07, 1000 / CLIENTS, "7.71e4"),
        (23.97, 1.0, "10.16"),
        (0.67, 0.00956, "8.98"),
        (1.2, 0.0171, "4.17"),
    ):
        yield f"DP-SGDM, σ={sigma}", printed, _sampled(probability, sigma, 1600, 1e-6, mironov=True)


def kairouz_table_6() -> Figures:
    """ε of table 6: FTRL by theorem D.2, which is too small (docs/papers.md); DP-SGD amplified, and not."""
    for name, examples, batch, epochs, delta, rows in _errata_kairouz.IMAGES[:6]:
        squares = epochs * math.ceil(math.log2(-(-examples // batch) * epochs))
        for sigma, printed in rows:
            yield (
                f"{name}, b={batch}, FTRL, σ={sigma}",
                f"{printed:.2f}",
                first.converted(squares / (2 * sigma**2), delta),
            )
        for sigma, printed in _DP_SGD[name, batch][0]:
            ours = _sampled(batch / examples, sigma, examples // batch * epochs, delta)
            yield f"{name}, b={batch}, SGD, σ={sigma}", f"{printed:.2f}", ours
        for sigma, printed in _DP_SGD[name, batch][1]:
            ours = first.converted(epochs / (2 * sigma**2), delta)
            yield f"{name}, b={batch}, SGD unamplified, σ={sigma}", f"{printed:.2f}", ours


def kairouz_table_7() -> Figures:
    """ε of table 7, with the epochs of docs/papers.md."""
    printed_sgd = ((1.04, "3.40"), (2.08, "2.64"), (0.132, "2389.37"), (1.32, "9.35"), (0.1, "10051.63"), (1.0, "2.44"))
    rows = zip(_errata_kairouz.IMAGES[6:], printed_sgd, strict=True)
    for (name, examples, batch, epochs, delta, ((sigma, printed),)), (sgd_sigma, sgd) in rows:
        squares = epochs * math.ceil(math.log2(-(-examples // batch) * epochs))
        yield f"{name}, {batch}, FTRLM", f"{printed:.2f}", first.converted(squares / (2 * sigma**2), delta)
        ours = _sampled(batch / examples, sgd_sigma, examples // batch * epochs, delta)
        yield f"{name}, {batch}, DP-SGD", sgd, ours


def _sampled(probability: float, sigma: float, steps: int, delta: float, *, mironov: bool = False) -> float:
    """Returns ε of DP-SGD with Poisson sampling by Rényi privacy, with today's conversion, or that of the time."""
    orders = MIRONOV_ORDERS if mironov else None
    accountant = rdp.RdpAccountant(orders)
    event = dp_accounting.GaussianDpEvent(sigma)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(probability, event), steps)
    if not mironov:
        return accountant.get_epsilon(delta)
    divergences = np.array(accountant._rdp)
    return float(np.min(divergences + math.log(1 / delta) / (np.array(MIRONOV_ORDERS) - 1)))
