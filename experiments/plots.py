"""All pictures: their style, how they are saved (equal pictures give equal bytes), and those of `show` and `plan`.

The colors are Okabe and Ito's, which people with any color vision can distinguish; curves also differ in markers
and dashes, for printers without colors. Widths suit a paper: one column, or the page.
"""

import contextlib
import itertools
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
from tff_mf.planning import MechanismSetting

from .output import files

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
    # Hollow, so that no marker hides another.
    "lines.markerfacecolor": "none",
    "lines.markeredgewidth": 0.9,
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
# What says when a picture was drawn, by the ending of its file.
_DATES: Mapping[str, Mapping[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
# Without yellow, which is too light for a thin line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#777777")
_MARKERS = ("o", "s", "^", "v", "D", "P", "X")
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)))


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns color, marker and line of each name, as arguments of `Axes.plot`; no two of 280 names look the same.

    Example:
        >>> chosen = styles(["blt, buffers 2", "blt, buffers 4"])
        >>> [look["color"] for look in chosen.values()]
        ['#0072B2', '#D55E00']
    """
    looks = zip(itertools.cycle(COLORS), itertools.cycle(_MARKERS), itertools.cycle(_DASHES), strict=False)
    keys = ("color", "marker", "linestyle")
    return {name: dict(zip(keys, look, strict=True)) for name, look in zip(dict.fromkeys(names), looks, strict=False)}


def numbers(rounds: int, participation: tff_mf.Participation) -> str:
    """Returns n, b and k as titles of pictures show them.

    Example:
        >>> numbers(2052, tff_mf.MinSep(min_sep=342, max_participations=6))
        'n = 2,052, b = 342, k = 6'
    """
    if participation.max_participations == 1:
        return f"n = {rounds:,}, k = 1"
    return f"n = {rounds:,}, b = {participation.min_sep:,}, k = {participation.max_participations:,}"


def plain_ticks(axis: Any) -> None:
    """Labels a logarithmic axis in plain digits, as densely as its range allows."""
    low, high = axis.get_view_interval()
    if high > 100 * low:
        axis.set_major_locator(ticker.LogLocator(numticks=6))
    elif high > 5 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    else:
        axis.set_major_locator(ticker.MaxNLocator(5))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: shown(value)))
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
    pairs = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    entries = {label: handle for handle, label in pairs}
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
                drawn.savefig(file, dpi=_DOTS_PER_INCH, format=ending[1:], metadata=_DATES[ending])
            files.sync_folder(path.parent)


def checked_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a picture; refuses a format that is not known, and what cannot be written.

    Example:
        >>> checked_path("losses.jpg")
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: plot='losses.jpg' must end in .png, .svg or .pdf.
    """
    validation.instance("plot", path, (str, os.PathLike), "pass the path of a picture")
    path = pathlib.Path(path)
    if path.suffix.lower() not in _DATES:
        raise InputValueError(f"plot={str(path)!r} must end in .png, .svg or .pdf.")
    files.check_file(path, "plot")
    return path


# Enough to see the structure.
_MOST_ROUNDS_DRAWN = 4096
# More than the dots of a panel. The colors of all entries would take half a gigabyte per matrix.
_MOST_CELLS = 1024
# Relative to the largest entry: smaller entries are rounding errors, or zero.
_SMALLEST_DRAWN = 1e-12


