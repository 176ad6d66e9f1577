"""Assumptions with their states, and findings with their severities."""

import dataclasses

HOLDS, ASSUMED, VIOLATED = "holds", "assumed", "violated"
CRITICAL, WARNING, NOTE = "critical", "warning", "note"

# A state and what was found.
Judged = tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumption:
    """An assumption of the guarantee.

    Attributes:
        name: Name of the assumption.
        state: "holds" if it was checked, "assumed" if it cannot be checked, or "violated".
        text: What was assumed, and what was observed.
    """

    name: str
    state: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact about a run that its reader needs to know.

    Attributes:
        severity: "critical" if no finite ε may be stated, "warning", or "note".
        field: The field of the report that the finding is about.
        text: What was found and what to do.
    """

    severity: str
    field: str
    text: str
