"""Pictures: what is on them, and how they are saved. Wrong paths are in tests/fuzz and test_pages.py."""

import stat

import numpy as np
import pytest

import tff_mf

pytest.importorskip("matplotlib")

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


@pytest.mark.parametrize("mechanism", [tff_mf.Identity(), tff_mf.Tree(32), tff_mf.BLT.production("b100")])
def test_the_diagonal_entry_of_a_first_column_is_drawn(tmp_path, drawn, mechanism):
    """An axis that is logarithmic all the way has no place for it."""
    draw_mechanism(tmp_path / "x.png", mechanism)
    (figure,) = drawn
    columns = [axes for axes in figure.axes if axes.get_xlabel() == "rounds after the diagonal"]
    assert len(columns) == 2
    for axes, matrix in zip(columns, (mechanism.encoder(32), mechanism.inverse(32)), strict=True):
        (diagonal,) = (line for line in axes.get_lines() if line.get_label() == "diagonal")
        ((x, y),) = diagonal.get_xydata()
        assert (x, y) == (0, abs(matrix[0, 0]))
        assert diagonal.get_marker() not in ("", "None", None)
        pixels, box = axes.transData.transform((x, y)), axes.get_window_extent()
        assert np.isfinite(pixels).all()
        assert box.x0 <= pixels[0] <= box.x1
        assert axes.get_xticks()[0] == 0
        curves = [line.get_ydata()[1:] for line in axes.get_lines() if line.get_label() in ("positive", "negative")]
        assert np.isfinite(curves).sum() == np.count_nonzero(matrix[1:, 0])


@pytest.mark.parametrize("variant", ["online", "full"])
def test_every_entry_of_a_first_column_can_be_seen(tmp_path, drawn, variant):
    """A line shows no point between two gaps, and the columns of a tree consist of such points."""
    tree = tff_mf.Tree(32, variant=variant)
    draw_mechanism(tmp_path / "x.png", tree)
    columns = [axes for axes in drawn[0].axes if axes.get_xlabel() == "rounds after the diagonal"]
    for axes, matrix in zip(columns, (tree.encoder(32), tree.inverse(32)), strict=True):
        seen = set()
        for line in axes.get_lines():
            there = dict(line.get_xydata()[np.isfinite(line.get_ydata())])
            alone = line.get_marker() not in ("", "None", None)
            seen |= {lag for lag in there if alone or there.keys() & {lag - 1, lag + 1}}
        assert seen == set(np.flatnonzero(matrix[:, 0]))


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


def test_curves_differ_without_colors():
    names = [f"blt, buffers {count}" for count in range(40)] + list(output_figures._PLACES)
    found = list(output_figures.styles(names).values())
    assert len({(each.marker, each.dashes) for each in found}) == len(names)
    assert len({each.color for each in output_figures.styles(output_figures._PLACES).values()}) == 8
    assert output_figures.styles(["identity", "blt"])["blt"] == output_figures.styles(["blt", "banded"])["blt"]


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


def test_pictures_of_a_comparison_show_every_seed_level_and_rate(tmp_path, drawn):
    found = [level("blt", ("epsilon", 2.0), (0.1, 0.2)), level("identity", ("epsilon", 8.0), (0.1, 0.2), rmse=0.01)]
    draw_comparison(found, tmp_path)
    over_rounds, _, rates = drawn
    for figure in drawn:
        assert {"blt", "identity"} <= {text.get_text() for text in figure.legends[0].get_texts()}
    # Of each of two seeds, and of their mean.
    assert [len(axes.get_lines()) for axes in over_rounds.axes] == [3, 3]
    (axes,) = rates.axes
    tried = {float(y) for line in axes.get_lines() if line.get_label().startswith("_") for y in line.get_ydata()}
    assert tried == {0.5, 1.0, 2.0}


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


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.touch()
    path.chmod(stat.S_IREAD)
    # The tests may run as root, for whom every file may be written.
    monkeypatch.setattr(output_figures.os, "access", lambda path, mode: False)
    with pytest.raises(tff_mf.InputError, match="is read-only"):
        output_figures.checked_path(path)
