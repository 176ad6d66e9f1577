"""Streams from outside: noise that is not C⁻¹z voids the guarantee, and is refused where a stream or query is built."""

import dataclasses

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
from tff_mf import queries  # noqa: E402
from tff_mf.noise import NoiseStream, _keys, build_stream  # noqa: E402

from .test_registry import any_matrix, geometric, mixed_matrix, registered_for_one_test  # noqa: E402, F401

SPECS = tf.TensorSpec([3])


class GeometricStream(NoiseStream):
    """x_t = z_t − αs, then s ← βs + x_t."""

    @property
    def row_count(self):
        return 1

    def step(self, noise, state):
        (memory,) = state.rows
        row = noise - self.mechanism.alpha * memory
        return row, (self.mechanism.beta * memory + row,)


def query_of(mechanism, **changes):
    return queries.build_query(
        mechanism, **{"record_specs": SPECS, "clip_norm": 2.0, "noise_multiplier": 1.5, **changes}
    )


def rows_of(stream, rounds):
    state, rows = stream.init(), []
    for _ in range(rounds):
        row, state = stream.next(state)
        rows.append(row.numpy())
    z = np.stack([_keys.standard_normal(key, stream.dimension).numpy() for key in state.past_keys])
    return np.stack(rows), z * float(stream.stddev)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("stream", [GeometricStream, None])
def test_an_outsider_has_a_stream_and_a_query(stream):
    mechanism = geometric(stream=stream)
    rows, z = rows_of(build_stream(mechanism, dimension=4, stddev=2.0), 20)
    np.testing.assert_allclose(rows, mechanism.cast_to_float32().inverse(20) @ z, rtol=1e-4, atol=1e-4)
    query = query_of(mechanism)
    assert type(query) is queries.MatrixFactorizationQuery
    event = query.dp_event(40, tff_mf.MinSep(min_sep=10, max_participations=4))
    assert event == query_of(tff_mf.BLT(theta=[0.75], omega=[0.5])).dp_event(
        40, tff_mf.MinSep(min_sep=10, max_participations=4)
    )


def test_a_matrix_without_a_stream_gets_the_rows_of_its_inverse():
    mechanism = any_matrix(mixed_matrix(40))
    stream = build_stream(mechanism, dimension=4, stddev=2.0)
    rows, z = rows_of(stream, 40)
    expected = mechanism.cast_to_float32().inverse(40) @ z
    np.testing.assert_allclose(rows, expected, atol=1e-4 * np.abs(expected).max())
    with pytest.raises(tf.errors.InvalidArgumentError, match="defined for 40 rounds"):
        stream.next(stream.replay(tf.zeros([40, 2], tf.int64)))


def test_rows_of_a_toeplitz_matrix_without_an_end_have_one():
    stream = build_stream(geometric(), dimension=2, stddev=1.0)
    assert stream.limited_to(100).fingerprint == stream.fingerprint
    with pytest.raises(tff_mf.InputError, match="rounds=16385 is more than the 16384"):
        stream.limited_to(2**14 + 1)


def test_a_matrix_without_a_stream_or_an_end_has_no_noise():
    mechanism = any_matrix(mixed_matrix(40), max_rounds=None)
    with pytest.raises(tff_mf.InputError, match="has no last round"):
        build_stream(mechanism, dimension=2, stddev=1.0)


def changed(**methods):
    return type("GeometricStream", (GeometricStream,), methods)


def repeats(self, noise, state):
    """The noise of round 0 in every round."""
    first = tf.cond(tf.equal(state.round, 0), lambda: noise, lambda: state.rows[0])
    return first, (first,)


def late(self, noise, state):
    row, rows = GeometricStream.step(self, noise, state)
    return tf.where(state.round < 20, row, tf.zeros_like(row)), rows


def wraps_too_early(self, noise, state):
    """A memory of 40 rows that fails once it is full."""
    memory, *rest = state.rows
    row = noise - self.mechanism.alpha * memory
    return tf.where(state.round < 40, row, noise), (self.mechanism.beta * memory + row, *rest)


def remembers(self, noise, state):
    """Memory that is not in the state, and that a restart does not clear."""
    if not hasattr(self, "_memory"):
        with tf.init_scope():
            self._memory = tf.Variable(tf.zeros([self.dimension]))
    row = noise - self.mechanism.alpha * self._memory
    with tf.control_dependencies([self._memory.assign(self.mechanism.beta * self._memory + row)]):
        return tf.identity(row), state.rows


def only_small(self, noise, state):
    row, rows = GeometricStream.step(self, noise, state)
    return (row if self.dimension == 3 else tf.zeros_like(row)), rows


