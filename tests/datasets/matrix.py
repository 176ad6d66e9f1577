"""Compares what two contexts of TFF read of clients' data, bit for bit."""

import functools
from collections.abc import Iterable
from typing import Any

import rounds
import tensorflow as tf
import tensorflow_federated as tff
from shapes import Shape

LOOPS = ("DATASET_REDUCE", "DATASET_ITERATOR")
_BUCKETS = 2**31 - 1


def _digested(so_far: tf.Tensor, element: Any) -> tf.Tensor:
    """Returns the hash of a hash and of every bit, shape and place of an element."""
    parts = [tf.io.serialize_tensor(part) for part in tf.nest.flatten(element)]
    return tf.strings.to_hash_bucket_fast(tf.strings.join([tf.strings.as_string(so_far), *parts], "|"), _BUCKETS)


@functools.cache
def digest(element_type: tff.Type, loop: str) -> tff.Computation:
    """Returns the computation of the sum of the clients' digests, with one of tff.learning's two loops."""

    @tff.tensorflow.computation(tff.SequenceType(element_type))
    @tf.function
    def of_client(dataset: tf.data.Dataset) -> tf.Tensor:
        digest = tf.constant(1, tf.int64)
        if loop == LOOPS[0]:
            return dataset.reduce(digest, _digested)
        for element in iter(dataset):
            digest = _digested(digest, element)
        return digest

    @tff.federated_computation(tff.FederatedType(of_client.type_signature.parameter, tff.CLIENTS))
    def summed(datasets: tff.Value) -> tff.Value:
        return tff.federated_sum(tff.federated_map(of_client, datasets))

    return summed


def read(shape: Shape, loop: str) -> int | str:
    """Returns the digest of a shape in the current context, or the type of error."""
    # The order of a dataset that is shuffled depends on this seed as well as on its own.
    tf.random.set_seed(3)
    element_type = tff.types.tensorflow_to_type(shape.client(0).element_spec)
    try:
        return int(digest(element_type, loop)(shape.clients()))
    except Exception as error:
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).splitlines()[:4])[:300]}"


def readings(combinations: Iterable[tuple[Shape, str]]) -> dict[str, int | str]:
    """Returns what the current context reads of each shape with the loop beside it, by name."""
    return {f"{shape.name}, {loop}": read(shape, loop) for shape, loop in combinations}


def models(combinations: Iterable[tuple[rounds.Task, str]]) -> dict[str, Any]:
    """Returns what the current context trains on each task with the loop beside it, by name; errors as text."""
    found: dict[str, Any] = {}
    for task, loop in combinations:
        try:
            weights, metrics = rounds.trained(task, loop)
            found[f"{task.name}, {loop}"] = [weight.tobytes().hex() for weight in weights], metrics
        except Exception as error:
            found[f"{task.name}, {loop}"] = _first_line(error)
    return found
