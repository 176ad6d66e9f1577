"""Counts the clients whose values are rejected as not finite: an exact measurement, not to be released."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.queries import clipping

from . import _validate_factory


def count_rejected(
    aggregator: tff.aggregators.UnweightedAggregationFactory,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Returns an aggregator that also measures how many clients' values are not finite.

    `build_mf_aggregator` replaces such a value by zero in any case, and reports it nowhere else.

    The measurement `rejected_clients` is exact, without noise, and **not covered by the guarantee**: it tells whether a
    client took part. Use it in simulations, or where its readers may see the clients' own values; never release it.

    Args:
        aggregator: An aggregator of `build_mf_aggregator`. Pass that one, not the result, to `CheckpointManager`.

    Example:
        >>> import numpy as np
        >>> import tff_mf
        >>> from tff_mf import aggregators
        >>> plain = aggregators.build_mf_aggregator(tff_mf.Identity(), clip_norm=1.0, noise_multiplier=1.0,
        ...                                         clients_per_round=2)
        >>> process = count_rejected(plain).create(tff.TensorType(np.float32, [2]))
        >>> str(process.next.type_signature.result.measurements.member.rejected_clients)
        'int32'

    Raises:
        InputTypeError: If `aggregator` is not an unweighted aggregation factory.
    """
    _validate_factory.unweighted(aggregator, "pass the result of build_mf_aggregator")

    @tff.tensorflow.computation
    def rejected(value: object) -> tf.Tensor:
        return tf.cast(tf.logical_not(clipping.finite(tf.nest.flatten(value))), tf.int32)

    def measure(value: tff.Value) -> collections.OrderedDict[str, tff.Value]:
        counted = tff.federated_map(rejected, value)
        return collections.OrderedDict(rejected_clients=tff.federated_sum(counted))

    return tff.aggregators.add_measurements(aggregator, client_measurement_fn=measure)
