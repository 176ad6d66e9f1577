"""What noise in TensorFlow has of its own: keys read in the graph, what graphs hold, stripped assertions."""

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
from tff_mf.noise.tensorflow import _stream, build_stream  # noqa: E402

from .test_noise_laws import BLT, ENGINES, GRID, Run, assert_same, rows_of  # noqa: E402


def test_keys_are_fresh_in_every_execution():
    compiled = tf.function(_stream.system_key)
    keys = [tuple(compiled().numpy()) for _ in range(300)] + [tuple(_stream.system_key().numpy()) for _ in range(20)]
    words = [word for key in keys for word in key]
    assert len(set(words)) == len(words)
    bits = np.unpackbits(np.array(words, np.int64).view(np.uint8)).reshape(-1, 8)
    assert abs(bits.mean() - 0.5) < 0.02


def test_keys_are_read_in_the_graph_and_not_from_tensorflows_generator():
    graph = tf.function(_stream.system_key).get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    operations = {node.op for node in nodes}
    assert "TextLineDataset" in operations
    assert not {op for op in operations if "NonDeterministic" in op or "Random" in op}


def test_folding_a_second_time_gives_another_key():
    """Two reads in one graph must not be merged into one by the graph optimizer."""
    both = tf.function(lambda: (_stream.system_key(), _stream.system_key()))
    first, second = both()
    assert not np.any(first.numpy() == second.numpy())


def test_no_matrix_is_part_of_the_graph():
    for mechanism in (
        tff_mf.Banded(values=np.ones((20, 4000))),
        tff_mf.BandedPlusLowRank(diagonals=np.ones((4, 4000)), left=np.ones((4000, 3)), right=np.ones((4000, 3))),
    ):
        stream = build_stream(mechanism, dimension=3, stddev=1.0)
        graph = tf.function(stream.next).get_concrete_function(stream.init()).graph
        assert len(graph.as_graph_def().SerializeToString()) < 100_000


def test_keys_find_room_beyond_the_first_capacity(monkeypatch):
    monkeypatch.setattr(_stream, "_FIRST_CAPACITY", 3)
    for mechanism, rounds, capacity in ((BLT, 8, 12), (tff_mf.Tree(8), 8, 8)):
        run = Run(ENGINES["tensorflow"], mechanism, rounds, dimension=4)
        run.assert_is_the_inverse_times_z()
        assert run.state.keys.shape == (capacity, 2)
        assert run.step.experimental_get_tracing_count() <= 3
        assert_same(run.engine, run.stream.replay(run.keys), run.state)


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
def test_noise_is_nan_where_assertions_are_stripped_from_graphs(monkeypatch, grid):
    other = build_stream(BLT, dimension=3, stddev=2.0, grid=grid).init()
    stream = build_stream(BLT, dimension=3, stddev=1.0, grid=grid)
    spent, stream = rows_of(stream, 2)[1], stream.limited_to(2)
    for name in ("assert_equal", "assert_less"):
        monkeypatch.setattr(tf.debugging, name, lambda *_, **__: None)
    step = tf.function(stream.next)
    assert np.all(np.isfinite(step(stream.init())[0]))
    for state in (other, spent):
        assert np.all(np.isnan(step(state)[0]))
