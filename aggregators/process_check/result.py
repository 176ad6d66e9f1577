"""The result of a check: a status for each property, and the reasons for those that did not pass."""

import dataclasses
from collections.abc import Mapping

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
        told = {finding.name for finding in self._findings} | self._made
        missing = tuple(name for name in CHECKS if name not in told)
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
