"""Pictures: what is on them, and how they are saved. Wrong paths are in tests/fuzz and test_pages.py."""

import numpy as np
import pytest

import tff_mf
from tff_mf.experiments.comparison import _report, _results, charts
from tff_mf.experiments.output import figures as output_figures
from tff_mf.experiments.output import mechanism_plots

SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
SCHEMA = tff_mf.MinSep(min_sep=8, max_participations=4)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn while it was asked for."""
    figures = []
    original = output_figures.figure.Figure

    def build(*arguments, **options):
        figures.append(original(*arguments, **options))
        return figures[-1]

    monkeypatch.setattr(output_figures.figure, "Figure", build)
    return figures


def draw_mechanism(path, mechanism=None, schema=SCHEMA):
    mechanism_plots.mechanism(mechanism or tff_mf.Tree(32), 32, schema, tff_mf.PrefixSum(), path)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ending", [*SIGNATURES, "SVG"])
def test_the_ending_is_the_format_and_bytes_are_reproducible(tmp_path, ending):
    paths = [tmp_path / f"{number}.{ending}" for number in range(2)]
    for path in paths:
        draw_mechanism(path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(SIGNATURES[ending.lower()])
    assert ending.lower() != "svg" or b"<svg" in first
    assert first == second
    assert sorted(tmp_path.iterdir()) == paths


def test_nothing_of_matplotlib_is_changed_for_others(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_mechanism(tmp_path / "x.svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("most", [7, 16, 32])
def test_a_large_matrix_is_drawn_by_means_of_squares(tmp_path, drawn, monkeypatch, most):
    """All entries of 4,000 rounds took a minute and 1.6 GB."""
    monkeypatch.setattr(mechanism_plots, "_MOST_CELLS", most)
    draw_mechanism(tmp_path / "x.png")
    image = drawn[0].axes[0].get_images()[0]
    matrix, side = tff_mf.Tree(32).encoder(32), -(-32 // most)
    squares = [[matrix[i : i + side, j : j + side].mean() for j in range(0, 32, side)] for i in range(0, 32, side)]
    np.testing.assert_allclose(image.get_array(), squares)
    assert len(squares) <= most
    assert tuple(image.get_extent()) == (-0.5, 31.5, 31.5, -0.5)


def level(label, privacy, accuracies, rmse=0.1):
    best = [
        _results.Finished(
            label=label, privacy=privacy, seed=seed, rate=1.0, effective_rmse=rmse, accuracy=accuracy,
            validation_accuracy=accuracy, history=[(2, accuracy / 2), (4, accuracy)], claim={"state": "stated"},
            test_sentences=70,
        )
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    return _results.Level(label=label, privacy=privacy, best=best, tried={0.5: 0.1, 1.0: 0.2, 2.0: 0.1})


def draw_comparison(found, folder):
    result = _report.as_dict(found, planned=9, done=9, failed={})
    return charts.draw(result, folder, clip_norm=1.0, setting="n = 4, b = 2, k = 2", min_sep=2)


def test_no_interval_reaches_below_0_or_above_100(tmp_path, drawn):
    found = [
        level("blt", ("epsilon", 2.0), (0.9, 0.999)),
        level("identity", ("epsilon", 2.0), (0.0001, 0.02)),
        level("banded", ("epsilon", 2.0), (0.1,)),
    ]
    mean, half = _results.mean_and_half_width([0.01, 2.0])
    assert mean < half, "the interval as it is reaches below 0"
    draw_comparison(found, tmp_path)
    axes = drawn[1].axes[0]
    segments = np.concatenate([bars.get_segments() for container in axes.containers for bars in container.lines[2]])
    assert len(segments) == 3
    assert segments[..., 1].min() >= 0
    assert segments[1, :, 1].max() == pytest.approx(mean + half), "the other side is whole"
    assert segments[..., 1].max() <= 100
    assert axes.get_ylim()[0] == 0
    assert len({x for (x, _), _ in segments}) == 3, "intervals are side by side"


def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_bytes(b"as it was")

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_figures.figure.Figure, "savefig", full)
    with pytest.raises(tff_mf.InputError, match="No space left"):
        draw_mechanism(path)
    assert path.read_bytes() == b"as it was"
    assert list(tmp_path.iterdir()) == [path]
