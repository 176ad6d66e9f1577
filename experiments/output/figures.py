"""Charts, the style of all pictures, and how they are saved: in the format of the file's ending, with equal bytes.

The colors are Okabe and Ito's, which people with any color vision can distinguish; curves also differ in markers
and dashes, for printers without colors. Widths suit a paper: one column, or the page.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import figure, ticker

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from . import files

ENDINGS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.4, 7.0
_DOTS_PER_INCH = 300

SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "figure.titlesize": 8.5,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "figure.constrained_layout.use": True,
    # A name with dollar signs is no formula.
    "text.parse_math": False,
    # Text stays text, and equal pictures give equal files.
    "svg.fonttype": "none",
    "svg.hashsalt": "tff-mf",
    "pdf.fonttype": 42,
}
_NO_DATES: Mapping[str, Mapping[str, Any]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """The look of a curve: one of Okabe and Ito's colors, and Matplotlib's marker and line style."""

    color: str
    marker: str
    dashes: Any

    def line(self) -> dict[str, Any]:
        """Returns the arguments of `Axes.plot`; markers are hollow, so that none hides another."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markerfacecolor": "none",
            "markeredgewidth": 0.9,
        }


# Without yellow, which is too light for a thin line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#777777")
_MOST_MARKS = 12
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", *((0, lengths) for lengths in (
    (5, 1.5), (1, 1), (5, 1.5, 1, 1.5), (8, 2), (3, 1, 1, 1, 1, 1), (2, 1.5), (1, 2.5)
)))  # fmt: skip
# A mechanism looks the same in all pictures.
_MECHANISMS = (
    *("blt", "banded", "banded-toeplitz", "dense"),
    *("tree-full", "tree-online", "identity", "tree-vanilla"),
)
_PLACES = {name: place for place, name in enumerate(_MECHANISMS)}


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Returns a style for each name: its mechanism's if no earlier name has it, otherwise an unused one.

    Example:
        >>> chosen = styles(["identity", "blt, buffers 2", "blt, buffers 4"])
        >>> chosen["blt, buffers 2"].color, len({(each.marker, each.dashes) for each in chosen.values()})
        ('#0072B2', 3)
    """
    names = list(dict.fromkeys(names))
    taken: dict[str, int] = {}
    for name in names:
        place = _PLACES.get(name.split(",")[0])
        if place is not None and place not in taken.values():
            taken[name] = place
    free = (place for place in itertools.count() if place not in taken.values())
    for name in names:
        if name not in taken:
            taken[name] = next(free)
    found = {}
    for name in names:
        # From the ninth on, markers and dashes are paired differently.
        turn, index = divmod(taken[name], len(COLORS))
        dashes = _DASHES[(index + turn) % len(_DASHES)]
        found[name] = Style(color=COLORS[index], marker=_MARKERS[index], dashes=dashes)
    return found


def setting(rounds: int, participation: tff_mf.Participation) -> str:
    """Returns n, b and k as titles of pictures show them.

    Example:
        >>> setting(2052, tff_mf.MinSep(min_sep=342, max_participations=6))
        'n = 2,052, b = 342, k = 6'
    """
    if participation.max_participations == 1:
        return f"n = {rounds:,}, k = 1"
    return f"n = {rounds:,}, b = {participation.min_sep:,}, k = {participation.max_participations:,}"


def multiples(min_sep: int, rounds: int, *, most: int = 6) -> dict[float, str]:
    """Returns ticks at 0, b and multiples of b up to n, few enough that their labels do not overlap.

    Example:
        >>> multiples(342, 1026)
        {0: '0', 342: 'b', 684: '2b', 1026: '3b'}
        >>> list(multiples(10, 300).values())
        ['0', '5b', '10b', '15b', '20b', '25b', '30b']
        >>> list(multiples(400, 4000).values())
        ['0', 'b', '3b', '5b', '7b', '9b']
    """
    step = -(-rounds // (min_sep * most))
    # Starts at b, unless that would overlap 0.
    times = [0, *range(1 if step <= 3 else step, rounds // min_sep + 1, step)]
    return {each * min_sep: times_b(each) for each in times}


def round_ticks(min_sep: int, rounds: int) -> dict[float, str] | None:
    """Returns ticks at multiples of b, with numbers; `None` if fewer than two multiples fit."""
    at = list(multiples(min_sep, rounds, most=5))
    return {each: f"{each:,}" for each in at} if len(at) > 2 else None


def times_b(times: int) -> str:
    """Returns the label of a multiple of b.

    Example:
        >>> times_b(1), times_b(3)
        ('b', '3b')
    """
    return {0: "0", 1: "b"}.get(times, f"{times}b")


def plain_ticks(axis: Any) -> None:
    """Labels a logarithmic axis in plain digits, as densely as its range allows."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low) if 0 < low < high else 0.0
    if decades > 2:
        axis.set_major_locator(ticker.LogLocator(numticks=6))
    elif decades > 0.7:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    else:
        axis.set_major_locator(ticker.MaxNLocator(5))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: shown(value)))
    axis.set_minor_locator(ticker.NullLocator())