def draw_mechanism(drawn: tff_mf.Mechanism, setting: MechanismSetting, path: str | os.PathLike) -> None:
    """Draws C, C⁻¹ and B = A·C⁻¹ as images, the first columns of C and C⁻¹, and the error of each round.

    The ending of the path is the format.
    """
    rounds, workload = setting.rounds, setting.workload or tff_mf.PrefixSum()
    if rounds > _MOST_ROUNDS_DRAWN:
        raise InputValueError(f"rounds={rounds} are too many to draw: --plot takes at most {_MOST_ROUNDS_DRAWN}.")
    inverse = drawn.inverse(rounds)
    matrices = {"C": drawn.encoder(rounds), "C⁻¹": inverse, "B = A·C⁻¹": workload.applied_to(inverse)}
    with picture(path, size=(PAGE, 4.4), rows=2, columns=3) as (whole, panels):
        for axes, (name, matrix) in zip(panels[0], matrices.items(), strict=True):
            _image(whole, axes, name, matrix)
        for axes, name in zip(panels[1], ("C", "C⁻¹"), strict=False):
            _column(axes, name, matrices[name][:, 0])
        axes = panels[1, 2]
        axes.plot(np.linalg.norm(matrices["B = A·C⁻¹"], axis=1), color=COLORS[0])
        axes.set(title="error of each round, σ = ζ = 1", xlabel="round t", ylabel="‖row t of B‖", ylim=(0, None))
        whole.suptitle(f"{drawn.kind.replace('_', '-')}: {numbers(rounds, setting.participation)}")


def draw_comparison(plan: tff_mf.Plan, recommended: str, least: float | None, path: str | os.PathLike) -> None:
    """Draws the RmsLoss of each mechanism that `tff-mf plan` compares over its memory.

    Args:
        plan: The plan, with its options; those that were not searched are left out.
        recommended: The name of one of them.
        least: What no loss is below; `None` if that is not known.
        path: Its ending is the format.
    """
    searched = [option for option in plan.options if option.mechanism is not None]
    looks = styles(option.name for option in searched)
    with picture(path, size=(COLUMN, 3.6)) as (whole, panels):
        memory = panels[0, 0]
        for option in searched:
            look = {**looks[option.name], "linestyle": "none"}
            label = f"{option.name}, recommended" if option.name == recommended else option.name
            memory.plot([option.figures["memory_rows"]], [option.figures["rms_loss"]], **look, label=label)
        if least is not None:
            memory.axhline(least, color=COLORS[-1], linestyle=":", label="no mechanism is below")
        memory.set_xscale("symlog", linthresh=1)
        most = max(option.figures["memory_rows"] for option in searched)
        memory.set(title="loss at equal privacy", xlabel="copies of the model as state", xlim=(-0.2, 1.5 * most + 1))
        memory.set(ylabel="RmsLoss", ylim=(0, None))
        memory.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: shown(value)))
        legend_below(whole, [memory], 2)
        whole.suptitle(numbers(plan.rounds, plan.participation))


def _image(whole: Any, axes: Any, name: str, matrix: np.ndarray) -> None:
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


def _cells(matrix: np.ndarray) -> np.ndarray:
    """Returns a small matrix as it is, and of a large one the means over square blocks, for fast drawing."""
    size = len(matrix)
    starts = np.arange(0, size, -(-size // _MOST_CELLS))
    counts = np.diff(starts, append=size)
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    return sums / np.outer(counts, counts)


def _column(axes: Any, name: str, column: np.ndarray) -> None:
    """Draws magnitudes on logarithmic scales, with the diagonal at 0."""
    smallest = _SMALLEST_DRAWN * np.abs(column).max()
    for sign, color, label in ((1, COLORS[0], "positive"), (-1, COLORS[1], "negative")):
        rows = np.flatnonzero(sign * column > smallest)
        if rows.size:
            # Points, since the entries of one sign need not be neighbors.
            look = {"color": color, "markerfacecolor": color, "markersize": 3, "clip_on": False}
            axes.plot(rows, np.abs(column[rows]), ".", label=label, **look)
    axes.set(title=f"first column of {name}, magnitude", xlabel="rounds after the diagonal", yscale="log")
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_xlim(-0.15, max(1, len(column)))
    plain_ticks(axes.yaxis)
    powers = [10**power for power in range(len(str(len(column))))]
    axes.xaxis.set_major_locator(ticker.FixedLocator([0, *powers]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: shown(value)))
    axes.legend()
