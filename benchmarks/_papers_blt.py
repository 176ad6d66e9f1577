"""Figures of McMahan et al. (2024) that need no training."""

import time
from collections.abc import Iterator

import _errata_blt
import _first_principles as first
import numpy as np

import tff_mf
from tff_mf import MinSep, SingleParticipation

# A figure: what it is, as printed, and ours.
Figures = Iterator[tuple[str, str, float]]

SIX_EPOCHS = MinSep(min_sep=342, max_participations=6)


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
    for name, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon in _errata_blt.TABLE_2:
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
    yield "pt-BR, BandMF-4.523, ε", "1.32", first.epsilon_of(1 / (2 * 4.523**2), 1e-10)
    yield "section 3.2, α = 1, δ = 1e-7, ε", "5.3", first.epsilon_of(0.5, 1e-7)


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
