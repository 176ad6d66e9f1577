"""Pictures of results, drawn without a display."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

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
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
