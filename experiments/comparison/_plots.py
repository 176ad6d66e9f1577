"""Pictures of a comparison."""

import itertools
import pathlib
import statistics
from collections.abc import Sequence

import matplotlib
import numpy as np

from .. import rates, statements
from ._results import Level, fitted, mean_and_half_width

matplotlib.use("Agg")
from matplotlib import pyplot

_AXES = {"epsilon": "ε", "noise_multiplier": "σ"}
_ASIDE = 1.02


def draw(found: Sequence[Level], folder: pathlib.Path, *, clip_norm: float) -> list[pathlib.Path]:
    """Writes all pictures to `folder` and returns their paths.

    Args:
        found: Mechanisms at their levels of privacy.
        folder: An existing folder.
        clip_norm: ζ of the runs, which the paper's line is scaled by.
    """
    paths = [folder / name for name in ("accuracy-over-rounds.png", "accuracy-over-privacy.png", "rates.png")]
    _over_rounds(found, paths[0])
    _over_privacy(found, paths[1])
    _rates(found, paths[2], clip_norm)
    return paths


def _over_rounds(found: Sequence[Level], path: pathlib.Path) -> None:
    groups = [list(group) for _, group in itertools.groupby(found, key=lambda level: level.privacy)]
    figure, panels = pyplot.subplots(
        1, len(groups), figsize=(6 * len(groups), 4.5), sharey=True, squeeze=False, layout="constrained"
    )
    colours = {label: f"C{index}" for index, label in enumerate(dict.fromkeys(level.label for level in found))}
    for axes, group in zip(panels[0], groups, strict=True):
        for level in group:
            by_round: dict[int, list[float]] = {}
            for run in level.best:
                for round_number, accuracy in run.history:
                    by_round.setdefault(round_number, []).append(100 * accuracy)
                axes.plot(
                    [round_number for round_number, _ in run.history],
                    [100 * accuracy for _, accuracy in run.history],
                    linewidth=0.6,
                    alpha=0.4,
                    color=colours[level.label],
                )
            numbers = sorted(by_round)
            means = [statistics.fmean(by_round[number]) for number in numbers]
            axes.plot(numbers, means, marker="o", markersize=3, color=colours[level.label], label=level.label)
        name, value = group[0].privacy
        axes.set(xlabel="round", title=f"noise for {statements.level(name, value)}; each seed, and their mean")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    panels[0][0].set(ylabel="accuracy, known words (%)", ylim=(0, None))
    _save(figure, path)


def _over_privacy(found: Sequence[Level], path: pathlib.Path) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    labels = list(dict.fromkeys(level.label for level in found))
    for index, label in enumerate(labels):
        own = sorted((level for level in found if level.label == label), key=lambda level: level.privacy)
        drawn = [mean_and_half_width([100 * value for value in level.accuracies.values()]) for level in own]
        # Beside each other, so that intervals can be told apart.
        aside = _ASIDE ** (index - (len(labels) - 1) / 2)
        axes.errorbar(
            [level.privacy[1] * aside for level in own],
            [mean for mean, _ in drawn],
            yerr=[half or 0.0 for _, half in drawn],
            marker="o",
            markersize=4,
            capsize=3,
            label=label,
        )
    axes.set(xlabel=_AXES[found[0].privacy[0]], ylabel="accuracy, known words (%), 95 % interval over seeds")
    levels = sorted({level.privacy[1] for level in found})
    if levels[0] > 0:
        axes.set_xscale("log")
    axes.set_xticks(levels, [f"{value:g}" for value in levels])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def _rates(found: Sequence[Level], path: pathlib.Path, clip_norm: float) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for label in dict.fromkeys(level.label for level in found):
        own = [level for level in found if level.label == label]
        (best,) = axes.plot(
            [level.effective_rmse for level in own], [level.rate for level in own], "o", markersize=9, label=label
        )
        tried = [(level.effective_rmse, rate) for level in own for rate in level.tried]
        axes.plot(*zip(*tried, strict=True), ".", color=best.get_color(), markersize=4)
    noisy = [level.effective_rmse for level in found if level.effective_rmse > 0]
    if noisy:
        span = np.geomspace(min(noisy) / 1.3, max(noisy) * 1.3, 50)
        axes.plot(span, [rates.PAPER.rate(x) / clip_norm for x in span], "--", color="grey", label="paper's regression")
        own_line = fitted(found)
        if own_line is not None:
            axes.plot(span, [own_line.rate(x) for x in span], color="black", linewidth=1, label="regression of these")
    axes.set(
        xlabel="effective RMSE of prefix sums", ylabel="server's learning rate", xscale="log", yscale="log",
        title=f"Best rates (large) among those tried, {statistics.fmean(len(level.best) for level in found):.3g} seeds",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def _save(figure: pyplot.Figure, path: pathlib.Path) -> None:
    try:
        partial = path.with_name(f".{path.name}.partial")
        figure.savefig(partial, dpi=130, format="png")
        partial.replace(path)
    finally:
        pyplot.close(figure)
