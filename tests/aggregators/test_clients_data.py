"""Clients' data of every type, structure and pipeline: the resident context reads and trains what TFF's own does."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf import aggregators

EXAMPLES = 7
# tff.learning's two ways through a dataset.
LOOPS = ("DATASET_REDUCE", "DATASET_ITERATOR")
WORDS = ("", "a", "bb", "ccc", "é", "to be", "x" * 40)


def numbers(dtype, part=1):
    return lambda client: ((np.arange(EXAMPLES) * 3 % 5 + client) / part).astype(dtype)


# From the number of a client to its examples, along the first dimension.
TYPES = [
    *(numbers(dtype) for dtype in (np.int32, np.int64, np.uint8)),
    lambda client: np.arange(EXAMPLES) % (2 + client) == 0,
    *(numbers(dtype, 3) for dtype in (np.float16, np.float32, np.float64)),
    lambda client: np.array([word + str(client) for word in WORDS]),
    lambda client: np.arange(EXAMPLES * 2, dtype=np.int32).reshape(EXAMPLES, 2) + client,
    lambda client: np.arange(EXAMPLES * 6, dtype=np.float32).reshape(EXAMPLES, 2, 3) / 7 + client,
]
STRUCTURES = [
    lambda value: value,
    lambda value: (value, np.arange(EXAMPLES, dtype=np.int32)),
    lambda value: collections.OrderedDict(b=value, a=np.arange(EXAMPLES, dtype=np.int64)),
    lambda value: (collections.OrderedDict(x=(value, value), z=np.ones(EXAMPLES, bool)), value),
]


def changed(*element):
    """Another element of the same type, computed so that no map is an identity."""

    def of_tensor(tensor):
        if tensor.dtype == tf.string:
            return tf.strings.join([tensor, "!"])
        return tf.logical_not(tensor) if tensor.dtype == tf.bool else tensor * 2 + tf.cast(1, tensor.dtype)

    return tf.nest.map_structure(of_tensor, element[0] if len(element) == 1 else element)


def first(*element):
    return tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(tf.nest.flatten(element)[0]), 3)


def padded(dataset):
    def grown(*element):
        parts = element[0] if len(element) == 1 else element
        return tf.nest.map_structure(lambda part: tf.repeat(tf.reshape(part, [-1])[:1], 1 + first(parts)), parts)

    return dataset.map(grown).padded_batch(3)


def with_options(**given):
    options = tf.data.Options()
    for name, value in given.items():
        *groups, name = name.split("__")
        setattr(functools.reduce(getattr, groups, options), name, value)
    return lambda dataset: dataset.with_options(options)


FUSED = dict.fromkeys(("map_fusion", "filter_fusion", "map_and_filter_fusion"), True)
PIPELINES = {
    "as it is": lambda dataset: dataset,
    "map": lambda dataset: dataset.map(changed),
    "parallel map": lambda dataset: dataset.map(changed, num_parallel_calls=tf.data.AUTOTUNE),
    "two maps": lambda dataset: dataset.map(changed).map(changed),
    "batch": lambda dataset: dataset.batch(3),
    "batch and map": lambda dataset: dataset.batch(3).map(changed).prefetch(2),
    "map and batch": lambda dataset: dataset.map(changed).batch(3, drop_remainder=True),
    "padded_batch": padded,
    "shuffle": lambda dataset: dataset.shuffle(5, seed=1).map(changed),
    "repeat": lambda dataset: dataset.map(changed).repeat(3),
    "shuffle and repeat": lambda dataset: dataset.shuffle(5, 1, reshuffle_each_iteration=True).repeat(2).map(changed),
    "take": lambda dataset: dataset.map(changed).take(4),
    "skip": lambda dataset: dataset.skip(2).map(changed),
    "prefetch": lambda dataset: dataset.map(changed).prefetch(tf.data.AUTOTUNE),
    "interleave": lambda dataset: tf.data.Dataset.range(2).interleave(
        lambda number: dataset.skip(number).map(changed), cycle_length=2, block_length=2
    ),
    "flat_map": lambda dataset: tf.data.Dataset.range(3).flat_map(lambda number: dataset.take(number).map(changed)),
    "cache": lambda dataset: dataset.map(changed).cache().repeat(2),
    "filter": lambda dataset: dataset.filter(lambda *element: first(*element) > 0).map(changed),
    "take_while": lambda dataset: dataset.map(changed).take_while(lambda *element: first(*element) < 2),
    "zip": lambda dataset: tf.data.Dataset.zip((dataset.map(changed), dataset.skip(1))),
    "concatenate": lambda dataset: dataset.map(changed).concatenate(dataset),
    "window": lambda dataset: dataset.enumerate().map(lambda number, element: element).map(changed),
    "unbatch": lambda dataset: dataset.batch(3).map(changed).unbatch(),
    "group_by_window": lambda dataset: dataset.group_by_window(
        lambda *element: first(*element), lambda _, group: group.batch(4).map(changed), window_size=4
    ),
    "private threads": lambda dataset: with_options(threading__private_threadpool_size=1)(dataset.map(changed)),
    "one thread each": lambda dataset: with_options(threading__max_intra_op_parallelism=1)(dataset.map(changed)),
    "out of order": lambda dataset: with_options(deterministic=True)(dataset.map(changed, num_parallel_calls=2)),
    "slack": lambda dataset: with_options(experimental_slack=True)(dataset.map(changed).prefetch(2)),
    "fused maps": lambda dataset: with_options(
        **{f"experimental_optimization__{name}": value for name, value in FUSED.items()}
    )(dataset.map(changed).map(changed).batch(2)),
    "a list": lambda dataset: dataset.map(changed).batch(4),
}
RAGGED = {
    "ragged, padded in a map": lambda dataset: dataset.batch(3).map(
        lambda rows: (rows.to_tensor(), rows.row_lengths())
    ),
    "ragged, padded_batch": lambda dataset: dataset.map(lambda row: row + 1).padded_batch(3),
    "ragged, dense_to_ragged_batch": lambda dataset: dataset.ragged_batch(2).map(
        lambda rows: rows.to_tensor(shape=[None, 5])
    ),
    "ragged, reduced": lambda dataset: dataset.map(lambda row: tf.reduce_sum(row)),
}


def ragged(client):
    rows = [list(range(client, client + length)) for length in (2, 0, 3, 1, 4, 1, 2)]
    return tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)


def datasets_of(name):
    """The datasets of three clients, the last of which is empty. Neighbours share a type, so that it is traced once."""
    if name in RAGGED:
        values, pipeline = [ragged(client) for client in (0, 1)], RAGGED[name]
    else:
        group = list(PIPELINES).index(name) // 3
        values, pipeline = [STRUCTURES[group % 4](TYPES[group](client)) for client in (0, 1)], PIPELINES[name]
    datasets = [pipeline(tf.data.Dataset.from_tensor_slices(value)) for value in values]
    return [*datasets, datasets[0].take(0)]


def digested(so_far, element):
    """The hash of a hash and of every bit, shape and place of an element."""
    parts = [tf.io.serialize_tensor(part) for part in tf.nest.flatten(element)]
    return tf.strings.to_hash_bucket_fast(tf.strings.join([tf.strings.as_string(so_far), *parts], "|"), 2**31 - 1)


@functools.cache
def digest(element_type, loop):
    """The computation of the sum of the clients' digests, with one of the loops."""

    @tff.tensorflow.computation(tff.SequenceType(element_type))
    @tf.function
    def of_client(dataset):
        digest = tf.constant(1, tf.int64)
        if loop == LOOPS[0]:
            return dataset.reduce(digest, digested)
        for element in iter(dataset):
            digest = digested(digest, element)
        return digest

    @tff.federated_computation(tff.FederatedType(of_client.type_signature.parameter, tff.CLIENTS))
    def summed(datasets):
        return tff.federated_sum(tff.federated_map(of_client, datasets))

    return summed


# CI reads one in six of the pipelines.
READ = [(name, LOOPS[(number // 3 + number // 12) % 2]) for number, name in enumerate([*PIPELINES, *RAGGED])]


def test_clients_data_of_every_shape_is_read_as_tffs_own_context_reads_it(request):
    def of_all():
        found = {}
        for name, loop in READ if request.config.getoption("--long") else READ[::6]:
            # The order of a dataset that is shuffled depends on this seed as well as on its own.
            tf.random.set_seed(3)
            datasets = datasets_of(name)
            spec = tff.types.tensorflow_to_type(datasets[0].element_spec)
            as_lists = [list(each.as_numpy_iterator()) for each in datasets] if name == "a list" else datasets
            found[name] = int(digest(spec, loop)(as_lists))
        return found

    expected = of_all()
    with aggregators.resident_context():
        assert of_all() == expected
    # A digest that did not depend on the data would be the same for all; two pipelines may well read the same.
    assert len(set(expected.values())) >= len(expected) - 4
