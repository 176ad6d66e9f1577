"""Pictures of results, drawn without a display."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

matplotlib.use("Agg")
from matplotlib import pyplot

# Enough to see the structure, and a matrix of it is drawn in a second.
_MOST_ROUNDS_DRAWN = 4096
_LABELS = {"blt": "BLT (correlated noise)", "identity": "identity (independent noise)"}


def accuracy(
    curves: Mapping[str, Sequence[Mapping[str, float]]], *, metric: str, title: str, path: pathlib.Path
) -> None:
    """Writes a PNG of `metric` over rounds, a line a mechanism.

    Args:
        curves: For each mechanism its evaluated rounds, each with `round` and `metric`.
        metric: Which metric to draw.
        title: Title of the picture.
        path: Where the picture goes.
    """
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, history in curves.items():
        rounds = [row["round"] for row in history]
        axes.plot(
            rounds, [100 * row[metric] for row in history], marker="o", markersize=3, label=_LABELS.get(name, name)
        )
    axes.set(xlabel="round", ylabel="accuracy, known words (%)", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def mechanism(drawn: tff_mf.Mechanism, rounds: int, workload: tff_mf.Workload, path: pathlib.Path) -> None:
    """Writes a PNG of C, C⁻¹ and B = A·C⁻¹ as images, their first columns, and the error of each round.

    Args:
        drawn: The mechanism.
        rounds: Number of rounds n.
        workload: The workload A.
        path: Where the picture goes.

    Raises:
        InputValueError: If there are too many rounds to draw, or the file cannot be written.
    """
    if rounds > _MOST_ROUNDS_DRAWN:
        raise InputValueError(f"rounds={rounds} are too many to draw: --plot takes at most {_MOST_ROUNDS_DRAWN}.")
    inverse = drawn.inverse(rounds)
    matrices = {"C": drawn.encoder(rounds), "C⁻¹": inverse, "B = A·C⁻¹": workload.applied_to(inverse)}
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 8), layout="constrained")
    for above, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        # The diagonal would drown the rest, so the scale is that of all but the largest hundredth.
        limit = np.quantile(np.abs(matrix[np.tril_indices(rounds)]), 0.99) or 1.0
        image = above.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        figure.colorbar(image, ax=above, shrink=0.8)
        above.set(title=name)
    for axis, name in zip(axes[1], ("C", "C⁻¹"), strict=False):
        column = matrices[name][:, 0]
        axis.plot(np.arange(1, rounds), np.abs(column[1:]), linewidth=1)
        axis.set(title=f"first column of {name}, magnitude", xlabel="round", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    errors = np.linalg.norm(matrices["B = A·C⁻¹"], axis=1)
    axes[1][2].plot(errors, linewidth=1)
    axes[1][2].set(title="error of each round at σ = 1", xlabel="round", ylim=(0, None))
    axes[1][2].grid(alpha=0.3)
    save(figure, path)


def save(figure: pyplot.Figure, path: pathlib.Path) -> None:
    """Writes a PNG of the figure, and closes it."""
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise InputValueError(f"plot={str(path)!r} cannot be written: {error.strerror or error}.") from error
    finally:
        pyplot.close(figure)
