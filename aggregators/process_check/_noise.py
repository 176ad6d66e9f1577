"""Checks the noise of rounds without clients: its covariance, and whether it is fresh."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from ._probe import Probe, Seen
from ._result import CHANCE, UNDIVIDED, Findings

_SEEN_AT_MOST = 2**22
# Noise that differs by less than this fraction of a round's noise does not differ, but for rounding in float32.
_NOTHING = 0.01
# Among so many coordinates, hardly any two are the same float32 by chance.
_COMPARED = 10**5
_DISTINCT = 0.99

_WHOLE = "Pass model_aggregator=build_mf_aggregator(...) for all trainable weights, with insecure_seed=None."
_AS_CLAIMED = (
    "Give build_mf_aggregator and check_process the same mechanism, clip_norm, noise_multiplier and clients_per_round, "
    "and check_process the server_learning_rate of the first round."
)


def rounds_without_clients(probe: Probe, rounds: int, samples: int) -> list[list[Seen]]:
    """Returns runs of `rounds` rounds, each from its own initial state, with `samples` coordinates a round in all."""
    return [probe.noise(rounds) for _ in range(max(2, math.ceil(samples / probe.dimension)))]


def rows_of(runs: Sequence[Sequence[Seen]]) -> np.ndarray:
    """Returns the changes of the runs, float64 `[rounds, coordinates]`, side by side."""
    changes = [np.stack([seen.change for seen in run]) for run in runs]
    return np.concatenate(changes, axis=1)[:, :_SEEN_AT_MOST]


def is_seen(rows: np.ndarray, findings: Findings) -> bool:
    """Returns whether rounds without clients have finite noise; adds a finding if not."""
    if not np.all(np.isfinite(rows)):
        findings.failed(
            "divisor",
            "Without clients, the model is not finite: the aggregate is divided by their number or weight.",
            UNDIVIDED,
        )
        text = "The aggregate is divided by the number or weight of clients, so that its noise cannot be measured."
        findings.unjudged(("noise", "fresh_noise"), text, UNDIVIDED)
        return False
    if not np.any(rows):
        text = "A round without clients adds no noise, or a value that is not finite, which TFF replaces by zero."
        findings.failed("noise", text, f"Pass noise_multiplier > 0 to build_mf_aggregator. {UNDIVIDED}")
        findings.unjudged(("fresh_noise",), text, UNDIVIDED)
        return False
    none = float(np.mean(rows[0] == 0))
    if none > 1 - _DISTINCT:
        findings.failed("noise", f"A fraction of {none:.2g} of the model has no noise.", _WHOLE)
    return True


def is_normal(rows: np.ndarray) -> bool:
    """Returns whether the noise of the first round is normal, as it is if the server's step is proportional to it."""
    first = rows[0] / np.sqrt(np.mean(rows[0] ** 2))
    return bool(stats.kstest(first, "norm").pvalue > CHANCE)


def covariance(
    rows: np.ndarray, *, encoder: np.ndarray, relative_error: float, on_grid: bool, findings: Findings
) -> None:
    """Tests that C·rows are independent standard normals: by χ² tests of each round and of the correlations.

    Args:
        rows: Noise divided by the claimed standard deviation of a coordinate of z.
        encoder: The claimed C.
        relative_error: Relative error of that standard deviation.
        on_grid: Whether the noise is made of integers, of which many are equal by chance in one round.
        findings: Receives the findings.
    """
    some = np.abs(rows[: len(rows) if on_grid else 1, :_COMPARED])
    if np.unique(some, axis=1).shape[1] < _DISTINCT * some.shape[1]:
        findings.failed("noise", "Coordinates of the model, or several runs, have the same noise.", _WHOLE)
        return
    white = encoder @ rows
    rounds, coordinates = white.shape
    sums = np.sum(white**2, axis=1)
    each = CHANCE / (4 * rounds)
    low = stats.chi2.ppf(each, coordinates) * (1 - relative_error) ** 2
    high = stats.chi2.isf(each, coordinates) * (1 + relative_error) ** 2
    degrees, total = sums.size * coordinates, float(np.sum(sums))
    least = stats.chi2.ppf(CHANCE / 4, degrees) * (1 - relative_error) ** 2
    ratio = math.sqrt(total / degrees)
    findings.measured["noise_over_claimed"] = ratio
    findings.measured["smallest_shortfall_seen"] = 1 - math.sqrt(least / degrees)
    wrong = np.flatnonzero((sums < low) | (sums > high))
    text = f"The noise of all rounds, whitened, has {ratio:.3g} times the claimed standard deviation."
    if wrong.size:
        worst = wrong[np.argmax(np.abs(np.log(sums[wrong] / coordinates)))]
        found = math.sqrt(sums[worst] / coordinates)
        text = f"The noise of round {worst + 1}, whitened, has {found:.3g} times the claimed standard deviation."
    if wrong.size or total < least:
        findings.failed("noise", text, _AS_CLAIMED)
        return
    findings.made("noise")
    products = white @ white.T
    pairs = products[np.tril_indices(rounds, -1)] ** 2 / np.outer(sums, sums)[np.tril_indices(rounds, -1)]
    if pairs.size and stats.chi2.sf(coordinates * np.sum(pairs), pairs.size) < CHANCE / 4:
        findings.failed(
            "noise",
            "The noise of the rounds, whitened, is correlated: it is not the mechanism's noise.",
            "Give build_mf_aggregator and check_process the same mechanism.",
        )


def fresh(probe: Probe, runs: Sequence[Sequence[Seen]], findings: Findings) -> None:
    """Checks that a state stepped twice draws different noise, and that two initial states do."""
    remedy = (
        "Pass model_aggregator=build_mf_aggregator(...) with insecure_seed=None, so that each round draws its own key."
    )
    start, run = probe.fresh(0.0), runs[0]
    for round_number, state in ((1, start), (len(run), start._replace(aggregator=run[-1].state.aggregator))):
        once, again = (probe.step(state, []).change for _ in range(2))
        if _rms(once - again) < _NOTHING * _rms(once):
            findings.failed(
                "fresh_noise", f"A state stepped twice after round {round_number} repeats its noise.", remedy
            )
    findings.made("fresh_noise")
    if _rms(runs[0][0].change - runs[1][0].change) < _NOTHING * _rms(runs[0][0].change):
        findings.failed("fresh_noise", "Two initial states draw the same noise.", remedy)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
