"""Streamed noise against C⁻¹z computed densely, its distribution, and its keys: in NumPy, and in TensorFlow."""

import hypothesis
import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.noise import numpy as streams

try:
    import tensorflow as tf

    from tff_mf.noise.tensorflow import _keys, _recursion, build_stream
except ImportError:
    tf = None

from . import tree_oracle

BLT = tff_mf.BLT.production("b400")


# The same test belongs to two classes, one for each engine.
TWO_CLASSES = [hypothesis.HealthCheck.differing_executors]

needs_tensorflow = pytest.mark.skipif(tf is None, reason="TensorFlow is not installed")


class InTensorFlow:
    """What the tests call, for streams in TensorFlow."""

    @staticmethod
    def build(mechanism, **arguments):
        return build_stream(mechanism, **arguments)

    @staticmethod
    def compiled(stream):
        return tf.function(stream.next, reduce_retracing=True)

    @staticmethod
    def array(row):
        return row.numpy()

    @staticmethod
    def drawn_again(stream, state, dimension, stddev):
        """The independent rows z, from the keys that the state recorded."""
        return np.stack([_keys.standard_normal(key, dimension).numpy() for key in state.past_keys]) * stddev

    @staticmethod
    def keys(state):
        return state.past_keys.numpy()

    @staticmethod
    def leaves(state):
        return [leaf.numpy() for leaf in tf.nest.flatten(state)]

    @staticmethod
    def refused():
        return tf.errors.InvalidArgumentError

    @staticmethod
    def in_use(stream, rounds):
        return int(stream.rows_in_use(tf.constant(rounds, tf.int64)))


class InNumPy:
    """What the tests call, for streams in NumPy."""

    build = staticmethod(streams.build_stream)

    @staticmethod
    def compiled(stream):
        return stream.next

    @staticmethod
    def array(row):
        return row

    @staticmethod
    def drawn_again(stream, state, dimension, stddev):
        return drawn_in_numpy(stream, state["keys"], dimension) * stddev

    @staticmethod
    def keys(state):
        return state["keys"]

    @staticmethod
    def leaves(state):
        return [state[name] for name in sorted(state)]

    @staticmethod
    def refused():
        return tff_mf.InputError

    @staticmethod
    def in_use(stream, rounds):
        return stream.rows_in_use(rounds)


def drawn_in_numpy(stream, keys, dimension):
    z = np.empty((len(keys), dimension))
    for key, row in zip(keys, z, strict=True):
        for begin in range(0, dimension, stream._generator.part):
            stream._generator.write(key, begin, row[begin : begin + stream._generator.part])
    return z


def rows_of(stream, rounds, step=None):
    step = step or stream.next
    state, rows = stream.init(), []
    for _ in range(rounds):
        row, state = step(state)
        rows.append(np.asarray(row))
    return np.stack(rows), state


def compiled(stream):
    return InTensorFlow.compiled(stream)


def drawn_again(state, dimension, stddev):
    return InTensorFlow.drawn_again(None, state, dimension, stddev)


def assert_close(rows, expected):
    assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()


def plausible(white, scale):
    """Whether independent Gaussians of standard deviation `scale` would look like `white`, [streams, rounds]."""
    streams, rounds = white.shape
    covariance = white.T @ white / streams
    total = streams * np.diag(covariance).sum() / scale**2
    correlations = streams * covariance[np.triu_indices(rounds, 1)] ** 2
    diagonal = 2 * min(scipy.stats.chi2.cdf(total, streams * rounds), scipy.stats.chi2.sf(total, streams * rounds))
    return diagonal > 1e-9 and scipy.stats.chi2.sf(correlations.sum() / scale**4, correlations.size) > 1e-9