def ticks_at(axis: Any, labels: Mapping[float, str]) -> None:
    """Puts ticks at the keys of `labels` and nowhere else."""
    axis.set_major_locator(ticker.FixedLocator(list(labels)))
    axis.set_major_formatter(ticker.FixedFormatter(list(labels.values())))
    axis.set_minor_locator(ticker.NullLocator())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: What is on it, with its unit.
        log: Whether it is logarithmic.
        from_zero: Whether it begins at 0.
        whole: Whether it has whole numbers only.
        ticks: Ticks at these values alone, with their labels; `None` for round values.
    """

    label: str
    log: bool = False
    from_zero: bool = False
    whole: bool = False
    ticks: Mapping[float, str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Values to draw.

    Attributes:
        name: Its name in the legend, by which its style is chosen.
        points: Places and values; where a value is `None` or not finite, the curve is interrupted.
        drawn: "line"; "steps", where between two points the larger value holds; "dots"; or "bars".
        intervals: How far the interval of each point extends below and above it; empty if there is none.
        faint: Whether it stands behind the others, without a marker or an entry of the legend.
        aside: A factor of the places, so that intervals do not overlap.
        look: Arguments of `Axes.plot` in place of its style.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    drawn: str = "line"
    intervals: Sequence[tuple[float, float]] = ()
    faint: bool = False
    aside: float = 1.0
    look: Mapping[str, Any] | None = None

    @property
    def known(self) -> bool:
        """Whether one of the points has a value."""
        return any(y is not None and math.isfinite(y) for _, y in self.points)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """What a panel of a picture, or a figure of a page, shows.

    Attributes:
        name: Its name, which is part of the ids in a page.
        title: What it shows.
        note: What to know about it, in a page.
        x: The horizontal axis.
        y: The vertical axis.
        curves: What is drawn.
        value: Writes a value in the table of a page: an ε is rounded up.
        names: Names whose styles are chosen first, so that a name looks the same in several charts.
    """

    name: str
    title: str
    note: str = ""
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    value: Callable[[float], str] = lambda value: shown(value)
    names: Sequence[str] = ()

    @property
    def looks(self) -> dict[str, Style]:
        """The style of each name."""
        return styles([*self.names, *(curve.name for curve in self.curves)])

    @property
    def named(self) -> list[Curve]:
        """The curves of the legend."""
        return [curve for curve in self.curves if not curve.faint]


def shown(value: float) -> str:
    """Returns the label of a tick.

    Example:
        >>> shown(2000.0), shown(0.3), shown(1e-08)
        ('2,000', '0.3', '1e-08')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:g}"


