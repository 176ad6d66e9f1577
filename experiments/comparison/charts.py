"""What the pictures of a comparison show, in files and in its page."""

import itertools
import pathlib
import statistics
from collections.abc import Sequence

from msgspec import UNSET

from tff_mf.numerics.digits import nearest

from ..output import figures
from ..output.figures import Axis, Chart, Curve
from ._result import ComparisonResult, LevelResult

_AXES = {"epsilon": ("ε", "ε"), "noise_multiplier": ("σ", "noise multiplier σ")}
_ACCURACY = Axis(label="accuracy, known words (%)", from_zero=True)
_ASIDE = 1.035


def draw(result: ComparisonResult, folder: pathlib.Path, *, setting: str, min_sep: int | None) -> list[pathlib.Path]:
    """Writes all pictures to `folder` and returns their paths.

    Args:
        result: The comparison, as `comparison.json` has it; it has a level.
        folder: An existing folder.
        setting: n, b and k of the runs, for the titles.
        min_sep: b if all runs have the same: the ticks are at its multiples.
    """
    levels = result.levels
    pictures = {
        "accuracy-over-rounds.png": (over_rounds(levels, min_sep), "each seed (thin) and their mean"),
        "accuracy-over-privacy.png": (over_privacy(levels), "mean and 95 % interval over seeds"),
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