class Streams:
    """Tests of an engine: C⁻¹z, its distribution, its keys, and what is refused."""

    engine: type

    @pytest.mark.sampled
    @pytest.mark.parametrize("seed", [None, 7])
    @pytest.mark.parametrize("rounds", [2, 13, 64])
    def test_a_compiled_stream_is_the_inverse_times_the_recorded_noise(self, make_mechanism, rounds, seed):
        mechanism = make_mechanism(rounds)
        stream = self.engine.build(mechanism, dimension=5, stddev=3.0, insecure_seed=seed)
        rows, state = rows_of(stream, rounds, self.engine.compiled(stream))
        z = self.engine.drawn_again(stream, state, 5, 3.0)
        assert_close(rows, mechanism.cast_to_float32().inverse(rounds) @ z)
        assert len(self.engine.keys(state)) == rounds

    @hypothesis.settings(max_examples=3, suppress_health_check=TWO_CLASSES)
    @given(data=st.data())
    def test_stream_is_the_inverse_times_the_recorded_noise(self, make_mechanism, data):
        # Longer ones run in a graph, above: operation by operation, each round takes as long as tracing a whole one.
        rounds = data.draw(st.integers(1, 12))
        mechanism = make_mechanism(rounds)
        stream = self.engine.build(mechanism, dimension=data.draw(st.integers(1, 4)), stddev=1.0)
        rows, state = rows_of(stream, rounds)
        z = self.engine.drawn_again(stream, state, rows.shape[1], 1.0)
        assert_close(rows, mechanism.cast_to_float32().inverse(rounds) @ z)

    @hypothesis.settings(max_examples=20, suppress_health_check=TWO_CLASSES)
    @given(
        theta=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4),
        scale=st.floats(0.0, 1.0),
        rounds=st.integers(1, 12),
    )
    def test_any_blt_streams_its_inverse(self, theta, scale, rounds):
        mechanism = tff_mf.BLT(theta=theta, omega=[scale / len(theta)] * len(theta))
        stream = self.engine.build(mechanism, dimension=2, stddev=1.0)
        rows, state = rows_of(stream, rounds)
        expected = mechanism.inverse(rounds) @ self.engine.drawn_again(stream, state, 2, 1.0)
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)

    @hypothesis.settings(max_examples=8, suppress_health_check=TWO_CLASSES)
    @given(rounds=st.integers(1, 20), data=st.data())
    def test_any_banded_matrix_streams_its_inverse(self, rounds, data):
        bands = data.draw(st.integers(1, rounds))
        values = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(-0.5, 0.5, size=(bands, rounds)) / bands
        values[0] += 1
        mechanism = tff_mf.Banded(values=values)
        stream = self.engine.build(mechanism, dimension=2, stddev=1.0)
        rows, state = rows_of(stream, rounds)
        z = self.engine.drawn_again(stream, state, 2, 1.0)
        assert_close(rows, mechanism.cast_to_float32().inverse(rounds) @ z)

    def test_one_band_is_independent_noise_bit_for_bit(self):
        arguments = {"dimension": 9, "stddev": 2.0, "insecure_seed": 1}
        expected, _ = rows_of(self.engine.build(tff_mf.Identity(), **arguments), 4)
        for mechanism in (tff_mf.Banded(values=np.ones((1, 4))), tff_mf.BandedToeplitz(column=[1.0])):
            rows, _ = rows_of(self.engine.build(mechanism, **arguments), 4)
            np.testing.assert_array_equal(rows, expected)

    def test_covariance_over_streams(self, make_mechanism):
        """Noise times C is z again: 4,096 coordinates are as many independent streams."""
        rounds = 12
        mechanism = make_mechanism(rounds)
        stream = self.engine.build(mechanism, dimension=4096, stddev=1.7)
        noise, _ = rows_of(stream, rounds, self.engine.compiled(stream))
        white = noise.T.astype(np.float64) @ mechanism.encoder(rounds).T / 1.7
        assert plausible(white, 1.0)
        # A tenth more or less of 4,200 numbers would seem plausible once in 10,000 times.
        assert not plausible(white, 1.2)
        assert not plausible(white, 0.8)

    def test_one_state_stepped_twice_never_repeats_noise(self, make_mechanism):
        stream = self.engine.build(make_mechanism(5), dimension=4, stddev=1.0)
        _, state = rows_of(stream, 3)
        before = [leaf.copy() for leaf in self.engine.leaves(state)]
        for step in (stream.next, self.engine.compiled(stream)):
            first, after_first = step(state)
            second, after_second = step(state)
            assert not np.any(np.asarray(first) == np.asarray(second))
            one, other = self.engine.keys(after_first), self.engine.keys(after_second)
            np.testing.assert_array_equal(one[:3], other[:3])
            assert not np.any(one[3] == other[3])
        for leaf, old in zip(self.engine.leaves(state), before, strict=True):
            np.testing.assert_array_equal(leaf, old)

    def test_recorded_keys_rebuild_the_state(self, make_mechanism):
        stream = self.engine.build(make_mechanism(12), dimension=3, stddev=1.5)
        step, state = self.engine.compiled(stream), stream.init()
        for rounds in range(1, 12):
            _, state = step(state)
            if rounds not in (1, 11):
                continue
            again = stream.replay(self.engine.keys(state))
            for ours, theirs in zip(self.engine.leaves(again), self.engine.leaves(state), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            first, second = (np.asarray(step(each)[0]) for each in (state, again))
            assert not np.any(first == second)

    def test_keys_that_are_none_are_refused(self):
        stream = self.engine.build(tff_mf.Tree(3), dimension=3, stddev=1.0)
        assert len(self.engine.keys(stream.replay(np.zeros([0, 2], np.int64)))) == 0
        for keys, field in (
            (np.zeros([2, 3], np.int64), "keys"),
            (np.zeros([2, 2], np.float32), "keys"),
            (np.zeros([4, 2], np.int64), "4"),
        ):
            with pytest.raises(tff_mf.InputError, match=field):
                stream.replay(keys)

    def test_two_streams_never_share_noise(self):
        firsts = [rows_of(self.engine.build(tff_mf.Identity(), dimension=4, stddev=1.0), 1)[0] for _ in range(2)]
        assert not np.any(firsts[0] == firsts[1])

    def test_insecure_seeds_repeat_and_do_not_overlap(self):
        def values(seed):
            return rows_of(self.engine.build(tff_mf.Identity(), dimension=3, stddev=1.0, insecure_seed=seed), 6)[0]

        np.testing.assert_array_equal(values(7), values(7))
        drawn = np.concatenate([values(seed).ravel() for seed in range(6)])
        assert len(np.unique(drawn)) == drawn.size

    def test_standard_deviation_is_never_rounded_down(self):
        for stddev in (0.1, 1 / 3, 7.379, 1e-30):
            stream = self.engine.build(tff_mf.Identity(), dimension=1, stddev=stddev)
            assert stddev <= float(stream.stddev) <= stddev * (1 + 2e-7)

    def test_a_mechanism_with_an_end_refuses_the_next_round(self, make_mechanism):
        mechanism = make_mechanism(3)
        stream = self.engine.build(mechanism, dimension=2, stddev=1.0)
        for step in (stream.next, self.engine.compiled(stream)):
            _, state = rows_of(stream, 3, step)
            if mechanism.max_rounds is None:
                row, _ = step(state)
                assert np.all(np.isfinite(row))
            else:
                with pytest.raises(self.engine.refused(), match="defined for 3 rounds"):
                    step(state)

    def test_a_state_of_other_noise_is_refused(self):
        def stream(**changes):
            return self.engine.build(BLT, **{"dimension": 3, "stddev": 1.0, **changes})

        state = stream().init()
        others = [stream(stddev=0.5), stream(insecure_seed=1), stream().bound_to("restart_every=3")]
        others.append(self.engine.build(tff_mf.BLT.production("b100"), dimension=3, stddev=1.0))
        for other in others:
            with pytest.raises(self.engine.refused(), match="state is of other noise"):
                other.next(state)
        stream().limited_to(7).next(state)

    def test_a_stream_ends_with_its_run(self):
        stream = self.engine.build(BLT, dimension=3, stddev=1.0)
        _, state = rows_of(stream.limited_to(2), 2)
        with pytest.raises(self.engine.refused(), match="run of this blt mechanism is defined for 2 rounds"):
            stream.limited_to(2).next(state)
        stream.next(state)

    def test_rows_in_use(self):
        def in_use(mechanism, rounds):
            stream = self.engine.build(mechanism, dimension=2, stddev=1.0)
            return [self.engine.in_use(stream, step) for step in range(rounds + 1)]

        assert in_use(tff_mf.Identity(), 2) == [0, 0, 0]
        assert in_use(BLT, 2) == [0, 4, 4]
        assert in_use(tff_mf.BandedToeplitz.square_root(3), 4) == [0, 1, 2, 2, 2]
        assert in_use(tff_mf.Tree(8), 8) == [0, 1, 1, 2, 1, 2, 2, 3, 0]

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"dimension": 0}, "dimension"),
            ({"dimension": 2.5}, "dimension"),
            ({"stddev": -1.0}, "stddev"),
            ({"stddev": float("nan")}, "stddev"),
            ({"stddev": 1e39}, "stddev"),
            ({"insecure_seed": -1}, "insecure_seed"),
            ({"insecure_seed": 2**63}, "insecure_seed"),
            ({"insecure_seed": "7"}, "insecure_seed"),
            ({"mechanism": "blt"}, "mechanism"),
        ],
    )
    def test_bad_arguments(self, arguments, field):
        with pytest.raises(tff_mf.InputError, match=field):
            self.engine.build(**{"mechanism": tff_mf.Identity(), "dimension": 2, "stddev": 1.0, **arguments})


