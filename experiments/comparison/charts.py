"""What the pictures of a comparison show, in files and in its page."""

import itertools
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import UNSET

from tff_mf.numerics.digits import nearest

from ..output import figures
from ..output.figures import Axis, Chart, Curve
from ..runs.derived import Regression
from ._result import ComparisonResult, LevelResult

_AXES = {"epsilon": ("ε", "ε"), "noise_multiplier": ("σ", "noise multiplier σ")}
_ACCURACY = Axis(label="accuracy, known words (%)", from_zero=True)
_ASIDE = 1.035
_TRIED = {"linestyle": "", "marker": ".", "markersize": 3}
_OF_PAPER = {"color": "#777777", "linestyle": "--"}
_OF_THESE = {"color": "#000000", "linewidth": 0.8}


def charts(result: ComparisonResult) -> list[Chart]:
    """Returns the figures of the page of a comparison: what `draw` writes, without the paper's line."""
    levels = result.levels
    return [*over_rounds(levels), *over_privacy(levels), rates(result)]


def draw(
    result: ComparisonResult, folder: pathlib.Path, *, clip_norm: float, setting: str, min_sep: int | None
) -> list[pathlib.Path]:
    """Writes all pictures to `folder` and returns their paths.

    Args:
        result: The comparison, as `comparison.json` has it; it has a level.
        folder: An existing folder.
        clip_norm: ζ of the runs, by which the paper's line is scaled.
        setting: n, b and k of the runs, for the titles.
        min_sep: b if all runs have the same: the ticks are at its multiples.
    """
    levels = result.levels
    seeds = f"{statistics.fmean(each.seeds for each in levels):.3g} seeds".replace("1 seeds", "1 seed")
    pictures = {
        "accuracy-over-rounds.png": (over_rounds(levels, min_sep), "each seed (thin) and their mean"),
        "accuracy-over-privacy.png": (over_privacy(levels), "mean and 95 % interval over seeds"),
        "rates.png": ([rates(result, clip_norm)], f"dots: other rates tried; {seeds}"),
    }
    for name, (found, title) in pictures.items():
        _write(folder / name, found, f"{setting}; {title}")
    return [folder / name for name in pictures]


def over_rounds(levels: Sequence[LevelResult], min_sep: int | None = None) -> list[Chart]:
    """Returns validation accuracy over rounds at each level of privacy, of each seed and in the mean."""
    last = max((at for each in levels for own in each.accuracy_over_rounds.values() for at, _ in own), default=0)
    ticks = None if min_sep is None else figures.round_ticks(min_sep, last)
    return [
        Chart(
            name=f"accuracy-over-rounds-{index}",
            title=f"Validation accuracy, noise for {privacy}",
            note="Each seed (thin) and their mean.",
            x=Axis(label="round", from_zero=True, whole=True, ticks=ticks),
            y=_ACCURACY,
            curves=[curve for level in group for curve in _seeds_and_mean(level)],
            value=nearest,
            names=_names(levels),
        )
        for index, (privacy, group) in enumerate(itertools.groupby(levels, key=lambda level: level.level))
    ]


def over_privacy(levels: Sequence[LevelResult]) -> list[Chart]:
    """Returns accuracy on test clients over ε and over σ, whichever the runs have, with intervals over seeds."""
    found, names = [], _names(levels)
    for kind, (symbol, label) in _AXES.items():
        own = sorted(
            ((value, each) for each in levels if (value := getattr(each, kind)) is not UNSET),
            key=lambda found: found[0],
        )
        if not own:
            continue
        curves = []
        for index, name in enumerate(names):
            mine = [(value, each) for value, each in own if each.mechanism == name]
            curves.append(
                Curve(
                    name=name,
                    points=[(value, 100 * each.accuracy) for value, each in mine],
                    intervals=[_interval(each.accuracy, each.half_width_95) for _, each in mine],
                    aside=_ASIDE ** (index - (len(names) - 1) / 2),
                )
            )
        found.append(
            Chart(
                name=f"accuracy-over-{kind.replace('_', '-')}",
                title=f"Test accuracy over {symbol}",
                note="Mean and 95 % interval over seeds.",
                x=Axis(label=label, log=own[0][0] > 0, ticks={value: f"{value:g}" for value, _ in own}),
                y=_ACCURACY,
                curves=curves,
                value=nearest,
                names=names,
            )
        )
    return found


