"""What an assumption can be, and what a check can find."""

import dataclasses

HOLDS, ASSUMED, VIOLATED = "holds", "assumed", "violated"
CRITICAL, WARNING, NOTE = "critical", "warning", "note"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumption:
    """Something that the guarantee rests on.

    Attributes:
        name: A word for it.
        state: "holds" if it was checked, "assumed" if nobody can, "violated".
        text: What was assumed, and what was seen.
    """

    name: str
    state: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to know about a run.

    Attributes:
        severity: "critical" if no finite ε may be stated, "warning", or "note".
        field: The field of the report that it is about.
        text: What was found and what to do.
    """

    severity: str
    field: str
    text: str
