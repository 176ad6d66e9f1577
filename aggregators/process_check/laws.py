"""The seven properties, each as a law about what can be seen of rounds, and the result of a check of them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from scipy import stats

from tff_mf.noise.tensorflow import NoiseState

from .rounds import Attempt, Move, Probe, Seen, attempts, enlarged, neighbours, scaled

PASSED, FAILED, UNJUDGED = "passed", "failed", "not judged"
CRITICAL = "critical"

# Probability that a process that keeps its claims fails a statistical check.
CHANCE = 1e-9

# Property that each check is about, in the order of the checks.
CHECKS = {
    "metrics": "metrics depend on clients only through the noised aggregate",
    "state": "one noised aggregate is released, and nothing else about clients is kept",
    "noise": "the noise has the claimed covariance",
    "fresh_noise": "a state stepped twice draws different noise",
    "clipping": "no client moves the aggregate further than clip_norm",
    "divisor": "the divisor does not depend on the clients that report",
    "weights": "a client with more examples has no more weight",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFinding:
    """An observation that voids the guarantee, or a property that could not be judged.

    Attributes:
        name: Name of the check.
        severity: `critical`: the guarantee is void; or `not judged`: this check cannot tell.
        text: The observation.
        remedy: The argument to change.
    """

    name: str
    severity: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}: {self.text} {self.remedy}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessCheck:
    """Result of `check_process`.

    Attributes:
        statuses: `passed`, `failed` or `not judged` for each check, in the order of the checks.
        findings: Reasons for every check that did not pass.
        measured: Measured values, for the record.
        error_probability: Probability that a process that keeps its claims fails a statistical check.
    """

    statuses: Mapping[str, str]
    findings: tuple[ProcessFinding, ...]
    measured: Mapping[str, float]
    error_probability: float

    @property
    def passed(self) -> bool:
        """Whether every check was made and passed; the truth value of the result is the same."""
        return all(status == PASSED for status in self.statuses.values())

    @property
    def failed(self) -> bool:
        """Whether a check failed, so that the guarantee is void. A check that is not judged has not failed."""
        return FAILED in self.statuses.values()

    @property
    def verdict(self) -> str:
        """`failed` if a check failed; otherwise `not judged` if one could not be made; otherwise `passed`."""
        return FAILED if self.failed else PASSED if self.passed else UNJUDGED

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        lines = [f"{status:10}  {name}: {CHECKS[name]}" for name, status in self.statuses.items()]
        names_of: dict[tuple[str, str], list[str]] = {}
        for finding in self.findings:
            names_of.setdefault((finding.severity, f"{finding.text} {finding.remedy}"), []).append(finding.name)
        lines += [f"{severity}: {', '.join(names)}: {reason}" for (severity, reason), names in names_of.items()]
        lines += [f"measured: {name.replace('_', ' ')} {value:.4g}" for name, value in self.measured.items()]
        which = ", ".join(name for name, status in self.statuses.items() if status == self.verdict)
        verdict = self.verdict.upper() + ("" if self.passed else f": {which}")
        return "\n".join([f"{verdict} (error probability {self.error_probability:g})", *lines])


class Findings:
    """Collects findings. A check passes if it was completed and has no finding."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._findings: list[ProcessFinding] = []
        self.measured: dict[str, float] = {}

    def made(self, *names: str) -> None:
        self._made.update(names)

    def failed(self, name: str, text: str, remedy: str) -> None:
        self._findings.append(ProcessFinding(name=name, severity=CRITICAL, text=text, remedy=remedy))

    def unjudged(self, names: tuple[str, ...], text: str, remedy: str) -> None:
        self._findings += [ProcessFinding(name=name, severity=UNJUDGED, text=text, remedy=remedy) for name in names]

    def result(self) -> ProcessCheck:
        reported = {finding.name for finding in self._findings} | self._made
        missing = tuple(name for name in CHECKS if name not in reported)
        self.unjudged(missing, "Not made, because another check failed.", "Correct that first, and check again.")
        statuses = dict.fromkeys(CHECKS, PASSED)
        for severity, status in ((UNJUDGED, UNJUDGED), (CRITICAL, FAILED)):
            statuses |= {finding.name: status for finding in self._findings if finding.severity == severity}
        return ProcessCheck(
            statuses=statuses,
            findings=tuple(self._findings),
            measured=dict(self.measured),
            error_probability=CHANCE,
        )


