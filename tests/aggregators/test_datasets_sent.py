"""Clients' datasets and lists of elements, as they are sent to the worker, which reads what TFF's own context does."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf import aggregators


def looked_up(numbers, *vocabularies):
    """A worker names tables by their content, so that it keeps one for all clients."""
    tables = [
        tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64)), num_oov_buckets=1
        )
        for words in vocabularies
    ]
    return numbers.map(lambda number: sum(table.lookup(tf.strings.as_string(number)) for table in tables))


@tf.function
def halved(number):
    return tf.while_loop(lambda left: left > 3, lambda left: (left // 2,), (number,))[0]


def changed(*element):
    """Another element of the same types, computed so that no map is an identity."""

    def of_tensor(tensor):
        if tensor.dtype == tf.string:
            return tf.strings.join([tensor, "!"])
        return tf.logical_not(tensor) if tensor.dtype == tf.bool else tensor * 2 + tf.cast(1, tensor.dtype)

    return tf.nest.map_structure(of_tensor, element[0] if len(element) == 1 else element)


def with_fused_maps(dataset):
    options = tf.data.Options()
    options.experimental_optimization.map_fusion = True
    options.experimental_optimization.map_and_filter_fusion = True
    options.threading.private_threadpool_size = 1
    return dataset.map(changed).map(changed).filter(lambda number: number % 3 > 0).with_options(options)


# Pipelines of numbers, which share a type, so that a computation of them is traced once.
OF_NUMBERS = {
    "a condition": lambda numbers: numbers.map(lambda n: tf.cond(n % 2 == 0, lambda: n // 2, lambda: 3 * n)),
    "a function that is called": lambda numbers: numbers.map(lambda number: halved(number) + halved(number + 1)),
    "a called function itself": lambda numbers: numbers.map(halved).map(lambda number: halved(number) + 1),
    "datasets in a dataset": lambda numbers: numbers.flat_map(
        lambda number: tf.data.Dataset.range(number).map(lambda inner: inner * number)
    ),
    "scan": lambda numbers: numbers.scan(tf.constant(0, tf.int64), lambda so_far, number: (so_far + number, so_far)),
    "interleave": lambda numbers: numbers.interleave(tf.data.Dataset.range, cycle_length=2),
    "shuffle and repeat": lambda numbers: numbers.shuffle(5, 1).repeat(2).map(changed),
    "fused maps": with_fused_maps,
    "a table": lambda numbers: looked_up(numbers, ["2", "4", "1"]),
    "another table": lambda numbers: looked_up(numbers, ["4", "2", "1"]),
    "one table twice, and another": lambda numbers: looked_up(numbers, ["2", "4"], ["5", "2"], ["2", "4"]),
    "window": lambda numbers: numbers.window(3, shift=2).flat_map(lambda window: window.map(changed)),
    "ragged": lambda numbers: (
        numbers.map(tf.range).ragged_batch(3).map(lambda rows: tf.reduce_sum(rows.to_tensor()) + rows.nrows())
    ),
}


def everything(client):
    """Seven examples in which every type and kind of structure occurs."""
    numbers = np.arange(7) * 3 % 5 + client
    kinds = (np.int32, np.int64, np.uint8, np.float16, np.float32, np.float64)
    texts = np.array([word + str(client) for word in ("", "a", "bb", "ccc", "é", "to be", "x" * 40)])
    shaped = np.arange(42, dtype=np.float32).reshape(7, 2, 3) / 7 + client
    parts = collections.OrderedDict(z=tuple((numbers / 3).astype(kind) for kind in kinds), b=numbers % 2 == 0)
    return tf.data.Dataset.from_tensor_slices((parts, (texts, shaped)))


def in_order(client):
    """The same with sorted names, as lists are sent without TFF's conversion, and with single texts."""

    def sorted_names(parts, others):
        return collections.OrderedDict(b=parts["b"], others=others, text=others[0], z=parts["z"])

    return everything(client).map(sorted_names)


def datasets_of(name):
    """The datasets of three clients, the last of which is empty."""
    if name in OF_NUMBERS:
        datasets = [OF_NUMBERS[name](tf.data.Dataset.range(1, last)) for last in (8, 5)]
    elif name == "in order":
        datasets = [in_order(client) for client in (0, 1)]
    else:
        datasets = [everything(client).map(changed).batch(3).map(changed).prefetch(2) for client in (0, 1)]
    return [*datasets, datasets[0].take(0)]


def digested(so_far, element):
    """The hash of a hash and of every bit, shape and place of an element."""
    parts = [tf.io.serialize_tensor(part) for part in tf.nest.flatten(element)]
    return tf.strings.to_hash_bucket_fast(tf.strings.join([tf.strings.as_string(so_far), *parts], "|"), 2**31 - 1)


@functools.cache
def digest(element_type, loop):
    """The computation of the sum of the clients' digests, with one of tff.learning's two ways through a dataset."""

    @tff.tensorflow.computation(tff.SequenceType(element_type))
    @tf.function
    def of_client(dataset):
        digest = tf.constant(1, tf.int64)
        if loop == "reduce":
            return dataset.reduce(digest, digested)
        for element in iter(dataset):
            digest = digested(digest, element)
        return digest

    @tff.federated_computation(tff.FederatedType(of_client.type_signature.parameter, tff.CLIENTS))
    def summed(datasets):
        return tff.federated_sum(tff.federated_map(of_client, datasets))

    return summed


def test_clients_data_of_every_shape_is_read_as_tffs_own_context_reads_it():
    def of_all():
        found = {}
        for number, name in enumerate([*OF_NUMBERS, "everything", "in order"]):
            # The order of a dataset that is shuffled depends on this seed as well as on its own.
            tf.random.set_seed(3)
            datasets = datasets_of(name)
            computation = digest(
                tff.types.tensorflow_to_type(datasets[0].element_spec), ("reduce", "iterate")[number % 2]
            )
            found[name] = int(computation(datasets))
            if name in ("everything", "in order", "fused maps"):
                assert found[name] == int(computation([list(each.as_numpy_iterator()) for each in datasets]))
        return found

    expected = of_all()
    with aggregators.resident_context():
        assert of_all() == expected
    tf.random.set_seed(None)
    # A digest that did not depend on the data would be the same for all.
    assert len(set(expected.values())) == len(expected)