def rates(result: ComparisonResult, clip_norm: float | None = None) -> Chart:
    """Returns the best rates over the error, with the other rates tried and the lines through them.

    The paper's line is scaled by the clip norm; without that, it is left out.
    """
    noisy = [each for each in result.levels if each.effective_rmse > 0]
    several = any(len(each.validation_accuracy_by_rate) > 1 for each in result.levels)
    curves = []
    for name in _names(result.levels):
        own = [(each.effective_rmse, each) for each in noisy if each.mechanism == name]
        tried = [(at, float(rate)) for at, each in own for rate in each.validation_accuracy_by_rate]
        curves.append(Curve(name=name, points=tried, faint=True, look=_TRIED))
        curves.append(Curve(name=name, points=[(at, each.server_learning_rate) for at, each in own], drawn="dots"))
    if noisy:
        ends = [each.effective_rmse for each in noisy]
        span = np.geomspace(min(ends) / 1.3, max(ends) * 1.3, 50)
        for name, look, line, scale in (
            ("paper's regression", _OF_PAPER, result.rate_regression_of_the_paper, clip_norm),
            ("regression of these", _OF_THESE, result.rate_regression, 1.0),
        ):
            if line is not None and scale is not None:
                points = [
                    (x, Regression(slope=line.slope, intercept=line.intercept).rate(x) / scale) for x in span.tolist()
                ]
                curves.append(Curve(name=name, points=points, look=look))
    return Chart(
        name="rates",
        title="Best rates over error" if several else "Rates over error",
        note=f"Server's learning rate {'with the best validation accuracy' if several else 'of each mechanism'}.",
        x=Axis(label="effective RMSE of prefix sums", log=True),
        y=Axis(label="server's learning rate", log=True),
        curves=curves,
        value=nearest,
        names=_names(result.levels),
    )


def _write(path: pathlib.Path, found: Sequence[Chart], title: str) -> None:
    size = (figures.COLUMN * max(1.0, 0.92 * len(found)), 3.3)
    with figures.picture(path, size=size, columns=len(found), sharey=True) as (drawn, panels):
        for axes, chart in zip(panels[0], found, strict=True):
            figures.draw(axes, chart)
            axes.set(title=chart.title, ylabel=chart.y.label if axes is panels[0, 0] else "")
        drawn.suptitle(title, fontsize=7.5)
        figures.legend_below(drawn, panels[0], 2 * len(found))


def _names(levels: Sequence[LevelResult]) -> list[str]:
    return list(dict.fromkeys(each.mechanism for each in levels))


def _seeds_and_mean(level: LevelResult) -> list[Curve]:
    name, by_seed = level.mechanism, level.accuracy_over_rounds.values()
    by_round: dict[int, list[float]] = {}
    for number, value in itertools.chain(*by_seed):
        by_round.setdefault(number, []).append(100 * value)
    seeds = [Curve(name=name, points=[(at, 100 * value) for at, value in own], faint=True) for own in by_seed]
    mean = [(number, statistics.fmean(values)) for number, values in sorted(by_round.items())]
    return [*(seeds if len(seeds) > 1 else []), Curve(name=name, points=mean)]


def _interval(mean: float, half: float | None) -> tuple[float, float]:
    """Returns how many points an interval extends below and above its mean, within the range of an accuracy."""
    half = half or 0.0
    return 100 * min(half, max(mean, 0.0)), 100 * min(half, max(1.0 - mean, 0.0))