# Remedies.
UNDIVIDED = (
    "Pass the aggregator of build_mf_aggregator itself as model_aggregator, or wrapped in "
    "tff.aggregators.as_weighted_aggregator, but not in a factory that divides, such as MeanFactory."
)
_ONE_RELEASE = (
    "Release one noised aggregate: model_aggregator=build_mf_aggregator(...) once, for all trainable weights, and no "
    "other noised or exact aggregate, such as full_gradient_aggregator of build_unweighted_mime_lite or statistics in "
    "non-trainable weights; give clipping and zeroing around it a constant bound."
)
_UNMEASURED = (
    "Pass metrics_aggregator=tff_mf.aggregators.withhold_metrics; remove factories that measure, such as "
    "tff.learning.add_debug_measurements, from model_aggregator, or wrap it in "
    "aggregators.withhold_measurements."
)
_NOT_ADAPTIVE = (
    "Build the aggregator without adaptive_clipping; or take the guarantee from its dp_event, and check a process "
    "built without it."
)
_SAME_CLAIM = (
    "Give build_mf_aggregator and check_process the same mechanism, clip_norm, noise_multiplier, clients_per_round, "
    "grid and restart_every, build_mf_aggregator no insecure_seed, and check_process the server_learning_rate of the "
    "first round."
)
_OURS = "Pass model_aggregator=build_mf_aggregator(...) for all trainable weights, with insecure_seed=None."
_CLIPPED = "Pass model_aggregator=build_mf_aggregator(...) with the claimed clip_norm, and enlarge nothing after it."
_UNWEIGHTED = (
    "Give all clients equal weight: client_weighting=UNIFORM, or tff.aggregators.as_weighted_aggregator around ours."
)
_LARGER = (
    "Pass clients= with data whose updates exceed clip_norm in one step, or raise the learning rate of "
    "client_optimizer_fn."
)

_COUNTS = "count_noise"
# Name of an adaptive bound in the state of TFF's and TensorFlow Privacy's quantile estimators.
_ESTIMATE = "current_estimate"
_REPEATS = 2
# Sums of floats differ slightly from run to run; noise is larger. A value that moves ten times as far is exact.
_ROUNDING, _FAR = 1e-5, 10.0
# The server's optimizer sees only the released aggregate, so that its state may be as random.
_AFTER_THE_RELEASE = "finalizer/"
# Metrics of these parts may be computed from clients, except what TFF's `DifferentiallyPrivateFactory` derives from the
# state of its query.
_BESIDE_THE_RELEASE, _QUERY = ("aggregator", "client_work"), "dp_query_metrics"


def metrics_and_state(probe: Probe, clients: Sequence[Any], *, fingerprint: str, findings: Findings) -> None:
    """Compares metrics and state of cohorts that differ in one client with the first cohort's.

    Everything but the trainable weights must be bit-identical in each round of each cohort. Only the state of the noise
    and of the server's optimizer may vary by itself.
    """
    # One initial state for all rounds: what it draws, such as the seed of a rotation, does not depend on clients.
    start = probe.fresh()
    noise = one_release(_untrained(start), fingerprint, findings)
    random = (_AFTER_THE_RELEASE, *(f"{path}/" for path in noise))
    seen = {name: [probe.step(start, cohort) for _ in range(_REPEATS)] for name, cohort in neighbours(clients).items()}
    metrics = {name: [by_path(output.metrics) for output in rounds] for name, rounds in seen.items()}
    states = {name: [_untrained(output.state) for output in rounds] for name, rounds in seen.items()}
    _constant("metrics", metrics, (), _UNMEASURED, findings)
    _constant("state", states, random, _ONE_RELEASE, findings)
    # What did not change, but is measured by something other than the noised query.
    beside = [
        path
        for path in sorted({path for rounds in metrics.values() for leaves in rounds for path in leaves})
        if path.split("/")[0] in _BESIDE_THE_RELEASE and _QUERY not in path.split("/")
    ]
    if beside:
        text = f"{_named(beside)} is measured beside the noised query: it may contain something exact about clients."
        findings.unjudged(("metrics",), text, _UNMEASURED)
    findings.made("metrics", "state")


