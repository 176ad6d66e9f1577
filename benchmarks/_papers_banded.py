"""Figures of Denisov et al. (2022) and Choquette-Choo et al. (2023) that need no training."""

import functools
import math
from collections.abc import Iterator

import _first_principles as first
import dp_accounting
import numpy as np
from dp_accounting import rdp

import tff_mf
from tff_mf import FixedEpoch, MinSep, SingleParticipation

# A figure: what it is, as printed, and ours.
Figures = Iterator[tuple[str, str, float]]

CLIENTS = 342_477
SIX_EPOCHS = MinSep(min_sep=342, max_participations=6)
# The number of bands at four of the ten ε (rows) and number of epochs, 1, 2, 4, …, 1024 (columns).
TABLE_3 = {
    0.5: (16, 8, 4, 4, 2, 1, 1, 1, 1, 1, 1),
    1.0: (32, 16, 8, 4, 2, 2, 1, 1, 1, 1, 1),
    2.0: (64, 32, 16, 8, 4, 2, 2, 1, 1, 1, 1),
    4.0: (128, 64, 32, 16, 8, 4, 2, 2, 1, 1, 1),
}


def denisov_table_2() -> Figures:
    """Roots of the total squared error, n ≤ 1024: all but the column `Efficient`."""
    yield from _denisov_table_2(((256, "74.4", "40.4"), (512, "116.5", "62.0"), (1024, "180.8", "94.6")))


def denisov_table_2_large() -> Figures:
    """The same for n = 2048 and 4096."""
    yield from _denisov_table_2(((2048, "278.3", "143.6"), (4096, "425.6", "217.3")))


def denisov_table_2_efficient() -> Figures:
    """The column `Efficient`: h diagonals and rank r, n ≤ 1024."""
    for rounds, diagonals, rank, printed in ((256, 4, 4, "40.4"), (512, 5, 4, "62.2"), (1024, 5, 5, "95.5")):
        dense = tff_mf.optimize_dense(rounds=rounds, participation=SingleParticipation())
        found = tff_mf.optimize_banded_plus_low_rank(mechanism=dense, diagonals=diagonals, rank=rank)
        loss = tff_mf.rms_loss(found, rounds, SingleParticipation())
        yield f"Efficient, n={rounds}, (h, r)=({diagonals}, {rank})", printed, loss * math.sqrt(rounds)


def denisov_table_4() -> Figures:
    """ε of table 4, at whole orders of Rényi privacy."""
    orders = list(range(2, 512))
    for sigma, printed in ((0.341, "18.9"), (0.682, "8.2"), (1.364, "3.7"), (2.728, "1.7"), (5.456, "0.8")):
        accountant = rdp.RdpAccountant(orders)
        accountant.compose(dp_accounting.GaussianDpEvent(sigma))
        yield f"σ={sigma}", printed, accountant.get_epsilon(1e-6)


def denisov_figure_5() -> Figures:
    """The largest entry of B and C at n = 512, by which the figure divides."""
    dense = tff_mf.optimize_dense(rounds=512, participation=SingleParticipation())
    decoder = np.cumsum(dense.inverse(512), axis=0)
    yield "largest entry", "2.36", float(max(decoder.max(), dense.encoder(512).max()))


def banded_table_2() -> Figures:
    """Sensitivities and RMSE of table 2, relative to multi-epoch MF; three minutes."""
    rounds, epochs = 2052, FixedEpoch(min_sep=342, max_participations=6)
    best = tff_mf.rms_loss(tff_mf.optimize_dense(rounds=rounds, participation=epochs), rounds, epochs)
    search = functools.partial(tff_mf.optimize_banded, rounds=rounds, participation=epochs)
    for name, mechanism, printed in (
        ("TreeAgg", tff_mf.Tree(rounds), ("0.32", "1.00", "1.53", "1.53")),
        ("DP-SGD", tff_mf.Identity(), ("0.41", "1.00", "9.63", "9.63")),
        ("128 bands, F", search(bands=128, unit_norms=False), ("0.52", "1.04", "1.23", "1.29")),
        ("128 bands, T", search(bands=128), ("0.41", "1.00", "1.27", "1.27")),
        ("342 bands, F", search(bands=342, unit_norms=False), ("0.52", "1.04", "1.04", "1.08")),
        ("342 bands, T", search(bands=342), ("0.41", "1.00", "1.05", "1.05")),
    ):
        fixed, once, apart = (
            tff_mf.sensitivity(mechanism, rounds, each) for each in (epochs, SingleParticipation(), SIX_EPOCHS)
        )
        error = tff_mf.rms_error(mechanism, rounds) / best
        values = (once / fixed, apart / fixed, error * fixed, error * apart)
        for column, each, value in zip(("k=1", "min-sep", "(A)", "(B)"), printed, values, strict=True):
            yield f"{name}, {column}", each, value


