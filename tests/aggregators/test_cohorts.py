"""The clients of a round as one computation: the same numbers, bit for bit, as client by client."""

import collections
import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf import aggregators
from tff_mf.aggregators.resident import cohort_graph, context, forms

pytestmark = pytest.mark.usefixtures("taken_apart_once")
AT_ONCE = 3


@pytest.fixture(scope="module")
def resident():
    with aggregators.resident_context(clients_at_once=AT_ONCE) as context:
        yield context


@pytest.fixture
def both(resident, monkeypatch):
    """Runs something with the clients of a round in one graph, and client by client."""
    one_by_one, used = context._one_by_one, []
    monkeypatch.setattr(
        context, "_one_by_one", lambda *arguments, **named: used.append(0) or one_by_one(*arguments, **named)
    )

    def run(function, *, together=True):
        results = []
        for fewest in (1, 10**9):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(context, "_FEWEST", fewest)
                used.clear()
                results.append([np.asarray(leaf) for leaf in tf.nest.flatten(function())])
            assert bool(used) == (fewest > 1 or not together)
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
        return results[0]

    return run


def summed(work):
    """The sum over clients of a computation of each client's argument."""
    parameter = tff.FederatedType(work.type_signature.parameter, tff.CLIENTS)
    return tff.federated_computation(lambda values: tff.federated_sum(tff.federated_map(work, values)), parameter)


def data(*lengths):
    """Clients with so many examples, in batches of 4."""
    generator = np.random.default_rng(0)
    values = [generator.normal(size=(length, 5)).astype(np.float32) for length in lengths]
    return [tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4) for x in values]


# None, one batch, a part of one, several; more than the first two calls have.
LENGTHS = (6, 0, 4, 1, 9, 8, 3, 0, 2, 7, 5, 12, 1, 4)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS[:1], LENGTHS[1:2], LENGTHS[:2]], ids=len)
def test_a_process_with_variables_and_metrics(regression, both, lengths):
    process, clients = regression.process(), data(*lengths)

    def two_rounds():
        state = process.set_model_weights(process.initialize(), regression.weights)
        state = process.next(state, clients).state
        output = process.next(state, clients[::-1])
        return [process.get_model_weights(output.state).trainable, output.metrics["client_work"]["train"]["loss"]]

    assert np.any(both(two_rounds)[0] != regression.weights.trainable[0])


def test_arguments_of_any_shape_and_strings_with_zero_bytes(both):
    @tff.tensorflow.computation(
        tff.StructType([
            ("some", tff.TensorType(np.float32, [None])), ("text", np.str_), ("numbers", tff.SequenceType(np.int64)),
        ])
    )  # fmt: skip
    def work(own):
        total = own.numbers.reduce(tf.constant(0, tf.int64), lambda so_far, number: so_far + number)
        return tf.reduce_sum(own.some), tf.strings.length(own.text), total

    clients = [
        collections.OrderedDict(
            some=np.arange(number, dtype=np.float32) / 7,
            text=b"a\x00b\x00" * number,
            numbers=tf.data.Dataset.range(number).map(lambda value: value * value),
        )
        for number in range(6)
    ]
    computation = summed(work)
    found = both(lambda: computation(clients))
    assert (found[1], found[2]) == (4 * 15, sum(number**2 * (5 - number) for number in range(5)))


@tff.tensorflow.computation(np.float32)
def _stateful(x):
    """Reads what it has written, an initial value that is not zero, and one that is computed from another."""
    first = tf.Variable(7.0)
    second = tf.Variable(first.initial_value * 3.0)
    fresh = tf.Variable(tf.zeros([2]))
    with tf.control_dependencies([first.assign_add(x), second.assign_sub(x), fresh.scatter_nd_add([[1]], [x])]):
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total * first.assign_add(1.0) + second.read_value()),
            (0, tf.reduce_sum(fresh.read_value())),
        )[1]


