"""Tables, figures and the picture of `central_digits.py`, from its runs."""

import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from tff_mf.experiments import plots

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "results"
# First those that are expected to be better where ε is small.
PAIRS = (
    ("identity", "banded"),
    ("identity", "blt"),
    ("identity", "tree-full"),
    ("identity", "tree-online"),
    ("banded, sampled", "identity"),
    ("banded, sampled", "banded"),
    ("banded", "blt"),
    ("blt", "tree-full"),
    ("tree-full", "tree-online"),
)

Cell = Mapping[str, Any]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and half the width of the 95 % interval by Student's t."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values)), float(half)


def write(cells: Sequence[Cell], crossings: Sequence[Cell], runs: Sequence[Cell], seconds: float) -> None:
    """Writes `digits.json`, the pictures, and the tables of `docs/results.md`."""
    found = {"cells": cells, "gaps": _gaps(cells), "crossings": crossings, "cpu_seconds": round(seconds)}
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    text = json.dumps(found, indent=1).removesuffix("\n}")
    (FOLDER / "digits.json").write_text(f'{text},\n "runs": [\n{lines}\n ]\n}}\n')
    for ending in ("svg", "png"):
        _draw(cells, crossings[0], FOLDER / f"digits.{ending}")
    page = FOLDER.parent / "results.md"
    text = page.read_text()
    texts = {"table": _table(cells), "crossings": _crossing_table(crossings)}
    for name, table in texts.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        after = rest.split("<!-- end -->\n", 1)[1]
        text = f"{before}<!-- {name} -->\n\n{table}\n\n<!-- end -->\n{after}"
    page.write_text(text)


def _table(cells: Sequence[Cell]) -> str:
    """Returns test accuracies by mechanism and ε; settings of each are in `digits.json`."""
    found = {(cell["mechanism"], cell["epsilon"]): cell for cell in cells}
    mechanisms, epsilons = (list(dict.fromkeys(each)) for each in zip(*found, strict=True))
    lines = [
        "| test accuracy, % | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |",
        "|---|" + "---|" * len(epsilons),
    ]
    for mechanism in mechanisms:
        texts = [_accuracy(found[mechanism, epsilon]) for epsilon in epsilons]
        lines.append(f"| {mechanism} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _accuracy(cell: Cell) -> str:
    mean, half = interval(list(cell["test"].values()))
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def _gaps(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    found = {(cell["mechanism"], cell["epsilon"]): cell["test"] for cell in cells}
    epsilons = dict.fromkeys(cell["epsilon"] for cell in cells)
    gaps = []
    for epsilon, (one, other) in itertools.product(epsilons, PAIRS):
        ours, theirs = found[one, epsilon], found[other, epsilon]
        mean, half = interval([ours[seed] - theirs[seed] for seed in ours])
        gaps.append({"epsilon": epsilon, "first": one, "second": other, "gap": mean, "half_width_95": half})
    return gaps


def _crossing_table(crossings: Sequence[Cell]) -> str:
    names = list(crossings[0]["crossing"])
    lines = ["| batch, epochs | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for each in crossings:
        texts = [f"{found:.1f}" if found else f"above {each['epsilons'][-1]:g}" for found in each["crossing"].values()]
        lines.append(f"| {each['batch_size']}, {each['epochs']} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def crossing(levels: np.ndarray, ratio: np.ndarray) -> float | None:
    """Returns the ε at which a ratio that falls with ε is 1, between two levels by interpolation; `None` if nowhere."""
    logs = -np.log(ratio)
    if logs[0] > 0 or logs[-1] < 0:
        return None
    return float(np.exp(np.interp(0.0, logs, np.log(levels))))


def _draw(cells: Sequence[Cell], setting: Cell, path: pathlib.Path) -> None:
    names = list(dict.fromkeys(cell["mechanism"] for cell in cells))
    styles = plots.styles(names)
    with plots.picture(path, size=(plots.PAGE, 2.6), columns=2) as (_, panels):
        accuracy, error = panels[0]
        for index, name in enumerate(names):
            own = [cell for cell in cells if cell["mechanism"] == name]
            # Beside each other, so that intervals do not hide each other.
            at = [cell["epsilon"] * 1.025 ** (index - len(names) / 2) for cell in own]
            spans = [interval([100 * value for value in cell["test"].values()]) for cell in own]
            label = f"{name} (DP-SGD)" if name == "identity" else name
            means, halves = zip(*spans, strict=True)
            accuracy.errorbar(at, means, halves, label=label, capsize=2, **styles[name])
        accuracy.set_xscale("log")
        plots.plain_ticks(accuracy.xaxis)
        accuracy.set_ylabel("test accuracy, %")
        accuracy.set_ylim(bottom=76)  # Below the curves there is room for the legend.
        accuracy.legend(loc="lower right")
        for name, ratios in setting["errors_relative_to_dp_sgd"].items():
            error.plot(setting["epsilons"], ratios, **styles[name])
        error.axhline(1, **styles["identity"] | {"marker": ""})
        error.set_xscale("log")
        error.set_yscale("log")
        plots.plain_ticks(error.xaxis)
        plots.plain_ticks(error.yaxis)
        error.set_ylabel("error relative to DP-SGD")
        for panel in (accuracy, error):
            panel.set_xlabel("ε at δ = 1e-5, for one example")
