"""Makes up clients from the batches of an example, to move the aggregate as far as data can."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

_TIMES = 8
_FACTOR = 100.0


def scaled(client: Any, factor: float) -> Any | None:
    """Returns a client with the first batch of an example, its floating-point numbers times a factor, or `None`.

    Only one batch, since a client that takes several steps on such numbers would overflow, which makes its update zero.
    """
    return _mapped(client, lambda leaf: leaf * tf.cast(factor, leaf.dtype))


def poisoned(client: Any) -> Any | None:
    """Returns a client whose floating-point numbers are NaN, or `None` if the example has none."""
    return _mapped(client, lambda leaf: leaf * tf.cast(np.nan, leaf.dtype))


def enlarged(client: Any, times: int) -> Any | None:
    """Returns a client with each batch repeated `times` times, or `None` if the size of batches is fixed."""
    if not isinstance(client, tf.data.Dataset):
        return None
    free = all(spec.shape.rank and spec.shape[0] is None for spec in tf.nest.flatten(client.element_spec))
    return _over(client, lambda leaf: tf.concat([leaf] * times, axis=0)) if free else None


def repeated(client: Any, times: int) -> Any | None:
    """Returns a client with its data repeated `times` times, or `None` if it is neither a data set nor a list."""
    if isinstance(client, tf.data.Dataset):
        return client.repeat(times)
    return client * times if isinstance(client, list) else None


def neighbours(clients: Sequence[Any], hostile: Any) -> dict[str, Sequence[Any]]:
    """Returns a cohort, and cohorts that differ from it in one client, by a description of the difference."""
    first, rest = clients[0], clients[1:]
    found = {"nothing": clients, "the number of clients": rest, "one client's data": [*rest, rest[0]]}
    larger, invalid = repeated(first, _TIMES), poisoned(first)
    extreme = scaled(first, _FACTOR) if hostile is None else hostile
    if larger is not None:
        found["one client's examples"] = [larger, *rest]
    if extreme is not None:
        found["one client's hostile data"] = [extreme, *rest]
    if invalid is not None:
        found["one client's NaN"] = [invalid, *rest]
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
    """Returns a data set with each tensor changed, as constants: it contains no `map`."""
    parts = [tf.data.Dataset.from_tensors(tf.nest.map_structure(change, element)) for element in dataset]
    return functools.reduce(tf.data.Dataset.concatenate, parts)
