"""Recomputes printed figures of the papers that need no training: `python benchmarks/papers.py [--csv] [NAME ...]`.

Without names, all checks that take seconds. docs/results/tables.csv says which table or figure each belongs to. `--csv`
prints rows of docs/results/papers.csv.
"""

import csv
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator

import dp_accounting
import errata
import numpy as np
from dp_accounting import rdp

import tff_mf
from tff_mf import FixedEpoch, MinSep, SingleParticipation

# A figure: what it is, as printed, and ours.
Figures = Iterator[tuple[str, str, float]]

CLIENTS = 342_477
SIX_EPOCHS = MinSep(min_sep=342, max_participations=6)


# Kairouz et al. (2021).

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
        yield f"DP-FTRLM, σ={sigma}", printed, errata.converted_by_mironov(nodes / (2 * sigma**2), 1e-6)
    for sigma, printed in ((0.3, "19.74"), (0.4, "8.53"), (0.5, "4.66"), (0.6, "2.95"), (0.7, "2.05")):
        yield f"DP-SGDM, σ={sigma}", printed, _sampled(100 / CLIENTS, sigma, 1600, 1e-6, mironov=True)


def kairouz_table_5() -> Figures:
    """ε of table 5: theorem D.1's E·⌈lg n⌉ with restarts, and sampling for DP-SGDM."""
    yield "DP-FTRLM, σ=0.149, 100", "364.74", errata.converted_by_mironov(11 / (2 * 0.149**2), 1e-6)
    for sigma, goal, population, printed in (
        (1.49, 1000, CLIENTS, "33.80"),
        (7.53, 5060, CLIENTS, "10.53"),
        (24.29, 16_300, CLIENTS, "4.57"),
        (5.73, 3850, 10**6, "8.24"),
        (15.29, 10_300, 10**6, "4.00"),
    ):
        squares = math.ceil(1600 * goal / population) * math.ceil(math.log2(population // goal))
        yield f"DP-FTRLM, σ={sigma}, {goal}", printed, errata.converted_by_mironov(squares / (2 * sigma**2), 1e-6)
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
    for name, examples, batch, epochs, delta, rows in errata.IMAGES[:6]:
        squares = epochs * math.ceil(math.log2(-(-examples // batch) * epochs))
        for sigma, printed in rows:
            yield (
                f"{name}, b={batch}, FTRL, σ={sigma}",
                f"{printed:.2f}",
                errata.converted(squares / (2 * sigma**2), delta),
            )
        for sigma, printed in _DP_SGD[name, batch][0]:
            ours = _sampled(batch / examples, sigma, examples // batch * epochs, delta)
            yield f"{name}, b={batch}, SGD, σ={sigma}", f"{printed:.2f}", ours
        for sigma, printed in _DP_SGD[name, batch][1]:
            ours = errata.converted(epochs / (2 * sigma**2), delta)
            yield f"{name}, b={batch}, SGD unamplified, σ={sigma}", f"{printed:.2f}", ours


def kairouz_table_7() -> Figures:
    """ε of table 7, with the epochs of docs/papers.md."""
    printed_sgd = ((1.04, "3.40"), (2.08, "2.64"), (0.132, "2389.37"), (1.32, "9.35"), (0.1, "10051.63"), (1.0, "2.44"))
    rows = zip(errata.IMAGES[6:], printed_sgd, strict=True)
    for (name, examples, batch, epochs, delta, ((sigma, printed),)), (sgd_sigma, sgd) in rows:
        squares = epochs * math.ceil(math.log2(-(-examples // batch) * epochs))
        yield f"{name}, {batch}, FTRLM", f"{printed:.2f}", errata.converted(squares / (2 * sigma**2), delta)
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


# Denisov et al. (2022) and Choquette-Choo et al. (2023).

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
        yield f"ρ={rho}", printed, errata.epsilon_of(rho, 1e-10)


def _denisov_table_2(rows: tuple[tuple[int, str, str], ...]) -> Figures:
    once = SingleParticipation()
    for rounds, honaker, optimal in rows:
        online = tff_mf.Tree(rounds, variant="online")
        yield f"Honaker, n={rounds}", honaker, tff_mf.rms_loss(online, rounds, once) * math.sqrt(rounds)
        dense = tff_mf.optimize_dense(rounds=rounds, participation=once)
        yield f"optimal, n={rounds}", optimal, tff_mf.rms_loss(dense, rounds, once) * math.sqrt(rounds)


# McMahan et al. (2024).


def blt_table_1() -> Figures:
    """MaxLoss and RmsLoss of table 1, its columns exchanged, for all but BandMF."""
    tree = tff_mf.Tree(2052)
    yield "TreeAgg-full, MaxLoss", "14.98", tff_mf.max_loss(tree, 2052, SIX_EPOCHS)
    yield "TreeAgg-full, RmsLoss", "12.47", tff_mf.rms_loss(tree, 2052, SIX_EPOCHS)
    for buffers, once, printed in (
        (2, True, ("11.80", "11.15")),
        (5, True, ("11.40", "10.87")),
        (2, False, ("10.81", "9.34")),
        (3, False, ("10.79", "9.33")),
        (4, False, ("10.79", "9.33")),
        (5, False, ("10.79", "9.33")),
    ):
        schema = SingleParticipation() if once else SIX_EPOCHS
        blt = tff_mf.optimize_blt(rounds=2052, participation=schema, buffers=buffers, objective="max")
        name = f"BLT, {buffers} buffers, k={1 if once else 6}"
        yield f"{name}, MaxLoss", printed[0], tff_mf.max_loss(blt, 2052, SIX_EPOCHS)
        yield f"{name}, RmsLoss", printed[1], tff_mf.rms_loss(blt, 2052, SIX_EPOCHS)


def blt_table_1_banded() -> Figures:
    """BandMF of table 1; half a minute."""
    banded = tff_mf.optimize_banded(rounds=2052, bands=342)
    yield "BandMF, MaxLoss", "10.21", tff_mf.max_loss(banded, 2052, SIX_EPOCHS)
    yield "BandMF, RmsLoss", "8.60", tff_mf.rms_loss(banded, 2052, SIX_EPOCHS)


def blt_table_2() -> Figures:
    """ρ and ε of table 2 for BLT and the trees, with b = MinS + 1 (docs/papers.md)."""
    for name, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon in errata.TABLE_2:
        schema = MinSep(min_sep=min_sep + 1, max_participations=most)
        run = tff_mf.guarantee(tff_mf.BLT.production(matrix), rounds, schema, noise_multiplier=sigma)
        yield f"{name}, BLT-{sigma}, ρ", f"{rho:.{digits}f}", run.zcdp_rho
        yield f"{name}, BLT-{sigma}, ε", f"{epsilon:.2f}", run.epsilon(1e-10)
    for name, rounds, min_sep, most, rho, epsilon in (
        ("id-ID", 2350, 437, 5, "0.94", "9.29"),
        ("pt-PT", 430, 91, 4, "1.33", "11.27"),
    ):
        schema = MinSep(min_sep=min_sep + 1, max_participations=most)
        run = tff_mf.guarantee(tff_mf.Tree(rounds), rounds, schema, noise_multiplier=7)
        yield f"{name}, TreeAgg-7, ρ", rho, run.zcdp_rho
        yield f"{name}, TreeAgg-7, ε", epsilon, run.epsilon(1e-10)
    # A banded matrix with columns of norm 1, and one participation.
    yield "pt-BR, BandMF-4.523, ρ", "0.0245", 1 / (2 * 4.523**2)
    yield "pt-BR, BandMF-4.523, ε", "1.32", errata.epsilon_of(1 / (2 * 4.523**2), 1e-10)
    yield "section 3.2, α = 1, δ = 1e-7, ε", "5.3", errata.epsilon_of(0.5, 1e-7)


def blt_table_4() -> Figures:
    """CPU seconds for n coefficients of C⁻¹: forward substitution from C, and from θ̂ (printed: on a V100)."""
    blt = tff_mf.BLT.production("b400")
    for rounds, slow, fast in ((2000, "0.021", "3.8e-5"), (20_000, "0.258", "3.6e-5")):
        column = blt.coefficients(rounds)
        began = time.process_time()
        inverse = np.zeros(rounds)
        inverse[0] = 1.0
        for place in range(1, rounds):
            inverse[place] = -column[1 : place + 1] @ inverse[place - 1 :: -1]
        yield f"n={rounds}, brute force", slow, time.process_time() - began
        began = time.process_time()
        assert np.allclose(blt.inverse_coefficients(rounds), inverse, atol=1e-9)
        yield f"n={rounds}, from θ̂", fast, time.process_time() - began


def blt_figure_3() -> Figures:
    """CPU seconds to optimize a BLT and BandMF for b = 400; the figure prints no numbers."""
    schema = MinSep(min_sep=400, max_participations=2)
    for rounds in (800, 2000):
        for name, search in (
            ("BLT", lambda rounds: tff_mf.optimize_blt(rounds=rounds, participation=schema, buffers=4)),
            ("BandMF", lambda rounds: tff_mf.optimize_banded(rounds=rounds, bands=400)),
        ):
            began = time.process_time()
            search(rounds)
            yield f"n={rounds}, {name}", "", time.process_time() - began


def blt_figure_10() -> Figures:
    """ρ of the production mechanisms at a report goal of 6500, over the number of rounds; the figure prints none."""
    for matrix, sigma, min_sep in (("b100", 3.12 * 6.5 / 3, 100), ("b400", 7.379, 400), ("b1000", 8.681, 1000)):
        for rounds in (500, 1000, 2000, 4000):
            schema = MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))
            for name, mechanism, noise in (
                (f"BLT-{sigma:.4g}", tff_mf.BLT.production(matrix), sigma),
                ("TreeAgg-7", tff_mf.Tree(rounds), 7.0),
            ):
                rho = tff_mf.zcdp_rho(mechanism, rounds, schema, noise_multiplier=noise)
                yield f"b={min_sep}, n={rounds}, {name}", "", rho


LONG = (
    "banded-table-2",
    "banded-table-3",
    "banded-table-5",
    "blt-figure-3",
    "blt-figure-10",
    "blt-table-1-banded",
    "blt-table-4",
    "denisov-table-2-efficient",
    "denisov-table-2-large",
)
CHECKS: dict[str, Callable[[], Iterator[tuple[str, str, float]]]] = {
    name.replace("_", "-"): check
    for name, check in list(globals().items())
    if name.startswith(("kairouz_", "denisov_", "banded_", "blt_"))
}


def agrees(printed: str, ours: float) -> bool:
    """Returns whether a figure is the printed one, rounded to the nearest or up."""
    mantissa, _, exponent = printed.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return -1.001 * unit < ours - float(printed) <= 0.501 * unit


def rows(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields the figures of a check: which one, as printed, ours, and how far apart they are, or nothing."""
    for figure, printed, ours in CHECKS[name]():
        yield figure, printed, f"{ours:.7g}", "" if not printed or agrees(printed, ours) else _apart(printed, ours)


def main(arguments: list[str]) -> int:
    as_csv = arguments[:1] == ["--csv"]
    names = arguments[as_csv:]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    count = same = 0
    for name in names or [each for each in CHECKS if each not in LONG]:
        if not as_csv:
            print(f"\n{name}")
        for row in rows(name):
            count, same = count + bool(row[1]), same + bool(row[1] and not row[3])
            if as_csv:
                csv.writer(sys.stdout, lineterminator="\n").writerow((name, *row))
            else:
                print("  {:40} {:>10} {:>12} {}".format(*row), flush=True)
    if not as_csv:
        print(f"\n{same} of {count} figures agree in all printed digits, rounded to the nearest or up.")
    return 0


def _apart(printed: str, ours: float) -> str:
    return f"{100 * (ours / float(printed) - 1):+.2g} %".replace("-", "−")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