def one_release(leaves: Mapping[str, Any], fingerprint: str, findings: Findings) -> list[str]:
    """Checks that a state has one noised aggregate, with the claimed noise; returns the paths of our noise states."""
    # They are recognized by their field names: TFF does not always keep classes.
    last = f"/{NoiseState._fields[0]}"
    parents = [path.removesuffix(last) for path in leaves if path.endswith(last)]
    noises = [path for path in parents if {f"{path}/round", f"{path}/keys"} <= leaves.keys()]
    counts = [path for path in noises if path.rsplit("/", 1)[-1] == _COUNTS]
    sums = [path for path in noises if path not in counts]
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
            findings.failed("state", text, _ONE_RELEASE)
    if not ours:
        text = "The aggregator's state contains no noise of tff_mf: rounds after the measured ones are unknown."
        findings.unjudged(("noise",), text, _OURS)
        return noises
    held = np.asarray(leaves[f"{ours[0]}/fingerprint"]).astype("<i8").tobytes().hex()
    if not counts and held != fingerprint:
        text = (
            f"The noise has the fingerprint {held[:12]}, the claim {fingerprint[:12]}: mechanism (also in "
            "later rounds), clip_norm, noise_multiplier, grid, restart_every or insecure_seed differ."
        )
        findings.failed("noise", text, _SAME_CLAIM)
    return noises


def _constant(
    place: str,
    seen: Mapping[str, Sequence[Mapping[str, Any]]],
    random: tuple[str, ...],
    remedy: str,
    findings: Findings,
) -> None:
    first, *other_cohorts = seen
    exact, varying = {}, []
    for path in seen[first][0]:
        values = {name: [np.asarray(leaves[path]) for leaves in rounds] for name, rounds in seen.items()}
        if _same([value for rounds in values.values() for value in rounds]):
            continue
        moving = [name for name in other_cohorts if _moved_exactly(values[first], values[name])]
        if moving:
            exact.setdefault(", ".join(moving), []).append(path)
        elif not path.startswith(random):
            varying.append(path)
    for names, paths in exact.items():
        findings.failed(place, f"{_named(paths)} is exact, and changes with {names}.", remedy)
    if varying:
        text = f"{_named(varying)} varies by itself, apart from the noise: it may contain something exact of clients."
        findings.unjudged((place,), text, remedy)


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"


def _untrained(state: Any) -> dict[str, Any]:
    weights = state.global_model_weights
    return by_path(state._replace(global_model_weights=getattr(weights, "non_trainable", ())))


def by_path(structure: Any) -> dict[str, Any]:
    """Returns the leaves of a structure by their paths."""
    return {"/".join(map(str, path)): leaf for path, leaf in tree.flatten_with_path(structure)}


def _same(arrays: Sequence[np.ndarray]) -> bool:
    return len({(array.shape, array.tobytes()) for array in arrays}) == 1


