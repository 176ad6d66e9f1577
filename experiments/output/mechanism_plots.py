"""Pictures of a mechanism."""

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

import tff_mf
from tff_mf.base.errors import InputValueError

from . import figures

# Enough to see the structure.
_MOST_ROUNDS_DRAWN = 4096
# More than the dots of a panel. The colors of all entries would take half a gigabyte per matrix.
_MOST_CELLS = 1024
# Relative to the largest entry: smaller entries are rounding errors, or zero.
_SMALLEST_DRAWN = 1e-12
_POSITIVE, _NEGATIVE = figures.styles(["blt", "banded"]).values()


def mechanism(
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
    ticks = figures.multiples(participation.min_sep, rounds) if participation.max_participations > 1 else {}
    with figures.picture(path, size=(figures.PAGE, 4.4), rows=2, columns=3) as (figure, panels):
        for axes, (name, matrix) in zip(panels[0], matrices.items(), strict=True):
            _image(figure, axes, name, matrix, ticks)
        for axes, name in zip(panels[1], ("C", "C⁻¹"), strict=False):
            _column(axes, name, matrices[name][:, 0], participation.min_sep if ticks else None)
        errors = np.linalg.norm(matrices["B = A·C⁻¹"], axis=1)
        axes = panels[1, 2]
        axes.plot(errors, color=_POSITIVE.color)
        axes.set(title="error of each round, σ = ζ = 1", xlabel="round t", ylabel="‖row t of B‖", ylim=(0, None))
        if ticks:
            figures.ticks_at(axes.xaxis, ticks)
        figure.suptitle(f"{_name(drawn)}: {figures.setting(rounds, participation)}")


def check_rounds(rounds: int) -> None:
    """Refuses more rounds than a picture can show."""
    if rounds > _MOST_ROUNDS_DRAWN:
        raise InputValueError(f"rounds={rounds} are too many to draw: --plot takes at most {_MOST_ROUNDS_DRAWN}.")


def _image(figure: Any, axes: Any, name: str, matrix: np.ndarray, ticks: Mapping[float, str]) -> None:
    # The diagonal would make the rest invisible, so the scale ignores the largest hundredth of the entries.
    limit = np.quantile(np.abs(matrix[np.tri(len(matrix), dtype=bool)]), 0.99) or 1.0
    edges = (-0.5, len(matrix) - 0.5, len(matrix) - 0.5, -0.5)
    image = axes.imshow(
        _cells(matrix), extent=edges, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="antialiased"
    )
    # The picture marks values beyond the scale.
    figure.colorbar(image, ax=axes, shrink=0.85, extend="both" if np.abs(matrix).max() > limit else "neither")
    axes.set(title=name, xlabel="column", ylabel="round t")
    axes.grid(visible=False)
    if ticks:
        figures.ticks_at(axes.xaxis, ticks)
        figures.ticks_at(axes.yaxis, {at: f"{at:,}" for at in ticks})


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
    figures.ticks_at(axes.xaxis, _logarithmic(min_sep, len(column)))
    figures.plain_ticks(axes.yaxis)
    axes.legend()


def _logarithmic(min_sep: int | None, rounds: int) -> dict[float, str]:
    """Returns ticks at 0, at powers of ten below b, and at b and as many of its multiples as fit."""
    end = rounds if min_sep is None else min_sep / 2
    powers = [10**power for power in range(len(str(rounds))) if 10**power < end]
    shown: dict[float, str] = {0: "0"} | {at: f"{at:,}" for at in powers}
    if min_sep is not None:
        times = itertools.takewhile(lambda each: each * min_sep < rounds, (4**power for power in itertools.count()))
        shown |= {each * min_sep: figures.times_b(each) for each in times}
    return shown


def _name(drawn: tff_mf.Mechanism) -> str:
    kind = drawn.kind.replace("_", "-")
    for parameter in ("buffers", "bands", "variant"):
        value = getattr(drawn, parameter, None)
        if value is not None:
            return f"{kind}-{value}" if isinstance(value, str) else f"{kind}, {value} {parameter}"
    return kind
