"""The run that a report is about: what it was set to do, what it did, and what its operator answered."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..run_folder.run_record import RunRecord
from ._evidence import Evidence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The input of a report.

    Attributes:
        record: The content of `run.json`.
        evidence: The content of the other files.
        answers: The operator's answers, `None` for open questions.
        realised: Whether the report is the final one; else the planned one.
    """

    record: RunRecord
    evidence: Evidence
    answers: Mapping[str, Any]
    realised: bool
