"""The noise of a process's releases, and their digits, against what is claimed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

import tff_mf
from tff_mf.noise.tensorflow import NoiseState

from ._probe import CHANCE, UNDIVIDED, Findings, Probe, Seen

_COUNTS = "count_noise"
# Name of an adaptive bound in the state of TFF's and TensorFlow Privacy's quantile estimators.
_ESTIMATE = "current_estimate"

_ONE_RELEASE = (
    "Release one noised aggregate: model_aggregator=build_mf_aggregator(...) once, for all trainable weights, and no "
    "other noised or exact aggregate, such as full_gradient_aggregator of build_unweighted_mime_lite."
)
_CONSTANT = (
    "Give clipping and zeroing around model_aggregator a constant bound instead of an adaptive quantile estimate."
)
_NOT_ADAPTIVE = (
    "Build the aggregator without adaptive_clipping; or take the guarantee from its dp_event, and check a process "
    "built without it."
)
_SAME_CLAIM = (
    "Give build_mf_aggregator and check_process the same mechanism, clip_norm, noise_multiplier and restart_every, and "
    "build_mf_aggregator no insecure_seed."
)
_OURS = "Pass model_aggregator=build_mf_aggregator(...)."


def noise_states(leaves: Mapping[str, Any]) -> list[str]:
    """Returns the paths of all noise states of this package in a state, given by its leaves.

    They are recognized by their field names: TFF does not always keep classes.
    """
    last = f"/{NoiseState._fields[0]}"
    parents = [path.removesuffix(last) for path in leaves if path.endswith(last)]
    return [path for path in parents if {f"{path}/round", f"{path}/keys"} <= leaves.keys()]


def check(leaves: Mapping[str, Any], fingerprint: str, findings: Findings) -> list[str]:
    """Checks that a state has one noised aggregate, with the claimed noise; returns the paths of our noise states."""
    found = noise_states(leaves)
    counts = [path for path in found if path.rsplit("/", 1)[-1] == _COUNTS]
    sums = [path for path in found if path not in counts]
    ours = [path for path in sums if path.startswith("aggregator/")][:1]
    for path in counts:
        text = (
            f"The clip norm is adaptive: {path} is the noise of counts of clients, a second release, which clip_norm "
            "and noise_multiplier alone do not describe."
        )
        findings.failed("state", text, _NOT_ADAPTIVE)
    for path in sums:
        if path not in ours:
            text = f"{path} is the noise of a release beside the model: a client contributes to two releases a round."
            findings.failed("state", text, _ONE_RELEASE)
    for path in leaves:
        # Made-up clients cannot tell how far real clients' data would move it.
        if path.rsplit("/", 1)[-1] == _ESTIMATE:
            text = (
                f"{path} is a bound of clipping or zeroing that adapts to clients: either exact, or a second noised "
                "release, which clip_norm and noise_multiplier alone do not describe."
            )
            findings.failed("state", text, _CONSTANT)
    if not ours:
        text = "The aggregator's state contains no noise of tff_mf: rounds after the measured ones are unknown."
        findings.unjudged(("noise",), text, _OURS)
    elif (
        not counts
        and (held := np.asarray(leaves[f"{ours[0]}/fingerprint"]).astype("<i8").tobytes().hex()) != fingerprint
    ):
        text = (
            f"The noise has the fingerprint {held[:12]}, the claim {fingerprint[:12]}: mechanism (also in "
            "later rounds), clip_norm, noise_multiplier, restart_every or insecure_seed differ."
        )
        findings.failed("noise", text, _SAME_CLAIM)
    return found


# Of one rounding in float32. A sum is rounded to the model's type, divided, multiplied by the rate, and subtracted from
# weights of 0; the divisor and the rate are rounded too.
_UNIT = 2.0**-24
_ROUNDINGS = 6
_LARGEST_KNOWN = 2**20

_ON_A_GRID = "Pass the same grid= to build_mf_aggregator and check_process; None if it has none."


def check_digits(change: np.ndarray, *, unit: float, grid: tff_mf.Grid, findings: Findings) -> None:
    """Checks that what a round without clients adds to the model is on the grid, as far as float32 resolves it.

    Args:
        change: What the round adds to the model, in the order of the noise.
        unit: What one clip norm adds to it.
        grid: The claimed grid.
        findings: Receives a finding of `noise` if the noise is not on the claimed grid.
    """
    numbers = change / (unit / grid.largest_norm)
    numbers = numbers[np.abs(numbers) <= _LARGEST_KNOWN]
    away = np.abs(numbers - np.rint(numbers)) > _ROUNDINGS * _UNIT * np.abs(numbers)
    if np.any(away):
        text = "The noise is in floating point, which gives clients away, and not on the claimed grid."
        findings.failed("noise", text, _ON_A_GRID)


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


def rounds_without_clients(probe: Probe, rounds: int, samples: int) -> tuple[list[list[Seen]], np.ndarray]:
    """Returns two runs of `rounds` rounds, each from its own initial state, and the noise of these and more runs.

    The noise is float64 `[rounds, coordinates]`, the runs side by side, with `samples` coordinates or more.
    """
    runs = [probe.noise(rounds) for _ in range(2)]
    parts = [np.stack([seen.change for seen in run]) for run in runs]
    more = math.ceil(samples / probe.dimension) - len(runs)
    if more > 0:
        parts.append(probe.noise_of_runs(more, rounds))
    return runs, np.concatenate(parts, axis=1)[:, :_SEEN_AT_MOST]


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
