"""States of queries: whose they are, how a plain loop steps them, and optimizers that would lose them."""

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
import tensorflow_privacy as tfp  # noqa: E402

from tff_mf import queries  # noqa: E402

from ..conftest import ENDED, OTHER_NOISE  # noqa: E402

BLT = tff_mf.BLT.production("b400")
SPEC = tf.TensorSpec([5])
CLIPPING = queries.AdaptiveClipping(count_stddev=1.0)


def build(*, restart_every=None, clipping=None, mechanism=BLT, **arguments):
    arguments = {"record_specs": SPEC, "clip_norm": 1.0, "noise_multiplier": 8.0, **arguments}
    if clipping is None:
        query = queries.build_query(mechanism, **arguments)
    else:
        query = queries.AdaptiveClippingQuery(mechanism, clipping=clipping, clients_per_round=10, **arguments)
    return query if restart_every is None else queries.RestartedQuery(query, restart_every=restart_every)


def step(query, state):
    return query.get_noised_result(query.initial_sample_state(SPEC), state)


PLAIN = [
    {"noise_multiplier": 0.4},
    {"clip_norm": 0.05},
    {"clip_norm": 2.0, "noise_multiplier": 4.0},
    {"clip_norm": 1.0 - 1e-7},
    {"insecure_seed": 1},
    {"mechanism": tff_mf.BLT.production("b100")},
    {"grid": tff_mf.Grid(bits=16, max_clients=9)},
]
ADAPTIVE = {"restart_every": 4, "clipping": CLIPPING}
OF_RESTARTS = [
    {"restart_every": 8},
    {"clipping": queries.AdaptiveClipping(count_stddev=0.5)},
    {"clipping": queries.AdaptiveClipping(count_stddev=1.0, learning_rate=9.0)},
    {"clip_norm": 0.5},
]


@pytest.mark.sampled
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("first", "changes"),
    [
        *(({}, each) for each in PLAIN),
        ({"restart_every": 4}, OF_RESTARTS[0]),
        *((ADAPTIVE, each) for each in OF_RESTARTS),
    ],
)
def test_a_state_of_other_noise_is_refused(first, changes, compiled):
    _, state, _ = step(build(**first), build(**first).initial_global_state())
    other = build(**first | changes)
    one = (
        tf.function(lambda state: step(other, state)[:2], autograph=False)
        if compiled
        else lambda state: step(other, state)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_NOISE):
        one(state)
    assert other.fingerprint != build(**first).fingerprint
    step(build(**first), state)


def test_a_run_of_fewer_rounds_ends():
    whole = build(mechanism=tff_mf.Tree(5))
    limited = whole.limited_to(1)
    assert limited.fingerprint == whole.fingerprint
    _, state, _ = step(limited, limited.initial_global_state())
    with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED(1)):
        step(limited, state)
    # A longer run goes on from the same state.
    _, longer, _ = step(whole.limited_to(2), state)
    with pytest.raises(tff_mf.InputError, match=r"2.*1"):
        limited.replay(longer.noise.past_keys)


@pytest.mark.parametrize("clipping", [None, CLIPPING])
def test_a_run_with_restarts_ends_too(clipping):
    query = queries.RestartedQuery(build(mechanism=tff_mf.Tree(2), clipping=clipping), restart_every=2, rounds=3)
    state = query.initial_global_state()
    for _ in range(3):
        _, state, _ = query.get_noised_result(query.initial_sample_state(SPEC), state)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED(3)):
        query.get_noised_result(query.initial_sample_state(SPEC), state)


def test_restarts_end_with_the_run_that_a_query_was_limited_to():
    query = queries.RestartedQuery(build(mechanism=tff_mf.Tree(4)).limited_to(3), restart_every=2)
    state = query.initial_global_state()
    for _ in range(3):
        _, state, _ = step(query, state)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED(3)):
        step(query, state)


def test_rounds_that_are_none_are_refused():
    for rounds, error in ((0, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="rounds"):
            build().limited_to(rounds)
        with pytest.raises(error, match="rounds"):
            queries.RestartedQuery(build(), restart_every=2, rounds=rounds)
    with pytest.raises(ValueError, match="rounds"):
        build(mechanism=tff_mf.Tree(4)).limited_to(5)


@pytest.mark.parametrize("restart_every", [None, 4])
def test_a_state_that_a_graph_would_keep_is_refused(restart_every):
    query = build(restart_every=restart_every)
    state = query.initial_global_state()
    with pytest.raises(Exception, match="must be an argument"):
        tf.function(lambda: step(query, state)[0])()
    begun = tf.function(lambda: step(query, query.initial_global_state())[0])
    assert not np.any(begun() == begun())


@pytest.mark.sampled
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("wrapped", [{}, {"restart_every": 4}, {"restart_every": 4, "clipping": CLIPPING}], ids=str)
def test_keras_optimizers_of_tensorflow_privacy_draw_no_noise_from_other_queries(run_eagerly, wrapped):
    model = tf.keras.Sequential([tf.keras.layers.Dense(5, use_bias=False, input_shape=(1,))])
    optimizer = tfp.make_keras_generic_optimizer_class(tf.keras.optimizers.legacy.SGD)(
        build(record_specs=[tf.TensorSpec([1, 5])], **wrapped), num_microbatches=2, learning_rate=1.0
    )
    model.compile(optimizer, tf.keras.losses.MeanSquaredError(reduction="none"), run_eagerly=run_eagerly)
    # In a graph, Keras wraps the error.
    with pytest.raises(Exception, match=r"tff_mf\.frameworks\.keras"):
        model.fit(tf.zeros([2, 1]), tf.zeros([2, 5]), batch_size=2, verbose=0)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("specs", "record"),
    [
        (tf.TensorSpec([1]), tf.ones([5])),
        (tf.TensorSpec([]), tf.ones([5])),
        (tf.TensorSpec([8]), tf.ones([3, 8])),
        (tf.TensorSpec([100]), tf.ones([1])),
        (tf.TensorSpec([2, 3]), tf.ones([3, 2])),
        ([tf.TensorSpec([2]), tf.TensorSpec([3])], [tf.ones([2])]),
        ({"a": tf.TensorSpec([2]), "b": tf.TensorSpec([1])}, {"a": tf.ones([2]), "b": tf.ones([4])}),
    ],
    ids=str,
)
@pytest.mark.parametrize("restart_every", [None, 4])
@pytest.mark.parametrize("clipping", [None, CLIPPING])
def test_shapes_that_tensorflow_would_broadcast_are_refused(specs, record, restart_every, clipping):
    query = build(record_specs=specs, restart_every=restart_every, clipping=clipping)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    total = (record, tf.zeros([])) if clipping else record
    for attempt in (
        lambda: query.initial_sample_state(record),
        lambda: query.preprocess_record(params, record),
        lambda: query.get_noised_result(total, state),
    ):
        with pytest.raises(Exception, match="record_specs"):
            attempt()


def test_shapes_that_are_unknown_until_a_graph_runs_are_checked_there():
    query = build(record_specs=tf.TensorSpec([1]))
    params = query.derive_sample_params(query.initial_global_state())
    clip = tf.function(lambda record: query.preprocess_record(params, record), [tf.TensorSpec(None)])
    assert clip(tf.ones([1])).shape == (1,)
    with pytest.raises(tf.errors.InvalidArgumentError):
        clip(tf.ones([5]))
