"""Results of the checks of a bundle."""

import dataclasses
import json
from collections.abc import Mapping

REBUILT = "rebuilt"
CHECKED = "checked against run.json"
DIGEST = "digest only"
NEARLY = "digest, and computed again to within 1e-6"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    r"""A reason why a bundle must not be deployed.

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
        # Names and values come from the author of the bundle: they must not add lines, or move a terminal's cursor.
        for name in ("file", "reason"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The reasons why a bundle is refused, and otherwise the evidence for each file.

    Attributes:
        refused: The reasons why it must not be deployed; empty if it may be.
        rests_on: The evidence for each file, if nothing is refused: "rebuilt" if it equals, byte for byte, the one
            that `tff-mf export` makes here from the other files; "checked against run.json" if it agrees with that;
            "digest, and computed again to within 1e-6" for a public model whose last bits depend on the machine;
            "digest only" if only the bundle's digest shows that it was not replaced.
        rounds: Rounds that were run, in TensorFlow and in TFF; 0 if no graph was run.
        digest: The digest of the checked copy, even if the folder has changed since; None if it is refused.
        headline: The headline of its planned report; an empty text if it is refused.
    """

    refused: list[Refusal]
    rests_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rounds: int = 0
    digest: str | None = None
    headline: str = ""


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
