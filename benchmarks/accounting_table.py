"""ε of `tff_mf.guarantee` over many settings, beside dp-accounting and the Monte Carlo accounting of jax_privacy.

    python benchmarks/accounting_table.py [--jax-privacy PYTHON] [--out docs/results/accounting.csv]
        [--proofs] [--part FIRST END]

A setting is a mechanism, a sampling, σ and δ. Prints a row for each, and writes them if a file is given. Takes about
ten minutes on one core.

Ours is the least bound of `tff_mf.guarantee`, with its theorem. *exact* and *proved* hold; *certified* holds except
with a probability of at most δ/1000, which δ includes. dp-accounting's figures are bounds of a discretized privacy
loss distribution, which count no rounding errors of Fourier transforms. jax_privacy's are what a million samples of
its generator verify by its own procedure, with losses that are computed here, since its own are wrong for more than
one band; it needs a δ of 1e-3 or more for this number of samples. A cell is empty if the package has no accounting
for the setting, or none that ends; opake 0.16.1 cannot be imported with Python 3.11.7 and 3.12.1. C of b̂ bands is
the square root of the prefix sums, cut off. Groups have 1,000 of 342,000 clients. Seconds are CPU seconds of one
thread.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import pathlib
import subprocess
import time

import dp_accounting
import numpy as np

import tff_mf
from tff_mf.accounting import betting
from tff_mf.problem.participation import Sampling

ROUNDS, PERIOD, POPULATION = 2052, 342, 342_000
SAMPLES = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is asked, and by which samples jax_privacy answers: `None` if it has no accounting for it."""

    name: str
    mechanism: tff_mf.Mechanism
    rounds: int
    sampling: Sampling
    sigma: float
    delta: float
    sampled: tuple[int, float] | None = None


def banded(bands: int) -> tff_mf.BandedToeplitz:
    """Returns the column of the square root of the prefix sums, cut off: 1, 1/2, 3/8 and so on."""
    steps = np.arange(1, bands)
    return tff_mf.BandedToeplitz(column=np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))]).tolist())


def settings():
    """Yields all settings."""
    blt, identity = tff_mf.BLT(theta=[0.95, 0.5], omega=[0.05, 0.15]), tff_mf.Identity()
    small = (1e-6, 1e-10)
    for sigma, delta in itertools.product((4.0, 16.0), small):
        known = tff_mf.MinSep(min_sep=PERIOD, max_participations=6)
        yield Setting(name="min-sep, BLT", mechanism=blt, rounds=ROUNDS, sampling=known, sigma=sigma, delta=delta)
    for sigma, delta in itertools.product((0.6, 1.0, 2.0), small):
        sampling = tff_mf.Poisson(population=POPULATION, clients_per_round=1000)
        yield Setting(name="Poisson", mechanism=identity, rounds=ROUNDS, sampling=sampling, sigma=sigma, delta=delta)
    for bands, sigma, delta in itertools.product((4, 16, 64), (3.0, 9.0), small):
        sampling = tff_mf.CyclicPoisson(groups=bands, population=POPULATION, clients_per_round=1000)
        name = f"cyclic Poisson, {bands} bands"
        yield Setting(name=name, mechanism=banded(bands), rounds=ROUNDS, sampling=sampling, sigma=sigma, delta=delta)
    for bands, rounds, chance, sigma, delta in [
        *((4, 512, 0.01, *each) for each in itertools.product((1.2, 3.0, 6.0), small)),
        *((16, ROUNDS, 1 / 327, *each) for each in itertools.product((4.0, 12.7, 25.0), small)),
        *((64, ROUNDS, 1 / 279, *each) for each in itertools.product((8.0,), small)),
    ]:
        sampling = tff_mf.BMinSep(min_sep=bands, probability=chance)
        name = f"b-min-sep, {bands} bands"
        yield Setting(name=name, mechanism=banded(bands), rounds=rounds, sampling=sampling, sigma=sigma, delta=delta)
    for delta in small:
        sampling = tff_mf.BMinSep(min_sep=16, probability=1 / 327)
        yield Setting(
            name="b-min-sep, identity", mechanism=identity, rounds=ROUNDS, sampling=sampling, sigma=1.0, delta=delta
        )
    for name, mechanism, sigma in (("BLT", blt, 4.0), ("4 bands", banded(4), 4.0), ("identity", identity, 2.0)):
        for delta in small:
            sampling = tff_mf.BallsInBins(groups=32)
            yield Setting(
                name=f"balls in bins, {name}",
                mechanism=mechanism,
                rounds=320,
                sampling=sampling,
                sigma=sigma,
                delta=delta,
            )
    # Where samples without weights are enough.
    for sigma in (0.7, 1.5, 4.0):
        yield Setting(
            name="b-min-sep, 4 bands",
            mechanism=banded(4),
            rounds=16,
            sampling=tff_mf.BMinSep(min_sep=4, probability=0.1),
            sigma=sigma,
            delta=1e-3,
            sampled=(4, 0.1),
        )
        yield Setting(
            name="balls in bins, 4 bands",
            mechanism=banded(4),
            rounds=16,
            sampling=tff_mf.BallsInBins(groups=4),
            sigma=sigma,
            delta=1e-3,
            sampled=(4, 1.0),
        )


