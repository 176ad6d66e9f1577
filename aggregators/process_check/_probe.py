"""The process that is checked, as rounds of releases, and the result of the check."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError

from ..resident.cohort_graph import NotInOneGraphError
from ..resident.context import ResidentContext
from . import _chains

_LOG = logging.getLogger(__name__)

PASSED, FAILED, UNJUDGED = "passed", "failed", "not judged"
CRITICAL = "critical"

# Probability that a process that keeps its claims fails a statistical check.
CHANCE = 1e-9

# Remedies shared by several checks.
UNDIVIDED = (
    "Pass the aggregator of build_mf_aggregator itself as model_aggregator, or wrapped in "
    "tff.aggregators.as_weighted_aggregator, but not in a factory that divides, such as MeanFactory."
)
_FIRST = "Correct that first, and check again."

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
        told = {finding.name for finding in self._findings} | self._made
        missing = tuple(name for name in CHECKS if name not in told)
        self.unjudged(missing, "Not made, because another check failed.", _FIRST)
        statuses = dict.fromkeys(CHECKS, PASSED)
        for severity, status in ((UNJUDGED, UNJUDGED), (CRITICAL, FAILED)):
            statuses |= {each.name: status for each in self._findings if each.severity == severity}
        return ProcessCheck(
            statuses=statuses,
            findings=tuple(self._findings),
            measured=dict(self.measured),
            error_probability=CHANCE,
        )


_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What can be seen of a round: the change of the trainable weights, float64 `[dimension]`, metrics and state."""

    change: np.ndarray
    metrics: Any
    state: Any


class Probe:
    """Runs single rounds of a process, each with the server's optimizer in its initial state.

    An optimizer that has not stepped yet has no momentum, so that its first step is proportional to the aggregate, for
    SGD with any momentum. Later rounds of the noise are observed by combining the aggregator's later state with it.

    Args:
        process: The process.
        server_learning_rate: The rate of the first step; if `None`, the one in the process's `get_hparams`.
        context: The current context, which runs the process.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        server_learning_rate: float | None,
        context: ResidentContext,
    ) -> None:
        self._process, self._context = process, context
        start = process.initialize()
        missing = [name for name in ("global_model_weights", "aggregator", "finalizer") if not hasattr(start, name)]
        if missing:
            raise InputTypeError(
                f"process has a state without {' and '.join(missing)}: pass one from tff.learning.algorithms or "
                "tff.learning.templates.compose_learning_process."
            )
        self.weights = tf.nest.map_structure(np.asarray, process.get_model_weights(start))
        self.rate = _rate(process, start) if server_learning_rate is None else server_learning_rate
        self.dimension = sum(np.size(leaf) for leaf in _trainable(self.weights))

    def fresh(self, factor: float = 1.0) -> Any:
        """Returns an initial state with always the same model, times a factor."""
        weights = tf.nest.map_structure(
            lambda leaf: leaf * np.asarray(factor, leaf.dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf,
            self.weights,
        )
        return self._process.set_model_weights(self._process.initialize(), weights)

    def step(self, state: Any, cohort: Sequence[Any]) -> Seen:
        before = _flat(state.global_model_weights)
        output = self._process.next(state, list(cohort))
        change = _flat(output.state.global_model_weights) - before
        return Seen(change=change, metrics=output.metrics, state=output.state)

    def noise(self, rounds: int) -> list[Seen]:
        """Runs rounds without clients: successive for the aggregator, each the first for the server's optimizer."""
        start, seen = self.fresh(0.0), []
        state = start
        for _ in range(rounds):
            seen.append(self.step(state, []))
            state = start._replace(aggregator=seen[-1].state.aggregator)
        return seen

    def noise_of_runs(self, runs: int, rounds: int) -> np.ndarray:
        """Returns the changes of runs of `noise`, side by side: float64 `[rounds, coordinates]`."""
        try:
            changes = _chains.changes(self._context, self._process, runs=runs, rounds=rounds)
        except NotInOneGraphError as reason:
            _LOG.info("Rounds without clients are called one by one: %s.", reason)
            changes = np.array([[seen.change for seen in self.noise(rounds)] for _ in range(runs)])
        return np.concatenate(changes, axis=1)


def _rate(process: tff.learning.templates.LearningProcess, state: Any) -> float | None:
    parameters = process.get_hparams(state)
    found = parameters.get("finalizer", {}) if isinstance(parameters, dict) else {}
    rate = found.get(_RATE) if isinstance(found, dict) else None
    return None if rate is None else float(np.asarray(rate))


def _trainable(weights: Any) -> list[Any]:
    return tf.nest.flatten(getattr(weights, "trainable", weights))


def _flat(weights: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)).astype(np.float64) for leaf in _trainable(weights)])