def draw(axes: Any, chart: Chart) -> None:
    """Draws curves and axes of a chart; markers of coinciding curves are at different points."""
    looks = chart.looks
    for curve in chart.curves:
        if curve.faint and curve.known:
            faint = {"color": looks[curve.name].color, "linewidth": 0.4, "alpha": 0.4, **(curve.look or {})}
            axes.plot(*_places(curve), **faint)
    for index, curve in enumerate(chart.named):
        look = looks[curve.name].line() if curve.look is None else dict(curve.look)
        if not curve.known:
            continue
        x, y = _places(curve)
        if curve.drawn == "bars":
            axes.bar(x, y, 0.7, color=look["color"], label=curve.name)
        elif curve.drawn == "dots":
            axes.plot(x, y, label=curve.name, clip_on=False, **{**look, "linestyle": ""})
        elif curve.drawn == "steps":
            axes.plot(*safe_steps(x, y), label=curve.name, clip_on=False, **{**look, "marker": ""})
        elif curve.intervals:
            spans = np.transpose(curve.intervals)
            axes.errorbar(x, y, yerr=spans, capsize=2, elinewidth=0.7, label=curve.name, **look)
        else:
            # A marker on an axis is whole.
            every = _marked(index, len(x), len(chart.named))
            axes.plot(x, y, label=curve.name, markevery=every, clip_on=False, **look)
    for axis, given in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
        _set_axis(axis, given)


def safe_steps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corners of a line that has the larger of two values everywhere between them.

    Example:
        >>> safe_steps(np.array([1.0, 3.0]), np.array([2.0, 5.0]))
        (array([1., 1., 3., 3.]), array([2., 5., 5., 5.]))
    """
    # Beside a gap, the maximum is no number, so that it stays one.
    larger = np.maximum(y[:-1], y[1:])
    heights = np.column_stack([y[:-1], larger, larger]).ravel()
    places = np.column_stack([x[:-1], x[:-1], x[1:]]).ravel()
    return np.append(places, x[-1:]), np.append(heights, y[-1:])


def legend_below(drawn: figure.Figure, panels: Iterable[Any], columns: int) -> None:
    """Puts one legend of all panels below them."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    drawn.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


@contextlib.contextmanager
def picture(
    path: str | os.PathLike, *, size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[figure.Figure, Any]]:
    """Yields a figure of `size` inches and its panels `[rows, columns]`, and writes it when the block ends.

    The file is written atomically, in the format of the path's ending, and equal figures give equal bytes. Matplotlib's
    global settings do not change. `options` are those of `Figure.subplots`.
    """
    path = checked_path(path)
    ending = path.suffix.lower()
    with matplotlib.rc_context(SETTINGS):
        drawn = figure.Figure(figsize=size)
        yield drawn, drawn.subplots(rows, columns, squeeze=False, **options)
        with files.writing(path, "plot"):
            with files.atomic_file(path) as file:
                drawn.savefig(file, dpi=_DOTS_PER_INCH, format=ending[1:], metadata=_NO_DATES[ending])
            files.sync_folder(path.parent)


def checked_path(path: str | os.PathLike, option: str = "plot") -> pathlib.Path:
    """Returns the path of a picture; refuses a format that is not known, and what cannot be written.

    Example:
        >>> checked_path("losses.jpg")
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: plot='losses.jpg' must end in .png, .svg or .pdf.
    """
    validation.instance(option, path, (str, os.PathLike), "pass the path of a picture")
    path = pathlib.Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputValueError(f"{option}={str(path)!r} must end in .png, .svg or .pdf.")
    files.check_file(path, option)
    return path


def _places(curve: Curve) -> np.ndarray:
    """Returns places and values, with no number where there is no value."""
    found = np.array([(x * curve.aside, math.nan if y is None else y) for x, y in curve.points], dtype=float).T
    return np.where(np.isfinite(found), found, math.nan)


def _marked(index: int, points: int, count: int) -> tuple[int, int]:
    every = max(1, min(count, points), -(-points // _MOST_MARKS))
    return index % count * every // count, every


def _set_axis(axis: Any, given: Axis) -> None:
    axis.set_label_text(given.label)
    if given.log:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if given.from_zero:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, None)})
    if given.ticks is not None:
        ticks_at(axis, given.ticks)
    elif given.log:
        plain_ticks(axis)
    else:
        axis.get_major_locator().set_params(integer=given.whole)
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: shown(value)))
