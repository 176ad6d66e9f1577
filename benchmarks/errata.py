"""Prints the tables of docs/papers.md, computed with NumPy alone: `python benchmarks/errata.py [--json] [NAME ...]`.

Long tables are in docs/results/errata.json instead, which has what `--json` prints.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator

import _errata_blt
import _errata_kairouz
import _errata_others

CHECKS: dict[str, Callable[[], Iterator[tuple]]] = {
    name.replace("_", "-"): check
    for module in (_errata_kairouz, _errata_blt, _errata_others)
    for name, check in vars(module).items()
    if name.startswith(("kairouz_", "blt_", "denisov_", "banded_"))
}


@functools.cache
def rows(name: str) -> list[tuple]:
    """Returns the rows of a check, its header first."""
    return list(CHECKS[name]())


def table(name: str) -> str:
    """Returns the table of a check in Markdown."""
    cells = [[str(cell) for cell in row] for row in rows(name)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def main(arguments: list[str]) -> int:
    as_json = arguments[:1] == ["--json"]
    names = arguments[as_json:]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    if as_json:
        lines = {
            name: ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows(name)) for name in names or CHECKS
        }
        print("{\n" + ",\n".join(f'"{name}": [\n{text}\n]' for name, text in lines.items()) + "\n}")
        return 0
    for name in names or CHECKS:
        print(f"{name}\n\n{table(name)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