class TestNumPy(Streams):
    engine = InNumPy


@needs_tensorflow
class TestTensorFlow(Streams):
    engine = InTensorFlow


@needs_tensorflow
@pytest.mark.parametrize("parts", [(16, 64), (4096, 2**23)])
def test_rows_longer_than_a_part(monkeypatch, parts):
    """A model of many parameters is taken in parts, of which the last one is shorter."""
    monkeypatch.setattr(_recursion, "_LARGEST_PART", parts[0])
    monkeypatch.setattr(_recursion, "_PART", parts[1])
    for mechanism in (tff_mf.BandedToeplitz.square_root(13), tff_mf.Tree(30)):
        stream = build_stream(mechanism, dimension=8200, stddev=1.0)
        rows, state = rows_of(stream, 30, compiled(stream))
        assert_close(rows, mechanism.cast_to_float32().inverse(30) @ drawn_again(state, 8200, 1.0))


@needs_tensorflow
def test_identity_is_the_gaussian_bit_for_bit():
    rows, state = rows_of(build_stream(tff_mf.Identity(), dimension=9, stddev=2.0), 4)
    np.testing.assert_array_equal(rows, drawn_again(state, 9, np.float32(2.0)))


@needs_tensorflow
def test_covariance_over_runs():
    """Of one coordinate over runs, each with keys of its own."""
    rounds = 6
    stream = build_stream(BLT, dimension=1, stddev=1.7)

    @tf.function
    def one_run():
        state, rows = stream.init(), []
        for _ in range(rounds):
            row, state = stream.next(state)
            rows.append(row[0])
        return tf.stack(rows)

    noise = np.stack([one_run().numpy() for _ in range(700)]).astype(np.float64)
    white = noise @ BLT.encoder(rounds).T / 1.7
    assert plausible(white, 1.0)
    # A tenth more or less of 4,200 numbers would seem plausible once in 10,000 times.
    assert not plausible(white, 1.2)
    assert not plausible(white, 0.8)


