"""Reads a data set into arrays, in which each example has a fixed place."""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError


def read_examples(dataset: tf.data.Dataset, *, examples: int) -> Any:
    """Returns the examples of a `tf.data.Dataset` as arrays, after reading it once.

    An order refers to examples by their places. A data set that is read again may have them in other places, because it
    shuffles, reads files concurrently, or augments: an example would then take part more often than its order says.
    Therefore the data set is read once, and training takes the arrays.

    Args:
        dataset: A data set whose elements are single examples, not batches.
        examples: Their number N.

    Returns:
        The structure of an element, with arrays of one entry for each example.

    Example:
        >>> read_examples(tf.data.Dataset.range(3), examples=3)
        array([0, 1, 2])

    Raises:
        InputTypeError: If `dataset` is not a data set.
        InputValueError: If it has more or fewer examples.
    """
    validation.instance("dataset", dataset, tf.data.Dataset, "pass a data set of single examples")
    examples = validation.whole("examples", examples)
    # One more than there should be, so that an endless data set ends here.
    found = list(dataset.take(examples + 1).as_numpy_iterator())
    if len(found) != examples:
        count = "more" if len(found) > examples else f"only {len(found)}"
        raise InputValueError(
            f"dataset has {count} elements, but examples={examples}: its elements must be single examples; unbatch() "
            "takes batches apart, and examples= is their number."
        )
    return tf.nest.map_structure(lambda *leaves: np.stack(leaves), *found)
