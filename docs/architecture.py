"""Draws docs/architecture.svg: layers, their packages, and who imports whom, read from the code.

Run `python docs/architecture.py` in the root of a checkout. A test compares the picture with the code.
"""

import ast
import itertools
import pathlib
import statistics
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
# From the top; a layer imports only those below it.
LAYERS = {"experiments": "tff_mf.experiments", "aggregators": "tff_mf.aggregators", "tff_mf": "tff_mf"}
_TITLES = {
    "experiments": "tff_mf.experiments — TensorFlow Federated, the command line",
    "aggregators": "tff_mf.aggregators — TensorFlow Federated",
    "tff_mf": "tff_mf — NumPy and SciPy; TensorFlow in noise.tensorflow, queries and frameworks.keras only",
}
_WIDTH, _BOX, _ROW, _MARGIN, _TITLE, _GAP = 1180, 30, 72, 16, 34, 26
_LETTER, _PASSING = 7.4, 10

Graph = dict[str, set[str]]


def graph(layer: str) -> Graph:
    """Returns which packages and modules of a layer import which others of it; private modules are left out."""
    files = {_unit(file, layer): [] for file in sorted((ROOT / layer).rglob("*.py")) if _unit(file, layer)}
    for file in sorted((ROOT / layer).rglob("*.py")):
        if _unit(file, layer):
            files[_unit(file, layer)].append(file)
    found: Graph = {}
    for unit, members in files.items():
        names = {name for member in members for name in _imported(member, layer)}
        inner = {name.removeprefix(f"{LAYERS[layer]}.").split(".")[0] for name in names if _is_within(name, layer)}
        found[unit] = (inner & files.keys()) - {unit}
    return found


def levels(found: Graph) -> list[list[str]]:
    """Returns the units from the top: each one above all that it imports.

    Raises:
        ValueError: If units import each other in a circle.
    """
    height: dict[str, int] = {}

    def above(unit: str, path: tuple[str, ...] = ()) -> int:
        if unit in path:
            raise ValueError(f"a circle of imports: {' → '.join((*path, unit))}")
        if unit not in height:
            height[unit] = 1 + max((above(other, (*path, unit)) for other in sorted(found[unit])), default=-1)
        return height[unit]

    rows: dict[int, list[str]] = {}
    for unit in sorted(found):
        rows.setdefault(above(unit), []).append(unit)
    return [rows[level] for level in sorted(rows, reverse=True)]


def arrows(found: Graph) -> list[tuple[str, str]]:
    """Returns the imports that do not follow from others: A → C is left out where A → B → C is there."""
    reached: Graph = {}
    for row in reversed(levels(found)):
        for unit in row:
            reached[unit] = found[unit].union(*(reached[other] for other in found[unit]))
    return [
        (unit, other)
        for unit in sorted(found)
        for other in sorted(found[unit])
        if not any(other in reached[between] for between in found[unit])
    ]


def drawn() -> str:
    """Returns the picture."""
    parts, top = [], _MARGIN
    for layer in LAYERS:
        if parts:
            parts.append(f'<path d="M{_WIDTH // 2},{top - _GAP}V{top}" class="arrow" marker-end="url(#head)"/>')
        found = graph(layer)
        rows, paths = _rows_and_paths(found)
        height = _TITLE + _ROW * (len(rows) - 1) + _BOX + _MARGIN
        parts.append(f'<rect x="4" y="{top}" width="{_WIDTH - 8}" height="{height}" class="layer"/>')
        parts.append(f'<text x="16" y="{top + 21}" class="title">{_TITLES[layer]}</text>')
        places = _places(_ordered(rows, paths), top + _TITLE)
        parts.extend(_line([places[name] for name in path]) for path in paths)
        parts.extend(_box(unit, places[unit]) for unit in places if unit in found)
        top += height + _GAP
    top += _MARGIN - _GAP
    style = (
        ".layer{fill:#f6f8fa;stroke:#d0d7de}.box{fill:#fff;stroke:#57606a}.arrow{stroke:#8c959f;fill:none}"
        "text{font:13px sans-serif;fill:#24292f;text-anchor:middle}.title{font-weight:bold;text-anchor:start}"
    )
    head = '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">',
            f'<style>{style}</style><defs>{head}<path d="M0,0L8,4L0,8z" fill="#8c959f"/></marker></defs>',
            '<rect width="100%" height="100%" fill="#fff"/>',
            *parts,
            "</svg>\n",
        )
    )


