"""What came of a fault, and the table of all of them."""

import collections
import dataclasses
import pathlib
import random
from collections.abc import Iterable

# Survived: found out and said in one line, or without any effect, or ended by the fault and gone on from.
DETECTED, HARMLESS, RESUMED = "detected", "harmless", "resumed"
# Not survived.
LOST, TWICE, SILENT, CRASHED = "data lost", "released twice", "silently changed", "crashed"
SURVIVED = (DETECTED, HARMLESS, RESUMED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault.

    Attributes:
        target: What was hit: a command, or a file.
        fault: What was done to it.
        result: One of the constants above.
        about: What was seen, for those who look for the reason.
    """

    target: str
    fault: str
    result: str
    about: str = ""


def table(outcomes: Iterable[Outcome]) -> str:
    """Returns a Markdown table with a line for each target and fault, and a line of sums."""
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for each in outcomes:
        counts[each.target, each.fault][each.result] += 1
    results = (*SURVIVED, LOST, TWICE, SILENT, CRASHED)
    lines = ["| hit | fault | injected | survived | " + " | ".join(results) + " |"]
    lines.append("|---|---|" + "--:|" * (2 + len(results)))
    for (target, fault), found in sorted(counts.items()):
        lines.append(_line(target, fault, found, results))
    lines.append(_line("**all**", "", sum(counts.values(), collections.Counter()), results))
    return "\n".join(lines) + "\n"


def _line(target: str, fault: str, found: collections.Counter[str], results: tuple[str, ...]) -> str:
    survived = sum(found[name] for name in SURVIVED)
    cells = [target, fault, found.total(), survived, *(found[name] for name in results)]
    return "| " + " | ".join(map(str, cells)) + " |"


def damage(path: pathlib.Path, kind: str, generator: random.Random) -> None:
    """Does to a file what `kind` says."""
    content = bytearray(path.read_bytes())
    if kind == "one bit changed":
        place = generator.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
    elif kind == "truncated":
        del content[generator.randrange(len(content)) :]
    elif kind == "zeros at the end":
        # As a power cut leaves what was never written.
        length = generator.randint(1, len(content))
        content[-length:] = bytes(length)
    elif kind == "removed":
        path.unlink()
        return
    elif kind == "empty":
        content.clear()
    else:
        raise ValueError(kind)
    path.write_bytes(content)


DAMAGES = ("one bit changed", "truncated", "zeros at the end", "removed", "empty")
