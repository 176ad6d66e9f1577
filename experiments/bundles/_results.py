"""What checks of a bundle end with."""

import dataclasses
import json
from collections.abc import Mapping

REBUILT = "rebuilt"
CHECKED = "checked against run.json"
DIGEST = "digest or signature only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    r"""Why a bundle must not be deployed.

    Attributes:
        file: The file that is wrong, in one line.
        reason: What is wrong with it, in one line.

    Example:
        >>> Refusal(file="device/a\nverified", reason="is not in the manifest").file
        'device/a\\nverified'
    """

    file: str
    reason: str

    def __post_init__(self) -> None:
        # Names and values are those of whoever made the bundle, and must not write lines, or move a terminal's cursor.
        for name in ("file", "reason"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What is wrong with a bundle, and what every file of it rests on.

    Attributes:
        refused: Why it must not be deployed; empty if it may.
        rests_on: For each file, why it is believed, given that nothing is refused: "rebuilt" if it is, byte by byte,
            what `tff-mf export` makes here of the other files; "checked against run.json" if it says the same; "digest
            or signature only" if only the bundle's digest, or a signature, tells that nobody exchanged it.
        rounds: Rounds that were run, in TensorFlow and in TFF; 0 if no graph was.
        digest: The digest of what was checked, whatever is in the folder by now; None if it is refused.
        headline: What its planned report says in one line; an empty text if it is refused.
    """

    refused: list[Refusal]
    rests_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rounds: int = 0
    digest: str | None = None
    headline: str = ""


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
