"""All pictures: their style, how they are saved (equal pictures give equal bytes), and the picture of a mechanism.

The colors are Okabe and Ito's, which people with any color vision can distinguish; curves also differ in markers
and dashes, for printers without colors. Widths suit a paper: one column, or the page.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib import figure, ticker

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .output import files

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

    def faint(self) -> dict[str, Any]:
        """Returns the arguments of `Axes.plot` for what stands behind other lines."""
        return {"color": self.color, "linewidth": 0.4, "alpha": 0.4}

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


def shown(value: float) -> str:
    """Returns the label of a tick.

    Example:
        >>> shown(2000.0), shown(0.3), shown(1e-08)
        ('2,000', '0.3', '1e-08')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:g}"


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


# Enough to see the structure.
_MOST_ROUNDS_DRAWN = 4096
# More than the dots of a panel. The colors of all entries would take half a gigabyte per matrix.
_MOST_CELLS = 1024
# Relative to the largest entry: smaller entries are rounding errors, or zero.
_SMALLEST_DRAWN = 1e-12
_POSITIVE, _NEGATIVE = styles(["blt", "banded"]).values()


def draw_mechanism(
    drawn: tff_mf.Mechanism,
    rounds: int,
    participation: tff_mf.Participation,
    workload: tff_mf.Workload,
    path: str | os.PathLike,
) -> None:
    """Draws C, C⁻¹ and B = A·C⁻¹ as images, the first columns of C and C⁻¹, and the error of each round.

    Ticks are at multiples of the b of the participation, and the ending of the path is the format.
    """
    check_rounds(rounds)
    inverse = drawn.inverse(rounds)
    matrices = {"C": drawn.encoder(rounds), "C⁻¹": inverse, "B = A·C⁻¹": workload.applied_to(inverse)}
    ticks = multiples(participation.min_sep, rounds) if participation.max_participations > 1 else {}
    with picture(path, size=(PAGE, 4.4), rows=2, columns=3) as (whole, panels):
        for axes, (name, matrix) in zip(panels[0], matrices.items(), strict=True):
            _image(whole, axes, name, matrix, ticks)
        for axes, name in zip(panels[1], ("C", "C⁻¹"), strict=False):
            _column(axes, name, matrices[name][:, 0], participation.min_sep if ticks else None)
        errors = np.linalg.norm(matrices["B = A·C⁻¹"], axis=1)
        axes = panels[1, 2]
        axes.plot(errors, color=_POSITIVE.color)
        axes.set(title="error of each round, σ = ζ = 1", xlabel="round t", ylabel="‖row t of B‖", ylim=(0, None))
        if ticks:
            ticks_at(axes.xaxis, ticks)
        whole.suptitle(f"{_name(drawn)}: {setting(rounds, participation)}")


def check_rounds(rounds: int) -> None:
    """Refuses more rounds than a picture can show."""
    if rounds > _MOST_ROUNDS_DRAWN:
        raise InputValueError(f"rounds={rounds} are too many to draw: --plot takes at most {_MOST_ROUNDS_DRAWN}.")


def _image(whole: Any, axes: Any, name: str, matrix: np.ndarray, ticks: Mapping[float, str]) -> None:
    # The diagonal would make the rest invisible, so the scale ignores the largest hundredth of the entries.
    limit = np.quantile(np.abs(matrix[np.tri(len(matrix), dtype=bool)]), 0.99) or 1.0
    edges = (-0.5, len(matrix) - 0.5, len(matrix) - 0.5, -0.5)
    image = axes.imshow(
        _cells(matrix), extent=edges, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="antialiased"
    )
    # The picture marks values beyond the scale.
    whole.colorbar(image, ax=axes, shrink=0.85, extend="both" if np.abs(matrix).max() > limit else "neither")
    axes.set(title=name, xlabel="column", ylabel="round t")
    axes.grid(visible=False)
    if ticks:
        ticks_at(axes.xaxis, ticks)
        ticks_at(axes.yaxis, {at: f"{at:,}" for at in ticks})


def _cells(matrix: np.ndarray) -> np.ndarray:
    """Returns a small matrix as it is, and of a large one the means over square blocks, for fast drawing."""
    size = len(matrix)
    starts = np.arange(0, size, -(-size // _MOST_CELLS))
    counts = np.diff(starts, append=size)
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    return sums / np.outer(counts, counts)


def _column(axes: Any, name: str, column: np.ndarray, min_sep: int | None) -> None:
    """Draws magnitudes on logarithmic scales, with the diagonal at 0."""
    lags = np.arange(len(column))
    for sign, style, label in ((1, _POSITIVE, "positive"), (-1, _NEGATIVE, "negative")):
        chosen = sign * column > 0
        if chosen[1:].any():
            values = np.where(chosen, np.abs(column), np.nan)
            axes.plot(lags, values, color=style.color, linestyle=style.dashes, label=label)
            # A line needs neighboring entries, which columns of a tree do not always have.
            alone = chosen & ~np.append(chosen[1:], False) & ~np.insert(chosen[:-1], 0, False)
            dots = {"color": style.color, "linestyle": "", "marker": ".", "clip_on": False}
            # Without points, an unclipped line has no bounds, and the layout of the figure collapses.
            if alone[1:].any():
                axes.plot(lags[1:][alone[1:]], np.abs(column[1:][alone[1:]]), **dots)
    axes.plot(lags[:1], np.abs(column[:1]), **{**_POSITIVE.line(), "linestyle": ""}, label="diagonal", clip_on=False)
    if not column[1:].any():
        axes.text(0.5, 0.7, "all others are 0", transform=axes.transAxes, ha="center")
    axes.set(title=f"first column of {name}, magnitude", xlabel="rounds after the diagonal", yscale="log")
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_xlim(-0.15, max(1, len(column)))
    axes.set_ylim(bottom=max(axes.get_ylim()[0], _SMALLEST_DRAWN * np.abs(column).max()))
    ticks_at(axes.xaxis, _logarithmic(min_sep, len(column)))
    plain_ticks(axes.yaxis)
    axes.legend()


def _logarithmic(min_sep: int | None, rounds: int) -> dict[float, str]:
    """Returns ticks at 0, at powers of ten below b, and at b and as many of its multiples as fit."""
    end = rounds if min_sep is None else min_sep / 2
    powers = [10**power for power in range(len(str(rounds))) if 10**power < end]
    shown: dict[float, str] = {0: "0"} | {at: f"{at:,}" for at in powers}
    if min_sep is not None:
        times = itertools.takewhile(lambda each: each * min_sep < rounds, (4**power for power in itertools.count()))
        shown |= {each * min_sep: times_b(each) for each in times}
    return shown


def _name(drawn: tff_mf.Mechanism) -> str:
    kind = drawn.kind.replace("_", "-")
    for parameter in ("buffers", "bands", "variant"):
        value = getattr(drawn, parameter, None)
        if value is not None:
            return f"{kind}-{value}" if isinstance(value, str) else f"{kind}, {value} {parameter}"
    return kind
