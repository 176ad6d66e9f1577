"""What came of inputs and faults: counted as they come, and told in one table."""

import collections
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterable

# Ended by the fault, and gone on from.
RESUMED = "resumed"
# Results that are never allowed.
LOST, TWICE, CRASHED = "data lost", "released twice", "crashed"

_WRONG = (LOST, TWICE, CRASHED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault.

    Attributes:
        target: What was hit: a command, a file, or a reader.
        fault: What was done to it.
        result: One of the constants above, or another word for what is allowed.
        about: What was seen, for those who look for the reason.
    """

    target: str
    fault: str
    result: str
    about: str = ""

    @property
    def allowed(self) -> bool:
        return self.result not in _WRONG


def told(outcomes: Iterable[Outcome], out: pathlib.Path | None, junit: pathlib.Path | None) -> bool:
    """Prints each outcome that is not allowed, and a Markdown table with a line for each target and fault.

    Args:
        outcomes: As many as there are: they are counted, and not kept.
        out: File for the table.
        junit: File for the numbers, as JUnit's XML.

    Returns:
        Whether all outcomes are allowed.
    """
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    start, wrong = time.monotonic(), 0
    for each in outcomes:
        counts[each.target, each.fault][each.result] += 1
        if not each.allowed:
            wrong += 1
            print(f"{each.result}: {each.fault}, {each.target}: {each.about}", file=sys.stderr, flush=True)
    every = sum(counts.values(), collections.Counter())
    lines = ["| hit | fault | times | " + " | ".join(every) + " |", "|---|---|" + "--:|" * (1 + len(every))]
    for (target, fault), found in [*sorted(counts.items()), (("**all**", ""), every)]:
        lines.append(
            "| " + " | ".join(map(str, (target, fault, found.total(), *(found[each] for each in every)))) + " |"
        )
    table = "\n".join(lines) + "\n"
    print(f"{table}\n{every.total()} outcomes in {time.monotonic() - start:.0f} s, {wrong} of them not allowed")
    xml = f'<testsuites><testsuite tests="{every.total()}" failures="{wrong}"/></testsuites>'
    for path, content in ((out, table), (junit, xml)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return not wrong