def _unit(file: pathlib.Path, layer: str) -> str:
    first = file.relative_to(ROOT / layer).parts[0]
    return "" if first.startswith("_") and first.endswith(".py") else first.removesuffix(".py")


def _imported(file: pathlib.Path, layer: str) -> Iterator[str]:
    package = [*LAYERS[layer].split("."), *file.relative_to(ROOT / layer).parent.parts]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _is_within(name: str, layer: str) -> bool:
    deeper = [LAYERS[other] for other in LAYERS if other != "tff_mf"] if layer == "tff_mf" else []
    inside = name.startswith(f"{LAYERS[layer]}.")
    return inside and not any(name == other or name.startswith(f"{other}.") for other in deeper)


def _rows_and_paths(found: Graph) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the rows of the picture, and the names on the path of each arrow: one of its own in each row between."""
    rows = [list(row) for row in levels(found)]
    at = {unit: index for index, row in enumerate(rows) for unit in row}
    paths = []
    for unit, other in arrows(found):
        between = {index: f"{unit} {other} {index}" for index in range(at[unit] + 1, at[other])}
        for index, name in between.items():
            rows[index].append(name)
        paths.append([unit, *between.values(), other])
    return rows, paths


def _ordered(rows: Sequence[Sequence[str]], paths: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the rows with each name below those from which an arrow leads to it."""
    above: dict[str, list[str]] = {}
    for path in paths:
        for upper, lower in itertools.pairwise(path):
            above.setdefault(lower, []).append(upper)
    at: dict[str, float] = {}
    ordered = []
    for row in rows:
        mean = {name: statistics.fmean([at[upper] for upper in above.get(name, [])] or [0.5]) for name in row}
        names = sorted(row, key=lambda name: (mean[name], name))
        at |= {name: (index + 0.5) / len(names) for index, name in enumerate(names)}
        ordered.append(names)
    return ordered


def _places(rows: Sequence[Sequence[str]], top: int) -> dict[str, tuple[float, float, float]]:
    """Returns the center, the upper edge and the width of each box, and of the space for each passing arrow."""
    places = {}
    for index, row in enumerate(rows):
        widths = [_PASSING if " " in name else _LETTER * len(name) + 18 for name in row]
        gap = (_WIDTH - 40 - sum(widths)) / (len(row) + 1)
        left = 20 + gap
        for name, width in zip(row, widths, strict=True):
            places[name] = (left + width / 2, top + _ROW * index, width)
            left += width + gap
    return places


def _line(places: Sequence[tuple[float, float, float]]) -> str:
    path = f"M{places[0][0]:.0f},{places[0][1] + _BOX:.0f}"
    for upper, lower in itertools.pairwise(places):
        start, end = upper[1] + _BOX, lower[1]
        middle = (start + end) / 2
        path += f"C{upper[0]:.0f},{middle:.0f} {lower[0]:.0f},{middle:.0f} {lower[0]:.0f},{end:.0f}"
        path += "" if lower is places[-1] else f"V{end + _BOX:.0f}"
    return f'<path d="{path}" class="arrow" marker-end="url(#head)"/>'


def _box(unit: str, place: tuple[float, float, float]) -> str:
    x, y, width = place
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX}" rx="5" class="box"/>'
        f'<text x="{x:.0f}" y="{y + 20:.0f}">{unit.lstrip("_")}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
