"""Certified ε against samples of jax_privacy's own generator: never below.

    python benchmarks/amplified_samples.py --jax-privacy /path/to/other/venv/bin/python [--settings 17 22]

For each setting and direction: δ at the certified ε of that direction, by the generator of jax_privacy 2.0.0, with its
standard error and beside the δ that is certified. A certificate that is too small would show as a δ above it by
several errors. Takes about forty minutes on one core; --settings runs a part.
"""

import argparse
import itertools
import json
import pathlib
import subprocess

import numpy as np

import tff_mf
from tff_mf.accounting.question import Question
from tff_mf.accounting.secret import FAILURE

DELTA = 1e-3
LARGE = 2052


def settings():
    """Yields name, column, rounds, min-sep, probability and σ."""
    blt = tff_mf.BLT(theta=[0.9, 0.5], omega=[0.1, 0.2]).coefficients(12)
    columns = {"identity": [1.0], "2 bands": [1.0, 0.5], "4 bands": [1.0, 0.6, 0.4, 0.3]}
    for name, column in columns.items():
        for sigma in (0.7, 1.5, 4.0):
            yield f"balls in bins, {name}", column, 12, 4, 1.0, sigma
            yield f"b-min-sep, {name}", column, 12, 4, 0.1, sigma
    for sigma in (0.7, 1.5):
        yield "balls in bins, BLT", list(blt), 12, 12, 1.0, sigma
        yield "b-min-sep, 8 bands", [1.0, *(0.5 / np.sqrt(np.arange(1, 8)))], 16, 8, 0.3, sigma
    wide = list(1 / np.sqrt(1 + np.arange(16)))
    yield "balls in bins, 16 bands", wide, LARGE, 342, 1.0, 2.0
    yield "b-min-sep, 16 bands", wide, LARGE, 16, 1 / 327, 2.0


def certified(column, rounds: int, min_sep: int, probability: float, sigma: float):
    """Returns both directions of the certificate."""
    mechanism = tff_mf.BandedToeplitz(column=[float(each) for each in column])
    samples = 10_000 if rounds == LARGE and probability < 1 else 200_000
    bins = tff_mf.BallsInBins(groups=min_sep) if probability == 1 else None
    sampling = bins or tff_mf.BMinSep(min_sep=min_sep, probability=probability)
    run = sampling.run(Question(mechanism=mechanism, rounds=rounds, sampling=sampling, samples=samples))
    if bins:
        return run.directions(run.gram, sigma, DELTA, FAILURE * DELTA / 2)
    return run.directions(sigma, DELTA, run.columns, FAILURE / 2 * DELTA)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--jax-privacy", metavar="PYTHON", required=True, help="python of a venv with jax_privacy 2.0.0"
    )
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--large-samples", type=int, default=100_000, help=f"samples at n = {LARGE}")
    parser.add_argument("--settings", type=int, nargs=2, default=[0, 24], metavar=("FIRST", "END"), help="part of them")
    arguments = parser.parse_args()
    command = [arguments.jax_privacy, str(pathlib.Path(__file__).with_name("amplified_samples_peer.py"))]
    worst, count = -np.inf, 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for name, column, rounds, min_sep, probability, sigma in itertools.islice(settings(), *arguments.settings):
            bounds = certified(column, rounds, min_sep, probability, sigma)
            cast = np.float32(column).astype(float).tolist()
            for remove, bound in zip((True, False), bounds, strict=True):
                case = {"rounds": rounds, "min_sep": min_sep, "probability": probability, "sigma": sigma}
                case |= {"column": cast, "remove": remove, "epsilon": bound.value}
                case["samples"] = arguments.large_samples if rounds == LARGE else arguments.samples
                peer.stdin.write(json.dumps(case) + "\n")
                peer.stdin.flush()
                found = json.loads(peer.stdout.readline())
                # Without a single loss above ε there is no error: it is then that of the certified δ.
                above = (found["mean"] - DELTA) / (found["error"] or np.sqrt(DELTA / case["samples"]))
                worst, count = max(worst, above), count + 1
                print(
                    f"{name}, n = {rounds}, b = {min_sep}, p = {probability:.4g}, σ = {sigma}, "
                    f"{'remove' if remove else 'add'}: ε {bound.value:.4f} (estimate {bound.estimate:.4f}, "
                    f"{bound.bound}), δ {found['mean']:.4e} ± {found['error']:.1e} of {DELTA:g} ({above:+.1f} errors), "
                    f"{case['samples']:,} samples, {found['seconds']:.0f} s"
                    + (f", losses {found['apart']:.0e} from jax_privacy's" if found["apart"] is not None else ""),
                    flush=True,
                )
        peer.stdin.close()
    print(f"{count} bounds; the largest δ is {worst:+.1f} standard errors from the certified one")


if __name__ == "__main__":
    main()
