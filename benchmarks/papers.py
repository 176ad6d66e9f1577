"""Recomputes printed figures of the papers that need no training: `python benchmarks/papers.py [--csv] [NAME ...]`.

Without names, all checks that take seconds. docs/papers.md says which table or figure each belongs to. `--csv` prints
rows of docs/results/papers.csv.
"""

import csv
import sys
from collections.abc import Callable, Iterator

import _papers_banded
import _papers_blt
import _papers_kairouz

LONG = (
    "banded-table-2",
    "banded-table-3",
    "banded-table-5",
    "blt-figure-3",
    "blt-figure-10",
    "blt-table-1-banded",
    "blt-table-4",
    "denisov-table-2-efficient",
    "denisov-table-2-large",
)
CHECKS: dict[str, Callable[[], Iterator[tuple[str, str, float]]]] = {
    name.replace("_", "-"): check
    for module in (_papers_kairouz, _papers_banded, _papers_blt)
    for name, check in vars(module).items()
    if name.startswith(("kairouz_", "denisov_", "banded_", "blt_"))
}


def agrees(printed: str, ours: float) -> bool:
    """Returns whether a figure is the printed one, rounded to the nearest or up."""
    mantissa, _, exponent = printed.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return -1.001 * unit < ours - float(printed) <= 0.501 * unit


def rows(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields the figures of a check: which one, as printed, ours, and how far apart they are, or nothing."""
    for figure, printed, ours in CHECKS[name]():
        yield figure, printed, f"{ours:.7g}", "" if not printed or agrees(printed, ours) else _apart(printed, ours)


def main(arguments: list[str]) -> int:
    as_csv = arguments[:1] == ["--csv"]
    names = arguments[as_csv:]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    count = same = 0
    for name in names or [each for each in CHECKS if each not in LONG]:
        if not as_csv:
            print(f"\n{name}")
        for row in rows(name):
            count, same = count + bool(row[1]), same + bool(row[1] and not row[3])
            if as_csv:
                csv.writer(sys.stdout, lineterminator="\n").writerow((name, *row))
            else:
                print("  {:40} {:>10} {:>12} {}".format(*row), flush=True)
    if not as_csv:
        print(f"\n{same} of {count} figures agree in all printed digits, rounded to the nearest or up.")
    return 0


def _apart(printed: str, ours: float) -> str:
    return f"{100 * (ours / float(printed) - 1):+.2g} %".replace("-", "−")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
