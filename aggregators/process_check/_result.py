"""Results of a check of a process."""

import dataclasses
from collections.abc import Mapping

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
        """Whether every check was made and passed."""
        return all(status == PASSED for status in self.statuses.values())

    def __str__(self) -> str:
        lines = [f"{status:10}  {name}: {CHECKS[name]}" for name, status in self.statuses.items()]
        lines += [str(finding) for finding in self.findings]
        lines += [f"measured: {name.replace('_', ' ')} {value:.4g}" for name, value in self.measured.items()]
        verdict = "passed" if self.passed else "NOT passed"
        return "\n".join([f"{verdict} (error probability {self.error_probability:g})", *lines])


class Findings:
    """Collects findings. A check passes if it was completed and has no finding."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._findings: list[ProcessFinding] = []
        self.measured: dict[str, float] = {}

    def made(self, *names: str) -> None:
        """Records that checks were completed."""
        self._made.update(names)

    def failed(self, name: str, text: str, remedy: str) -> None:
        """Records that a check failed."""
        self._findings.append(ProcessFinding(name=name, severity=CRITICAL, text=text, remedy=remedy))

    def unjudged(self, names: tuple[str, ...], text: str, remedy: str) -> None:
        """Records that checks could not be judged."""
        self._findings += [ProcessFinding(name=name, severity=UNJUDGED, text=text, remedy=remedy) for name in names]

    def result(self) -> ProcessCheck:
        """Returns the result of all checks."""
        told = {finding.name for finding in self._findings} | self._made
        self.unjudged(
            tuple(name for name in CHECKS if name not in told), "Not made, because another check failed.", _FIRST
        )
        return ProcessCheck(
            statuses={name: self._status(name) for name in CHECKS},
            findings=tuple(self._findings),
            measured=dict(self.measured),
            error_probability=CHANCE,
        )

    def _status(self, name: str) -> str:
        severities = {finding.severity for finding in self._findings if finding.name == name}
        if CRITICAL in severities:
            return FAILED
        return UNJUDGED if severities else PASSED