def _moved_exactly(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Returns whether values differ between cohorts but, up to rounding, not within one."""
    arrays = [*before, *after]
    if any(array.shape != arrays[0].shape for array in arrays) or not np.issubdtype(arrays[0].dtype, np.number):
        return _same(before) and _same(after) and not _same(arrays)
    if not arrays[0].size:
        return False
    values = np.stack([array.astype(np.float64).ravel() for array in arrays])
    values = np.nan_to_num(values, nan=1e300, posinf=1e300, neginf=-1e300)
    size = np.maximum(np.max(np.abs(values), axis=0), np.finfo(np.float64).tiny)
    first, second = values[: len(before)] / size, values[len(before) :] / size
    spread = np.maximum(np.ptp(first, axis=0), np.ptp(second, axis=0))
    gap = np.maximum(np.min(second, axis=0) - np.max(first, axis=0), np.min(first, axis=0) - np.max(second, axis=0))
    return bool(np.any((spread <= _ROUNDING) & (gap > _FAR * _ROUNDING)))


# Coordinates of noise: fewest that are measured, in this many runs at most, and most that are looked at.
_SAMPLES, _MOST_RUNS, _MOST_SAMPLES = 1000, 64, 2**22
# Noise that differs by less than this fraction of a round's noise does not differ, but for rounding in float32.
_NOTHING = 0.01
# Among this many coordinates, hardly any two are the same float32 by chance.
_COMPARED, _DISTINCT = 10**5, 0.99


def noise_without_clients(probe: Probe, rounds: int) -> tuple[list[list[Seen]], np.ndarray]:
    """Returns runs of `rounds` rounds, each from its own initial state, and their noise side by side.

    The noise is float64 `[rounds, coordinates]`. There are two runs, or more for a small model.
    """
    count = min(_MOST_RUNS, max(2, math.ceil(_SAMPLES / probe.dimension)))
    runs = [probe.noise(rounds) for _ in range(count)]
    rows = np.concatenate([np.stack([seen.change for seen in run]) for run in runs], axis=1)
    return runs, rows[:, :_MOST_SAMPLES]


def is_seen(rows: np.ndarray, findings: Findings) -> bool:
    """Returns whether rounds without clients have finite noise; adds a finding if not."""
    if not np.all(np.isfinite(rows)):
        text = "Without clients, the model is not finite: the aggregate is divided by their number or weight."
        findings.failed("divisor", text, UNDIVIDED)
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
        findings.failed("noise", f"A fraction of {none:.2g} of the model has no noise.", _OURS)
    return True


def is_normal(rows: np.ndarray) -> bool:
    """Returns whether the noise of the first round is normal, as it is if the server's step is proportional to it."""
    first = rows[0] / np.sqrt(np.mean(rows[0] ** 2))
    return bool(stats.kstest(first, "norm").pvalue > CHANCE)


def noise(rows: np.ndarray, *, encoder: np.ndarray, on_grid: bool, findings: Findings) -> None:
    """Tests that C·rows are independent standard normals: by χ² tests of each round and of the correlations.

    Args:
        rows: Noise divided by the claimed standard deviation of a coordinate of z.
        encoder: The claimed C.
        on_grid: Whether the noise is made of integers, of which many are equal by chance in one round.
        findings: Receives the findings.
    """
    some = np.abs(rows[: len(rows) if on_grid else 1, :_COMPARED])
    if np.unique(some, axis=1).shape[1] < _DISTINCT * some.shape[1]:
        findings.failed("noise", "Coordinates of the model, or several runs, have the same noise.", _OURS)
        return
    white = encoder @ rows
    rounds, coordinates = white.shape
    sums = np.sum(white**2, axis=1)
    chance = CHANCE / (4 * rounds)
    low, high = stats.chi2.ppf(chance, coordinates), stats.chi2.isf(chance, coordinates)
    degrees, total = sums.size * coordinates, float(np.sum(sums))
    least = stats.chi2.ppf(CHANCE / 4, degrees)
    findings.measured["noise_over_claimed"] = math.sqrt(total / degrees)
    findings.measured["smallest_shortfall_seen"] = 1 - math.sqrt(least / degrees)
    wrong = np.flatnonzero((sums < low) | (sums > high))
    if wrong.size or total < least:
        where, ratio = "all rounds", math.sqrt(total / degrees)
        if wrong.size:
            number = wrong[np.argmax(np.abs(np.log(sums[wrong] / coordinates)))]
            where, ratio = f"round {number + 1}", math.sqrt(sums[number] / coordinates)
        text = f"The noise of {where}, whitened, has {ratio:.3g} times the claimed standard deviation."
        findings.failed("noise", text, _SAME_CLAIM)
        return
    findings.made("noise")
    below = np.tril_indices(rounds, -1)
    pairs = (white @ white.T)[below] ** 2 / np.outer(sums, sums)[below]
    if pairs.size and stats.chi2.sf(coordinates * np.sum(pairs), pairs.size) < CHANCE / 4:
        text = "The noise of the rounds, whitened, is correlated: it is not the mechanism's noise."
        findings.failed("noise", text, _SAME_CLAIM)


def fresh_noise(probe: Probe, runs: Sequence[Sequence[Seen]], findings: Findings) -> None:
    """Checks that a state stepped twice draws different noise, and that two initial states do."""
    start, run = probe.fresh(0.0), runs[0]
    for round_number, state in ((1, start), (len(run), start._replace(aggregator=run[-1].state.aggregator))):
        once, twice = (probe.step(state, []).change for _ in range(2))
        if _rms(once - twice) < _NOTHING * _rms(once):
            findings.failed(
                "fresh_noise", f"A state stepped twice after round {round_number} repeats its noise.", _OURS
            )
    findings.made("fresh_noise")
    if _rms(runs[0][0].change - runs[1][0].change) < _NOTHING * _rms(runs[0][0].change):
        findings.failed("fresh_noise", "Two initial states draw the same noise.", _OURS)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


# With this many clients a round, or half of them, standard deviations of the compared sizes are 2% of them.
_CLIENTS, _CLIENTS_OF_LARGE_MODELS, _FEWEST = 40, 8, 8
# Six standard deviations or more of the compared sizes.
_BOUND, _REACHED = 1.15, 0.85
_TWICE = (1.5, 2.7)
_TIMES = 64


def count_for(stddev: float, dimension: int) -> int:
    """Returns an even number of clients that stand out from noise of `stddev` clip norms in one round."""
    needed = max(_FEWEST, _CLIENTS * stddev, _CLIENTS_OF_LARGE_MODELS * stddev * dimension**0.25)
    return 2 * math.ceil(needed / 2)


def clients(
    probe: Probe,
    examples: Sequence[Any],
    *,
    claimed: float,
    noise: float | None,
    count: int,
    findings: Findings,
) -> None:
    """Checks clipping, divisor and weights with rounds of many identical clients.

    Args:
        probe: The process.
        examples: Data of clients.
        claimed: Maximum distance by which a client may move the model.
        noise: Standard deviation of what rounds without clients add to a weight, or `None` if it is not finite.
        count: Number of clients in a round.
        findings: Receives the findings.
    """
    invalid = scaled(examples[0], np.nan)
    if invalid is not None and not np.all(np.isfinite(probe.step(probe.fresh(), [invalid, *examples[1:]]).change)):
        findings.failed("clipping", "The NaN of one client makes the whole model NaN.", _CLIPPED)
        return
    tried: list[tuple[Attempt, Move]] = []
    clipped = False
    for attempt in attempts(examples):
        move = attempt.move(probe, count)
        tried.append((attempt, move))
        if not math.isfinite(move.size) or move.size / count > _BOUND * claimed:
            text = "The data of one client makes the model infinite or NaN."
            if math.isfinite(move.size):
                ratio = findings.measured["move_over_claimed"] = move.size / count / claimed
                text = f"A client moves the aggregate {ratio:.3g} times as far as clip_norm allows."
            findings.failed("clipping", text, _CLIPPED)
            _weights(probe, attempt, move, count, findings)
            return
        # The later update was meant to be longer, and is not.
        clipped = len(tried) > 1 and min(other.size for _, other in tried[-2:]) > _REACHED * claimed * count
        if clipped:
            break
    attempt, move = tried[-1] if clipped else max(tried, key=lambda pair: pair[1].size)
    if move.stands_out:
        _divisor(attempt.move(probe, count // 2), move, noise, findings)
    else:
        findings.unjudged(("divisor",), "No made-up client moves the model visibly.", _LARGER)
    if not clipped:
        text = "No made-up client has an update that is long enough to be clipped."
        findings.unjudged(("clipping", "weights"), text, _LARGER)
        return
    findings.made("clipping")
    findings.measured["move_over_claimed"] = move.size / count / claimed
    _weights(probe, attempt, move, count, findings)


def _divisor(half: Move, move: Move, noise: float | None, findings: Findings) -> None:
    # Rounds of the same clients may differ by more than noise, for example if clients shuffle, but never by less.
    if noise and stats.chi2.cdf(move.dimension * (move.noise_stddev / noise) ** 2, move.dimension) < CHANCE:
        text = f"With clients, the noise is {move.noise_stddev / noise:.3g} times as large as without."
        findings.failed("divisor", text, UNDIVIDED)
        return
    findings.made("divisor")
    ratio = findings.measured["twice_the_clients_move"] = move.size / half.size if half.size else math.inf
    if not _TWICE[0] < ratio < _TWICE[1]:
        text = f"Twice as many clients move the aggregate {ratio:.3g} times as far: the divisor depends on who reports."
        findings.failed("divisor", text, UNDIVIDED)


def _weights(probe: Probe, attempt: Attempt, move: Move, count: int, findings: Findings) -> None:
    example = enlarged(attempt.example, _TIMES)
    if example is None:
        remedy = "Pass clients= as tf.data.Datasets whose batches may be of any size."
        findings.unjudged(("weights",), "No client with more examples could be made from clients=.", remedy)
        return
    larger = dataclasses.replace(attempt, example=example).move(probe, count)
    if not (move.stands_out and math.isfinite(larger.size)):
        findings.unjudged(("weights",), "Clients with more examples do not stand out from the noise.", _LARGER)
        return
    findings.made("weights")
    ratio = findings.measured["more_examples_move"] = larger.size / move.size
    if not 1 / _BOUND < ratio < _BOUND:
        text = f"Clients with {_TIMES} times the examples move the aggregate {ratio:.3g} times as far."
        findings.failed("weights", text, _UNWEIGHTED)
