"""Pictures of a comparison."""

import itertools
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..configuration import learning_rates
from ..output import figures
from ..privacy import statements
from ._results import Level, fitted, mean_and_half_width

_AXES = {"epsilon": "ε", "noise_multiplier": "noise multiplier σ"}
_ACCURACY = "accuracy, known words (%)"
_ASIDE = 1.035


def draw(
    found: Sequence[Level], folder: pathlib.Path, *, clip_norm: float, setting: str, min_sep: int | None
) -> list[pathlib.Path]:
    """Writes all pictures to `folder` and returns their paths.

    Args:
        found: Mechanisms at their levels of privacy.
        folder: An existing folder.
        clip_norm: ζ of the runs, by which the paper's line is scaled.
        setting: n, b and k of the runs, for the titles.
        min_sep: b if all runs have the same: the ticks are at its multiples.
    """
    paths = [folder / name for name in ("accuracy-over-rounds.png", "accuracy-over-privacy.png", "rates.png")]
    over_rounds(found, paths[0], setting, min_sep)
    over_privacy(found, paths[1], setting)
    best_rates(found, paths[2], setting, clip_norm)
    return paths


def over_rounds(found: Sequence[Level], path: pathlib.Path, setting: str, min_sep: int | None) -> None:
    """Draws validation accuracy over rounds, of each seed and in the mean, with a panel for each level of privacy."""
    groups = [list(group) for _, group in itertools.groupby(found, key=lambda level: level.privacy)]
    styles = figures.styles(level.label for level in found)
    size = (figures.COLUMN * max(1.0, 0.92 * len(groups)), 3.2)
    with figures.picture(path, size=size, columns=len(groups), sharex=True, sharey=True) as (figure, panels):
        for axes, group in zip(panels[0], groups, strict=True):
            for index, level in enumerate(group):
                _seeds_and_mean(axes, level, styles[level.label], index, len(group))
            if min_sep is not None:
                last = max(number for level in group for run in level.best for number, _ in run.history)
                figures.round_ticks(axes.xaxis, min_sep, last)
            axes.set(xlabel="round", title=f"noise for {statements.level(*group[0].privacy)}")
        panels[0, 0].set(ylabel=f"validation {_ACCURACY}", xlim=(0, None), ylim=(0, None))
        figure.suptitle(f"{setting}; each seed (thin) and their mean")
        _legend_below(figure, panels[0], 2 * len(groups))


def over_privacy(found: Sequence[Level], path: pathlib.Path, setting: str) -> None:
    """Draws the mean accuracy over ε or σ, with its 95 % interval over seeds."""
    styles = figures.styles(level.label for level in found)
    with figures.picture(path, size=(figures.COLUMN, 3.2)) as (figure, panels):
        axes = panels[0, 0]
        for index, (label, style) in enumerate(styles.items()):
            own = sorted((level for level in found if level.label == label), key=lambda level: level.privacy)
            drawn = [mean_and_half_width([100 * value for value in level.accuracies.values()]) for level in own]
            # Side by side, so that intervals do not overlap.
            aside = _ASIDE ** (index - (len(styles) - 1) / 2)
            axes.errorbar(
                [level.privacy[1] * aside for level in own],
                [mean for mean, _ in drawn],
                yerr=np.transpose([figures.interval(mean, half) for mean, half in drawn]),
                capsize=2,
                elinewidth=0.7,
                label=label,
                **style.line(),
            )
        axes.set(xlabel=_AXES[found[0].privacy[0]], ylabel=f"test {_ACCURACY},\nmean and 95 % interval over seeds")
        axes.set_ylim(bottom=0)
        levels = sorted({level.privacy[1] for level in found})
        if levels[0] > 0:
            axes.set_xscale("log")
        figures.ticks_at(axes.xaxis, {value: f"{value:g}" for value in levels})
        figure.suptitle(setting)
        _legend_below(figure, panels[0], 2)


def best_rates(found: Sequence[Level], path: pathlib.Path, setting: str, clip_norm: float) -> None:
    """Draws the best rates over the noise, with the regression lines of the paper and of these runs."""
    with figures.picture(path, size=(figures.COLUMN, 3.4)) as (figure, panels):
        axes = panels[0, 0]
        for label, style in figures.styles(level.label for level in found).items():
            own = [level for level in found if level.label == label]
            marked = {**style.line(), "linestyle": ""}
            axes.plot([level.effective_rmse for level in own], [level.rate for level in own], **marked, label=label)
            tried = [(level.effective_rmse, rate) for level in own for rate in level.tried if rate != level.rate]
            axes.plot(*np.reshape(tried, (-1, 2)).T, **{**marked, "marker": "."}, markersize=3)
        _lines(axes, found, clip_norm)
        axes.set(xlabel="effective RMSE of prefix sums", ylabel="server's learning rate", xscale="log", yscale="log")
        figures.plain_ticks(axes.xaxis)
        figures.plain_ticks(axes.yaxis)
        seeds = f"{statistics.fmean(len(level.best) for level in found):.3g}"
        counted = "1 seed" if seeds == "1" else f"{seeds} seeds"
        figure.suptitle(f"{setting}; best rate (dots: others tried), {counted}", fontsize=7.5)
        _legend_below(figure, panels[0], 2)


def _seeds_and_mean(axes: Any, level: Level, style: figures.Style, index: int, count: int) -> None:
    by_round: dict[int, list[float]] = {}
    for run in level.best:
        for round_number, accuracy in run.history:
            by_round.setdefault(round_number, []).append(100 * accuracy)
        rounds, accuracies = zip(*run.history, strict=True)
        axes.plot(rounds, [100 * each for each in accuracies], linewidth=0.4, alpha=0.4, color=style.color)
    numbers = sorted(by_round)
    means = [statistics.fmean(by_round[number]) for number in numbers]
    every = figures.apart(index, len(numbers), min(count, 3))
    # A marker on an axis is whole.
    axes.plot(numbers, means, label=level.label, markevery=every, clip_on=False, **style.line())


def _lines(axes: Any, found: Sequence[Level], clip_norm: float) -> None:
    noisy = [level.effective_rmse for level in found if level.effective_rmse > 0]
    if not noisy:
        return
    span = np.geomspace(min(noisy) / 1.3, max(noisy) * 1.3, 50)
    axes.plot(
        span, [learning_rates.PAPER.rate(x) / clip_norm for x in span], "--", color="grey", label="paper's regression"
    )
    own = fitted(found)
    if own is not None:
        axes.plot(span, [own.rate(x) for x in span], color="black", linewidth=0.8, label="regression of these")


def _legend_below(figure: Any, panels: Sequence[Any], columns: int) -> None:
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