def banded_table_3() -> Figures:
    """Numbers of bands of table 3 for ε from 0.5 to 4: the best of the printed one, half and twice as many."""
    rounds = 1024
    # Cohorts are fractions of a population, so that its size does not matter if it is large.
    population = 2**30
    for epsilon, row in TABLE_3.items():
        for exponent, printed in enumerate(row):
            epochs = 2**exponent
            # Above n / k bands a client would have to take part with a probability above 1.
            candidates = [each for each in (printed // 2, printed, 2 * printed) if each and each * epochs <= rounds]
            losses = {}
            for bands in candidates:
                matrix, error = _unit_norms(rounds, bands)
                sampling = tff_mf.CyclicPoisson(
                    groups=bands, population=population, clients_per_round=population // rounds * epochs
                )
                sigma = tff_mf.calibrate_noise_multiplier(matrix, rounds, sampling, epsilon=epsilon, delta=1e-6)
                losses[bands] = sigma * error
            yield f"ε={epsilon}, k={epochs}", str(printed), min(losses, key=lambda bands: losses[bands])


@functools.cache
def _unit_norms(rounds: int, bands: int) -> tuple[tff_mf.Banded, float]:
    matrix = tff_mf.optimize_banded(rounds=rounds, bands=bands)
    return matrix, tff_mf.rms_error(matrix, rounds)


def banded_table_4() -> Figures:
    """Noise multipliers of table 4, calibrated."""
    for epsilon, printed in ((1, "4.22468"), (2, "2.23048"), (4, "1.19352"), (8, "0.65294"), (16, "0.36861")):
        once = SingleParticipation()
        sigma = tff_mf.calibrate_noise_multiplier(tff_mf.Identity(), 2052, once, epsilon=epsilon, delta=1e-6)
        yield f"ε={epsilon}", printed, sigma


def banded_table_5() -> Figures:
    """Noise multipliers of table 5 with amplification, at C of sensitivity 1 over six epochs."""
    setting = {"population": CLIENTS, "clients_per_round": 1000}
    for epsilon, printed in ((1, "0.37313"), (2, "0.30481"), (4, "0.25136"), (8, "0.20567"), (16, "0.16876")):
        run = (tff_mf.Identity(), 2052, tff_mf.Poisson(**setting))
        sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=epsilon, delta=1e-6)
        yield f"DP-SGD, ε={epsilon}", printed, sigma / math.sqrt(6)
    for bands, epsilon, printed in ((9, 1, "0.79118"), (18, 2, "0.64708"), (32, 4, "0.52224"), (64, 8, "0.43490")):
        # Only the number of bands and the column norm, 1, matter.
        column = np.full(bands, bands**-0.5)
        run = (tff_mf.BandedToeplitz(column=column), 2052, tff_mf.CyclicPoisson(groups=bands, **setting))
        sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=epsilon, delta=1e-6)
        yield f"{bands} bands, ε={epsilon}", printed, sigma / math.sqrt(6)


def banded_production() -> Figures:
    """ε of appendix J.1 (K.1 in the later version) and figure 5b, at the printed ρ, which are rounded up."""
    for rho, printed in ((0.52, "6.69"), (0.24, "4.35")):
        yield f"ρ={rho}", printed, first.epsilon_of(rho, 1e-10)


def _denisov_table_2(rows: tuple[tuple[int, str, str], ...]) -> Figures:
    once = SingleParticipation()
    for rounds, honaker, optimal in rows:
        online = tff_mf.Tree(rounds, variant="online")
        yield f"Honaker, n={rounds}", honaker, tff_mf.rms_loss(online, rounds, once) * math.sqrt(rounds)
        dense = tff_mf.optimize_dense(rounds=rounds, participation=once)
        yield f"optimal, n={rounds}", optimal, tff_mf.rms_loss(dense, rounds, once) * math.sqrt(rounds)