def by_dp_accounting(setting: Setting) -> float | None:
    """Returns ε of dp-accounting's privacy loss distribution, where it has an event."""
    if not isinstance(setting.sampling, (tff_mf.CyclicPoisson, tff_mf.MinSep)):
        return None
    event = tff_mf.guarantee(
        setting.mechanism, setting.rounds, setting.sampling, noise_multiplier=setting.sigma
    ).dp_event()
    return dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(setting.delta)


def by_jax_privacy(setting: Setting, python: str | None) -> float | None:
    """Returns ε that a million samples of jax_privacy's generator verify."""
    if python is None or setting.sampled is None:
        return None
    column = setting.mechanism.cast_to_float32().encoder(setting.rounds)[:, 0]
    min_sep, probability = setting.sampled
    case = {"rounds": setting.rounds, "min_sep": min_sep, "probability": probability, "sigma": setting.sigma}
    case |= {"column": np.trim_zeros(column, "b").tolist(), "delta": setting.delta, "samples": 1_000_000}
    peer = str(pathlib.Path(__file__).with_name("accounting_table_peer.py"))
    found = subprocess.run([python, peer, json.dumps(case)], check=True, capture_output=True, text=True).stdout
    return float(json.loads(found)["epsilon"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jax-privacy", metavar="PYTHON", help="python of a venv with jax_privacy 2.0.0")
    parser.add_argument("--out", type=pathlib.Path, help="CSV file of the table")
    parser.add_argument("--proofs", action="store_true", help="by proofs alone: no claim is certified by samples")
    parser.add_argument("--part", type=int, nargs=2, default=[0, 100], metavar=("FIRST", "END"), help="part of it")
    arguments = parser.parse_args()
    if arguments.proofs:
        betting.certified_count = lambda *claims, **given: 0
    rows = [["setting", "n", "σ", "δ", "ε", "theorem", "bound", "seconds", "dp-accounting", "jax_privacy"]]
    for setting in itertools.islice(settings(), *arguments.part):
        began = time.process_time()
        found = tff_mf.guarantee(
            setting.mechanism,
            setting.rounds,
            setting.sampling,
            noise_multiplier=setting.sigma,
            samples=SAMPLES,
        ).at(delta=setting.delta)
        seconds = time.process_time() - began
        others = [by_dp_accounting(setting), by_jax_privacy(setting, arguments.jax_privacy)]
        peers = ["" if other is None else f"{other:.4f}" for other in others]
        ours = [f"{found.epsilon:.4f}", found.theorem, found.bound, f"{seconds:.1f}"]
        given = [setting.name, str(setting.rounds), f"{setting.sigma:g}", f"{setting.delta:g}"]
        rows.append([*given, *ours, *peers])
        print(*rows[-1], sep=", ", flush=True)
    if arguments.out:
        with arguments.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
