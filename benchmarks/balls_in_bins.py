"""Certified ε of balls-in-bins sampling at n = 2052, b = 342, k = 6, and the time it takes.

    python benchmarks/balls_in_bins.py [--only NAME]
    python benchmarks/balls_in_bins.py --jax-privacy /path/to/other/venv/bin/python

Prints for each mechanism, at noise that gives unamplified ε of 1 to 16 at δ = 1e-6: the estimate, the certified ε with
the bound that was smallest, samples, and CPU seconds on one thread; banded mechanisms also with ε of cyclic Poisson
sampling at the same noise. Then one ε at δ = 1e-10, and σ for ε = 2 and 8. Takes about six minutes on one core.
The second line prints only how far the losses of a few samples of jax_privacy 2.0.0 are from ours, its CPU seconds per
sample, and how many samples it asks for to certify δ = 1e-6 from 0.9e-6.
"""

import argparse
import json
import pathlib
import subprocess
import time

import numpy as np

import tff_mf
from tff_mf.accounting import bands_and_norm
from tff_mf.numerics import gaussian

ROUNDS, BINS, LIMIT, DELTA = 2052, 342, 6, 1e-6
POPULATION = 342_000


def mechanisms() -> dict[str, tff_mf.Mechanism]:
    p = tff_mf.MinSep(min_sep=BINS, max_participations=LIMIT)
    found = {"BLT(3)": tff_mf.optimize_blt(rounds=ROUNDS, participation=p, buffers=3, objective="rms")}
    for bands in (342, 64, 16):
        name = f"banded Toeplitz {bands}"
        found[name] = tff_mf.optimize_banded_toeplitz(rounds=ROUNDS, bands=bands, participation=p)
    return found | {"identity": tff_mf.Identity()}


def poisson(mechanism: tff_mf.Mechanism, sigma: float) -> str:
    if isinstance(mechanism, tff_mf.BLT):
        return "-"
    size = POPULATION // BINS
    bands = bands_and_norm(mechanism, ROUNDS)[0]
    sampling = tff_mf.CyclicPoisson(groups=bands, population=POPULATION, clients_per_round=size)
    found = tff_mf.epsilon(mechanism, ROUNDS, sampling, noise_multiplier=sigma, delta=DELTA)
    return f"{found:.3f}"


def row(mechanism: tff_mf.Mechanism, sigma: float, delta: float) -> str:
    began = time.process_time()
    sampling = tff_mf.BallsInBins(groups=BINS)
    found = tff_mf.guarantee(mechanism, ROUNDS, sampling, noise_multiplier=sigma).at(delta=delta)
    spent = time.process_time() - began
    return (
        f"estimate {found.estimate or found.epsilon:.4f}  {found.bound} {found.epsilon:.4f} ({found.theorem}, to "
        f"{found.direction})  {found.samples} samples  {spent:.1f} s"
    )


def beside_jax_privacy(python: str) -> None:
    p = tff_mf.MinSep(min_sep=BINS, max_participations=LIMIT)
    for name, mechanism in mechanisms().items():
        sigma = tff_mf.calibrate_noise_multiplier(mechanism, ROUNDS, p, epsilon=8, delta=DELTA)
        cast = mechanism.cast_to_float32()
        encoder = cast.encoder(ROUNDS)
        column = np.trim_zeros(encoder[:, 0], "b")
        signals = np.stack([encoder[:, group::BINS].sum(axis=1) for group in range(BINS)])
        for positive in (True, False):
            case = {"rounds": ROUNDS, "bins": BINS, "sigma": sigma, "column": column.tolist(), "delta": DELTA}
            case |= {"positive": positive, "samples": 20}
            command = [python, str(pathlib.Path(__file__).with_name("balls_in_bins_peer.py")), json.dumps(case)]
            theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            exponents = (np.array(theirs["outputs"]) @ signals.T - np.sum(signals**2, axis=1) / 2) / sigma**2
            ours = np.log(np.mean(np.exp(exponents), axis=1)) * (1 if positive else -1)
            apart = np.max(np.abs(ours - theirs["losses"]))
            days = theirs["seconds"] * theirs["needed"] / 86400
            print(
                f"{name}, {'remove' if positive else 'add'}: at most {apart:.1e} apart, "
                f"{theirs['seconds']:.4f} s a sample on one thread, {theirs['needed']:.2e} samples: {days:.0f} days",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jax-privacy", metavar="PYTHON", help="python of a venv with jax_privacy 2.0.0")
    parser.add_argument("--only", default="", metavar="NAME", help="mechanisms whose name has this in it")
    given = parser.parse_args()
    if given.jax_privacy:
        beside_jax_privacy(given.jax_privacy)
    else:
        own({name: mechanism for name, mechanism in mechanisms().items() if given.only in name})


def own(chosen: dict[str, tff_mf.Mechanism]) -> None:
    p = tff_mf.MinSep(min_sep=BINS, max_participations=LIMIT)
    total = time.process_time()
    for name, mechanism in chosen.items():
        for epsilon in (1, 2, 4, 8, 16):
            sigma = tff_mf.calibrate_noise_multiplier(mechanism, ROUNDS, p, epsilon=epsilon, delta=DELTA)
            line = row(mechanism, sigma, DELTA)
            print(f"{name}, unamplified {epsilon}: {line}  Poisson {poisson(mechanism, sigma)}", flush=True)
    print(f"all: {time.process_time() - total:.0f} s with optimizers and Poisson sampling")
    mechanism = chosen.get("BLT(3)")
    if mechanism is None:
        return
    for epsilon in (2, 8):
        mu = gaussian.mu_from(epsilon, 1e-10)
        sigma = tff_mf.sensitivity(mechanism, ROUNDS, p) / mu
        print(f"BLT(3), unamplified {epsilon} at δ = 1e-10: {row(mechanism, sigma, 1e-10)}", flush=True)
    for epsilon in (2, 8):
        began = time.process_time()
        run = (mechanism, ROUNDS, tff_mf.BallsInBins(groups=BINS))
        sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=epsilon, delta=DELTA)
        found = tff_mf.guarantee(*run, noise_multiplier=sigma).at(delta=DELTA)
        error = sigma * tff_mf.rms_error(mechanism, ROUNDS)
        spent = time.process_time() - began
        print(
            f"BLT(3), σ for {epsilon}: {sigma:.4f}, certified {found.epsilon:.4f} ({found.theorem}), "
            f"σ·RMS {error:.3f}, {spent:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
