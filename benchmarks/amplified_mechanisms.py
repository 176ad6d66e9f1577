"""Error over ε with balls in bins, of mechanisms made for it and of others, at equal amplified ε.

    python benchmarks/amplified_mechanisms.py [--certify] [--plot docs/amplified-error.svg]

n = 2,052, b = 342, k = 6, δ = 1e-6, as in the papers' StackOverflow experiments; σ times the RMS error of prefix sums,
in clip norms. All figures are estimates, but those of cyclic Poisson sampling and without amplification; --certify
calibrates the two made for balls in bins with certificates.
"""

import argparse
import time

import tff_mf

ROUNDS, BINS, TURNS, DELTA = 2052, 342, 6, 1e-6
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BANDS = (2, 4, 8, 16, 32, 64, 128)
MADE = {
    "banded Toeplitz for balls in bins": tff_mf.optimize_amplified_banded_toeplitz,
    "BLT for balls in bins": tff_mf.optimize_amplified_blt,
}
CYCLIC, KNOWN = "best of cyclic Poisson", "banded Toeplitz, known cohorts"


def others() -> dict[str, tff_mf.Mechanism]:
    """Returns mechanisms that were made without amplification."""
    found: dict[str, tff_mf.Mechanism] = {}
    for min_sep in (30, 171, 342):
        schema = tff_mf.MinSep(min_sep=min_sep, max_participations=-(-ROUNDS // min_sep))
        found[f"BLT made for min-sep {min_sep}"] = tff_mf.optimize_blt(
            rounds=ROUNDS, participation=schema, buffers=3, objective="rms"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--certify", action="store_true")
    parser.add_argument("--plot")
    parser.add_argument("--epsilon", type=float, action="append")
    asked = parser.parse_args()
    schema = tff_mf.FixedEpoch(min_sep=BINS, max_participations=TURNS)
    best_known = tff_mf.optimize_banded_toeplitz(rounds=ROUNDS, bands=BINS, participation=schema)
    banded = {bands: tff_mf.optimize_banded(rounds=ROUNDS, bands=bands) for bands in BANDS}
    fixed = others()
    epsilons = asked.epsilon or EPSILONS
    curves: dict[str, list[float]] = {}
    for epsilon in epsilons:
        level = {"epsilon": epsilon, "delta": DELTA}
        for name, optimize in MADE.items():
            start = time.process_time()
            made = optimize(rounds=ROUNDS, bins=BINS, **level)
            seconds, size = time.process_time() - start, _size(made.mechanism)
            text, error = f"{size}, found in {seconds:.0f} s of CPU time", made.estimated_error
            if asked.certify:
                run = (made.mechanism, ROUNDS, tff_mf.BallsInBins(groups=BINS))
                sigma = tff_mf.calibrate_noise_multiplier(*run, **level)
                found = tff_mf.guarantee(*run, noise_multiplier=sigma).at(delta=DELTA)
                error = sigma * tff_mf.rms_error(made.mechanism, ROUNDS)
                text += f", certified ε ≤ {found.epsilon:.4f} by {found.theorem}; estimated {made.estimated_error:.3f}"
            _report(curves, name, epsilon, error, text)
        for name, mechanism in fixed.items():
            estimator = tff_mf.BallsInBinsEstimator(tff_mf.balls_in_bins_gram(mechanism, ROUNDS, bins=BINS))
            _report(curves, name, epsilon, estimator.noise_multiplier(**level) * tff_mf.rms_error(mechanism, ROUNDS))
        cyclic = {bands: _cyclic(mechanism, epsilon) for bands, mechanism in banded.items()}
        bands = min(cyclic, key=lambda each: cyclic[each])
        _report(curves, CYCLIC, epsilon, cyclic[bands], f"{bands} bands")
        sigma = tff_mf.calibrate_noise_multiplier(best_known, ROUNDS, schema, **level)
        _report(curves, KNOWN, epsilon, sigma * tff_mf.rms_error(best_known, ROUNDS))
    if asked.plot:
        _draw(curves, epsilons, asked.plot)


def _size(mechanism: tff_mf.Mechanism) -> str:
    return f"{mechanism.buffers} buffers" if isinstance(mechanism, tff_mf.BLT) else f"{mechanism.bands} bands"


def _cyclic(mechanism: tff_mf.Banded, epsilon: float) -> float:
    sampling = tff_mf.CyclicPoisson(groups=mechanism.bands, population=342_000, clients_per_round=1000)
    sigma = tff_mf.calibrate_noise_multiplier(mechanism, ROUNDS, sampling, epsilon=epsilon, delta=DELTA)
    return sigma * tff_mf.rms_error(mechanism, ROUNDS)


def _report(curves: dict[str, list[float]], name: str, epsilon: float, error: float, text: str = "") -> None:
    curves.setdefault(name, []).append(error)
    print(f"epsilon {epsilon:g}: {name}: {error:.3f}  {text}", flush=True)


def _draw(curves: dict[str, list[float]], epsilons: list[float], path: str) -> None:
    import matplotlib.pyplot as plt

    least = [min(errors) for errors in zip(*curves.values(), strict=True)]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, errors in curves.items():
        relative = [error / best for error, best in zip(errors, least, strict=True)]
        axes.plot(epsilons, relative, marker="o", markersize=3, label=name, linestyle="-" if name in MADE else "--")
    axes.set(xscale="log", xlabel="ε at δ = 1e-6", ylabel="RMS error, relative to the least", ylim=(0.95, 2.0))
    axes.set_xticks(epsilons, [f"{each:g}" for each in epsilons])
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


if __name__ == "__main__":
    main()