def test_covariance_test_rejects_independent_noise():
    white = np.random.default_rng(0).normal(size=(2000, 6)) @ tff_mf.BLT.production("b100").encoder(6).T
    assert not plausible(white / np.sqrt(np.mean(white**2)), 1.0)


@needs_tensorflow
def test_a_row_that_does_not_change_is_passed_on():
    """By reference: as one tensor of the graph, from the arguments to the results."""
    stream = build_stream(tff_mf.BandedToeplitz.square_root(40), dimension=3, stddev=1.0)
    graph = compiled(stream).get_concrete_function(stream.init())
    arguments = {tensor.ref() for tensor in graph.inputs}

    def source(tensor):
        return source(tensor.op.inputs[0]) if tensor.op.type == "Identity" else tensor

    assert sum(source(tensor).ref() in arguments for tensor in graph.outputs) >= 30


@needs_tensorflow
@pytest.mark.sampled
@pytest.mark.parametrize("rounds", [2500, 10_000])
@pytest.mark.parametrize(
    "mechanism",
    [
        BLT,
        tff_mf.BandedToeplitz.square_root(64),
        tff_mf.BandedInverse.square_root(8),
        tff_mf.Tree(10_000, variant="online"),
        tff_mf.Tree(10_000, variant="full"),
    ],
    ids=lambda mechanism: mechanism.kind,
)
def test_float32_drift_of_the_prefix_sum(mechanism, rounds):
    stream = build_stream(mechanism, dimension=4, stddev=1.0, insecure_seed=1)

    @tf.function
    def run():
        def step(index, rows, state):
            row, state = stream.next(state)
            return index + 1, rows.write(index, row), state

        state, rows = stream.init(), tf.TensorArray(tf.float32, rounds)
        shapes = tf.nest.map_structure(lambda tensor: tensor.shape, state)._replace(keys=tf.TensorShape([None, 2]))
        _, rows, state = tf.while_loop(
            lambda index, *_: index < rounds,
            step,
            [0, rows, state],
            shape_invariants=[tf.TensorShape([]), None, shapes],
        )
        z = tf.map_fn(lambda key: _keys.standard_normal(key, 4), state.past_keys, fn_output_signature=tf.float32)
        return rows.stack(), z

    rows, z = (values.numpy().astype(np.float64) for values in run())
    exact = exact_noise(mechanism, z)
    drift = np.abs(np.cumsum(rows, axis=0) - np.cumsum(exact, axis=0))
    assert drift.max() < 1e-4 * np.abs(np.cumsum(exact, axis=0)).max()


def exact_noise(mechanism, z):
    """C⁻¹z in float64, without a matrix of rounds²."""
    if isinstance(mechanism, tff_mf.Tree):
        return tree_oracle.rows(mechanism, z)
    return scipy.signal.fftconvolve(z, mechanism.cast_to_float32().inverse_coefficients(len(z))[:, np.newaxis], axes=0)[
        : len(z)
    ]


@needs_tensorflow
def test_no_matrix_is_part_of_the_graph():
    for mechanism in (
        tff_mf.Dense(matrix=np.eye(500)),
        tff_mf.Banded(values=np.ones((20, 4000))),
        tff_mf.BandedPlusLowRank(diagonals=np.ones((4, 4000)), left=np.ones((4000, 3)), right=np.ones((4000, 3))),
    ):
        stream = build_stream(mechanism, dimension=3, stddev=1.0)
        graph = compiled(stream).get_concrete_function(stream.init()).graph
        assert len(graph.as_graph_def().SerializeToString()) < 100_000
