"""Clients that nobody has: made of an example's batches, to move the aggregate as far as data can."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

_TIMES = 8
_FACTOR = 100.0


def scaled(client: Any, factor: float) -> Any | None:
    """Returns a client with one batch of an example, its numbers of a float type times a factor, or `None`.

    One batch: a client that takes several steps on such numbers overflows, and its update counts as zero.
    """
    return _mapped(client, lambda leaf: leaf * tf.cast(factor, leaf.dtype))


def poisoned(client: Any) -> Any | None:
    """Returns a client whose numbers are no numbers, or `None` if an example has none of a float type."""
    return _mapped(client, lambda leaf: leaf * tf.cast(np.nan, leaf.dtype))


def enlarged(client: Any, times: int) -> Any | None:
    """Returns a client with so many times the examples in each batch, or `None` if batches may not be of any size."""
    if not isinstance(client, tf.data.Dataset):
        return None
    free = all(spec.shape.rank and spec.shape[0] is None for spec in tf.nest.flatten(client.element_spec))
    return _over(client, lambda leaf: tf.concat([leaf] * times, axis=0)) if free else None


def repeated(client: Any, times: int) -> Any | None:
    """Returns a client with its data so many times over, or `None` if it is no data set and no list."""
    if isinstance(client, tf.data.Dataset):
        return client.repeat(times)
    return client * times if isinstance(client, list) else None


def neighbours(clients: Sequence[Any], hostile: Any) -> dict[str, Sequence[Any]]:
    """Returns a cohort, and those that differ from it in what one client has, by what that is."""
    first, rest = clients[0], clients[1:]
    found = {"nothing": clients, "the number of clients": rest, "one client's data": [*rest, rest[0]]}
    larger = repeated(first, _TIMES)
    extreme = scaled(first, _FACTOR) if hostile is None else hostile
    if larger is not None:
        found["one client's examples"] = [larger, *rest]
    if extreme is not None:
        found["one client's hostile data"] = [extreme, *rest]
    return found


def _mapped(client: Any, change: Callable[[Any], Any]) -> Any | None:
    def each(leaf: Any) -> Any:
        return change(leaf) if leaf.dtype.is_floating else leaf

    if isinstance(client, tf.data.Dataset):
        has_floats = any(spec.dtype.is_floating for spec in tf.nest.flatten(client.element_spec))
        return _over(client.take(1), each) if has_floats else None
    if isinstance(client, list) and client:
        batch = tree.map_structure(tf.convert_to_tensor, client[0])
        has_floats = any(leaf.dtype.is_floating for leaf in tree.flatten(batch))
        return [tree.map_structure(lambda leaf: each(leaf).numpy(), batch)] if has_floats else None
    return None


def _over(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns a data set with each tensor changed. It holds what it was made of: no `map` is left in it."""
    parts = [tf.data.Dataset.from_tensors(tf.nest.map_structure(change, element)) for element in dataset]
    return functools.reduce(tf.data.Dataset.concatenate, parts)