@pytest.mark.parametrize("at_once", [1, 2, 40])
def test_variables_of_one_client_are_not_those_of_another(resident, both, monkeypatch, at_once):
    monkeypatch.setattr(resident, "_summing", context.Summing(at_once))
    computation = summed(_stateful)
    values = list(np.random.default_rng(1).normal(size=30).astype(np.float32))
    (total,) = both(lambda: computation(values))

    def alone(x):
        first, second, total = 7.0 + x, 21.0 - x, x
        for _ in range(3):
            first += 1.0
            total = total * first + second
        return total

    assert total == pytest.approx(sum(map(alone, values)), rel=1e-5)


def _random(x):
    return x + 0.0 * tf.random.normal([], seed=3)


def _in_a_function(x):
    @tf.function
    def drawn(value):
        return value * 1.0 + 0.0 * tf.random.uniform([], seed=3)

    return tf.while_loop(lambda i, _: i < 2, lambda i, value: (i + 1, drawn(value)), (0, x))[1]


def _not_assigned(x):
    """An error if x is not positive, also after a client for which it is."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="mine")

    def read():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

    def written():
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=x)]):
            return read()

    return tf.cond(x >= 0.0, written, read)


def _two_handles(x):
    handles = [tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="same") for _ in range(2)]
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handles[0], value=x)]):
        return tf.raw_ops.ReadVariableOp(resource=handles[1], dtype=tf.float32)


REFUSED = {
    _random: "RandomStandardNormal",
    _in_a_function: "RandomUniform",
    _not_assigned: "before it has a value",
    _two_handles: "two handles",
}


@pytest.mark.parametrize("work", REFUSED, ids=lambda work: work.__name__)
def test_work_that_leaves_something_behind_runs_client_by_client(both, caplog, work):
    computation = summed(tff.tensorflow.computation(work, np.float32))
    with caplog.at_level(logging.INFO):
        both(lambda: computation([0.0, 1.0, 1.0, 0.0]), together=False)
    form = forms.take_apart(computation)
    assert isinstance(form, forms.RoundForm)
    with pytest.raises(cohort_graph.NotInOneGraphError, match=REFUSED[work]) as caught:
        cohort_graph.cohort(form, 2)
    (reason,) = (record.message for record in caplog.records if "one by one" in record.message)
    assert reason == f"Clients are called one by one: {caught.value}."


def test_tables_and_shuffles_in_a_graph_are_refused():
    """TFF's map-reduce form has them in models only."""

    def table():
        made = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5.0, 7.0]), -1.0)
        return made.lookup(tf.constant(1))

    def shuffled():
        return tf.data.Dataset.range(4).shuffle(4, seed=1).reduce(tf.constant(0, tf.int64), lambda one, other: other)

    def cached():
        return tf.data.Dataset.range(4).cache().reduce(tf.constant(0, tf.int64), lambda one, other: other)

    for build, kind in ((table, "Table"), (shuffled, "Shuffle|Seed"), (cached, "Cache")):
        with tf.Graph().as_default() as graph:
            build()
        with pytest.raises(cohort_graph.NotInOneGraphError, match=kind):
            cohort_graph.check_confined(graph.as_graph_def())


def test_an_error_of_one_client_is_that_of_the_round(resident, monkeypatch):
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def work(numbers):
        return numbers.reduce(tf.constant(0, tf.int64), lambda so_far, number: so_far + number)

    def checked(number):
        with tf.control_dependencies(
            [tf.debugging.assert_less(number, tf.constant(3, tf.int64), "client is too long")]
        ):
            return number + 1

    computation = summed(work)
    monkeypatch.setattr(context, "_FEWEST", 1)
    good, bad = (tf.data.Dataset.range(length).map(checked) for length in (3, 4))
    assert computation([good] * 5) == 30
    with pytest.raises(Exception, match="client is too long"):
        computation([good, good, bad, good, good])
    assert computation([good] * 5) == 30
    with pytest.raises(TypeError, match="float32"):
        computation([good, good, tf.data.Dataset.from_tensors(1.0), good])
