"""Server values stay in the worker; the ordinary context warns before slow rounds, and errors are clear in both."""

import contextlib
import gc
import traceback
import weakref

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import context, forms, tff_insides
from tff_mf.aggregators.resident.connection import Connection

from .conftest import noise_of

pytestmark = pytest.mark.usefixtures("taken_apart_once")


@pytest.fixture
def resident():
    with aggregators.resident_context() as context:
        yield context


@pytest.fixture
def sent(monkeypatch):
    """The types of all that is sent to a worker."""
    found, create = [], Connection.create
    monkeypatch.setattr(Connection, "create", lambda self, value, spec: found.append(spec) or create(self, value, spec))
    return found


@pytest.fixture(scope="module")
def large(regression):
    """A process with a state that stays in the worker."""
    return regression.aggregator().create(tff.TensorType(np.float32, [5000]))


def test_only_clients_data_is_sent_and_only_small_tensors_are_read(large, resident, sent, monkeypatch):
    state = large.next(large.initialize(), [np.ones(5000, np.float32)] * 2).state
    sent.clear()
    read, compute = [], Connection.read
    monkeypatch.setattr(Connection, "read", lambda self, value: read.append(compute(self, value)) or read[-1])
    output = large.next(state, [np.ones(5000, np.float32)] * 3)
    assert [str(spec) for spec in sent] == ["<float32[5000]>"] * 3
    assert sum(np.size(leaf) for each in read for leaf in tff.structure.flatten(each)) < 30
    assert np.shape(np.asarray(output.result)) == (5000,)
    assert np.shape(read[-1]) == (5000,)


@pytest.mark.parametrize(("most_bytes", "copies"), [(10**9, 3), (8, 0)])
def test_copies_of_the_sum_change_nothing(regression, resident, sent, monkeypatch, most_bytes, copies):
    """Seven clients with a copy after every two, or with a sum that is too large for a message."""
    process = regression.aggregator(noise_multiplier=0.0).create(tff.TensorType(np.float32, [5]))
    clients = list(np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32))
    monkeypatch.setattr(context, "_FEWEST", len(clients) + 1)
    expected = np.asarray(process.next(process.initialize(), clients).result)
    monkeypatch.setattr(context, "_CLIENTS_BETWEEN_COPIES", 2)
    monkeypatch.setattr(context, "MAX_MESSAGE_BYTES", most_bytes)
    state = process.initialize()
    sent.clear()
    np.testing.assert_array_equal(np.asarray(process.next(state, clients).result), expected)
    assert len(sent) == len(clients) + copies


def test_a_small_tensor_is_passed_as_it_is_and_its_copies_by_value(resident, sent):
    """As long as a large tensor of its result is held, a reference stands for the array, which cannot change."""
    plus = tff.tensorflow.computation(lambda parts: parts[0] + parts[1], [np.int32, tff.TensorType(np.int32, [2])])
    one, two, large = tff.tensorflow.computation(lambda: (tf.constant(1), tf.constant([1, 2]), tf.zeros([5000])))()
    sent.clear()
    assert plus([one, two]).tolist() == [2, 3]
    assert "int32" not in map(str, sent)
    with pytest.raises(ValueError, match="read-only"):
        two[0] = 5
    changed = two.copy()
    changed[0] = 5
    assert plus([one, changed]).tolist() == [6, 3]
    assert plus([one, two[::-1]]).tolist() == [3, 2]
    assert large.shape == (5000,)


@tff.tensorflow.computation
def _difference(first: np.float32, second: np.float32):
    return first - second


def test_a_computation_that_cannot_be_taken_apart_runs_as_in_the_ordinary_context():
    @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS))
    def second_moment(scale, values):
        mean = tff.federated_broadcast(tff.federated_mean(values))
        return tff.federated_mean(tff.federated_map(_difference, (values, mean))), scale

    assert isinstance(forms.take_apart(second_moment), forms.PlacedForm)
    expected = second_moment(2.0, [1.0, 5.0])
    with aggregators.resident_context():
        two = tff.tensorflow.computation(lambda: tf.constant(2.0))()
        assert second_moment(two, [1.0, 5.0]) == expected


def test_a_state_is_released_with_its_last_reference(large, resident):
    """At once, since garbage collection may be many rounds away and a state may take most of the memory."""
    gc.disable()
    try:
        state = large.initialize()
        for _ in range(2):
            output = large.next(state, [np.ones(5000, np.float32)])
            source, _ = noise_of(state).rows[0].origin
            before = weakref.ref(source)
            measured = output.measurements
            state = output.state
            del output, source
            assert before() is None
        assert measured["dp_query_metrics"]["round"] == 2
    finally:
        gc.enable()


def test_a_dead_worker_raises_worker_lost_error(regression):
    before = {child.pid for child in psutil.Process().children()}
    with aggregators.resident_context():
        process = regression.aggregator().create(tff.TensorType(np.float32, [3]))
        state = process.next(process.initialize(), [[1.0, 0.0, 0.0]]).state
        (victim,) = (child for child in psutil.Process().children() if child.pid not in before)
        victim.kill()
        for _ in range(2):
            with pytest.raises(aggregators.WorkerLostError, match="last checkpoint"):
                process.next(state, [[1.0, 0.0, 0.0]])


CONTEXTS = {"session": contextlib.nullcontext, "resident": aggregators.resident_context}


def process_of(mechanism, size):
    factory = aggregators.build_mf_aggregator(mechanism, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=1)
    return factory.create(tff.TensorType(np.float32, [size]))


@pytest.fixture(scope="module")
def of_two_rounds():
    return process_of(tff_mf.Tree(2, variant="full"), 3)


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_round_after_the_last_raises_one_clear_error(of_two_rounds, context):
    with CONTEXTS[context]():
        state = of_two_rounds.initialize()
        for _ in range(2):
            state = of_two_rounds.next(state, [np.ones(3, np.float32)]).state
        with pytest.raises(aggregators.NoRoundsLeftError) as caught:
            of_two_rounds.next(state, [np.ones(3, np.float32)])
    assert isinstance(caught.value, ValueError)
    assert "The tree mechanism is defined for 2 rounds" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "rpc" not in shown.replace("grpc.RpcError", "").lower().split("norounds")[-1]
    assert "block locals" not in shown
    assert "debug_error_string" not in shown


def test_what_is_named_of_tffs_insides_is_there():
    context = tff.backends.native.create_sync_local_cpp_execution_context()
    assert tff_insides._MANAGER in {type(one).__qualname__ for one in gc.get_objects()}
    del context
    assert tff_insides.thresholds(tff.aggregators.SecureSumFactory(8, -8)) == (8, -8)