HOSTILE = {
    "is wrong after the rows of its memory": changed(row_count=property(lambda self: 40), step=wraps_too_early),
    "has memory outside of the state": changed(step=remembers),
    "repeats noise": changed(step=repeats),
    "adds none": changed(step=lambda self, noise, state: (tf.zeros_like(noise), state.rows)),
    "adds 1 % less": changed(step=lambda self, noise, state: GeometricStream.step(self, noise * 0.99, state)),
    "adds independent noise": changed(step=lambda self, noise, state: (noise, state.rows)),
    "is another mechanism's": lambda mechanism, **arguments: GeometricStream(
        dataclasses.replace(mechanism, alpha=0.4), **arguments
    ),
    "ends after 20 rounds": changed(step=late),
    "is not a number": changed(step=lambda self, noise, state: (noise * float("nan"), state.rows)),
}


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE)
def test_a_stream_that_is_not_the_inverse_times_the_noise_is_refused(stream):
    mechanism = geometric(stream=stream)
    for use in (lambda: build_stream(mechanism, dimension=2, stddev=1.0), lambda: query_of(mechanism)):
        with pytest.raises(tff_mf.InputError, match="stream of kind 'geometric' is not C⁻¹z: row"):
            use()


def test_a_stream_is_run_with_the_dimension_that_it_is_for():
    with pytest.raises(tff_mf.InputError, match="is not C⁻¹z"):
        build_stream(geometric(stream=changed(step=only_small)), dimension=2, stddev=1.0)


def test_it_is_refused_in_the_graph_of_a_caller_too():
    mechanism = geometric(stream=HOSTILE["adds 1 % less"])
    with pytest.raises(tff_mf.InputError, match="is not C⁻¹z"):
        tf.function(lambda: build_stream(mechanism, dimension=2, stddev=1.0).init().round, autograph=False)()


@pytest.mark.parametrize(
    "arguments", [{"stddev": 1e-9}, {"insecure_seed": 7}, {"dimension": 1}], ids=lambda each: next(iter(each))
)
def test_a_stream_that_does_not_take_what_it_is_given_is_refused(arguments):
    mechanism = geometric(stream=lambda mechanism, **given: GeometricStream(mechanism, **{**given, **arguments}))
    with pytest.raises(tff_mf.InputError, match="stream of kind 'geometric' has the dimension, stddev"):
        query_of(mechanism)


def test_what_is_no_stream_is_refused():
    mechanism = geometric(stream=lambda mechanism, **arguments: object())
    with pytest.raises(tff_mf.InputError, match=r"return a tff_mf\.noise\.NoiseStream"):
        query_of(mechanism)


@pytest.mark.parametrize("name", ["next", "init", "replay", "_key", "_advance", "limited_to", "fingerprint"])
def test_a_stream_does_not_change_how_keys_are_drawn(name):
    with pytest.raises(tff_mf.InputError, match=f"must not override {name}"):
        changed(**{name: lambda self, *arguments: None})


def test_matrices_that_do_not_fit_have_no_noise():
    mechanism = geometric(stream=GeometricStream, inverse_coefficients=lambda self, rounds: np.eye(rounds)[0])
    with pytest.raises(tff_mf.InputError, match="is not the inverse of its encoder"):
        query_of(mechanism)


def test_a_subclass_inherits_no_noise():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(tff_mf.BLT):
        pass

    for use in (
        lambda: query_of(Other(theta=[0.5], omega=[0.5])),
        lambda: build_stream(Other(theta=[0.5], omega=[0.5]), dimension=2, stddev=1.0),
    ):
        with pytest.raises(tff_mf.InputError, match="Other is not registered"):
            use()


def test_a_query_of_one_kind_takes_no_other():
    arguments = {"record_specs": SPECS, "clip_norm": 1.0, "noise_multiplier": 1.0}
    for query, mechanism, message in (
        (queries.BLTQuery, tff_mf.Identity(), "BLTQuery takes: a mechanism of the kind blt"),
        (queries.BandedQuery, geometric(), "BandedQuery takes: a mechanism of the kind banded or banded_toeplitz"),
        (queries.TreeQuery, tff_mf.Tree(4), "TreeQuery takes: a mechanism of the kind tree with variant='online'"),
        (queries.IdentityQuery, "identity", "mechanism='identity' must be a Mechanism"),
    ):
        with pytest.raises(tff_mf.InputError, match=message):
            query(mechanism, **arguments)


def test_keys_are_repeated_by_a_query_that_was_asked_to():
    query = query_of(tff_mf.BLT.production("b400"))

    def two_rounds(query):
        first, state, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
        second, state, _ = query.get_noised_result(query.initial_sample_state(), state)
        return np.stack([first, second]), state.noise.past_keys.numpy()

    released, keys = two_rounds(query)
    again, repeated = two_rounds(query.repeating(keys))
    np.testing.assert_array_equal(repeated, keys)
    np.testing.assert_array_equal(again, released)
    assert not np.any(two_rounds(query)[1] == keys)
    assert query.repeating(keys).insecure
    assert not query.insecure
    with pytest.raises(tff_mf.InputError, match="no privacy guarantee"):
        query.repeating(keys).dp_event(2, tff_mf.SingleParticipation())
    for wrong in (keys.astype(np.int32), keys[:, :1], keys[0]):
        with pytest.raises(tff_mf.InputError, match="must be int64"):
            query.repeating(wrong)
