"""Sums of clipped values inside the aggregator, which are released only with noise."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.grids import Grid
from tff_mf.queries import clipping

from .resident import tff_insides

# Number of values in one sum that were scaled, and number that were set to zero.
COUNTS = ("clipped", "zeroed")
# A quantized or compressed sum can enlarge a clipped value: up to 5.6 times with 8 bits of EncodedSumFactory at 4
# million coordinates, for a client that exploits the rounding.
_SUMS = (tff.aggregators.SumFactory, tff.aggregators.SecureSumFactory)


def check(factory: object, *, on_grid: bool) -> None:
    """Raises unless a factory is one of the sums that never enlarge a clipped value.

    A subclass of one of them may, and so may a secure sum of floats, which it rounds: with thresholds of ±1e7, a client
    of norm 1 and 170,000 coordinates has the norm 1.92.
    """
    if isinstance(factory, tff.aggregators.SecureModularSumFactory):
        raise InputTypeError(
            "record_aggregation_factory=SecureModularSumFactory is not exact: in TFF, a sum of int32 values with a "
            "modulus of 2^30 wraps around before the modulus is taken. Pass tff.aggregators.SecureSumFactory with "
            "thresholds of ±2^bits of the grid."
        )
    if type(factory) not in _SUMS:
        raise InputTypeError(
            f"record_aggregation_factory={factory!r} must be tff.aggregators.SumFactory or SecureSumFactory: other "
            "sums may enlarge a clipped value, which the guarantee does not cover."
        )
    if not on_grid and isinstance(factory, tff.aggregators.SecureSumFactory):
        raise InputValueError(
            "record_aggregation_factory=SecureSumFactory needs grid=: it rounds floats, which may enlarge a clipped "
            "value. Pass grid=tff_mf.Grid.auto(...) too, and tff.aggregators.SecureSumFactory(2**grid.bits)."
        )


def check_integers(factory: tff.aggregators.UnweightedAggregationFactory, grid: Grid) -> None:
    """Raises unless a sum is exact for the integers of a grid: a secure sum has its thresholds at ±2^bits."""
    if not isinstance(factory, tff.aggregators.SecureSumFactory):
        return
    upper, lower = tff_insides.thresholds(factory)
    if type(upper) is not int or upper != grid.largest_norm or lower not in (None, -grid.largest_norm):
        raise InputValueError(
            f"record_aggregation_factory has other thresholds than ±2^bits of grid={grid!r}: pass "
            f"tff.aggregators.SecureSumFactory({grid.largest_norm})."
        )


class ClippingSum(tff.aggregators.UnweightedAggregationFactory):
    """TFF's `SumFactory` for a server that trusts no client: each value is clipped where it is added.

    `accumulate` leaves the value of a client that follows the protocol unchanged to the bit, so that the sum equals
    `SumFactory`'s. Of any other value, the accumulator counts whether it was scaled (`clipped`) or set to zero
    (`zeroed`). These counts are exact and describe single clients: `report` drops them, so that no state, measurement
    or metric contains them. Operators who run `accumulate` and `merge` as stages of an export can read them.

    Formal guarantee: as for the query's `clip_again`, for every value that is added, whatever value of the right type a
    client sends.
    """

    def __init__(self, clip_again: Callable[[Any], tuple[Any, clipping.Clipped]]) -> None:
        self._clip_again = clip_again

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Returns the process that sums values of `value_type`, those that the query's `preprocess_record` returns."""
        specs, clip_again = tff.types.type_to_tf_tensor_specs(value_type), self._clip_again

        @tff.tensorflow.computation
        def zero() -> object:
            total = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
            return collections.OrderedDict(total=total, **dict.fromkeys(COUNTS, 0))

        sum_type = zero.type_signature.result

        @tff.tensorflow.computation(sum_type, value_type)
        def accumulate(accumulator: object, value: object) -> object:
            bounded, clipped = clip_again(value)
            counts = (tf.cast(happened, tf.int32) for happened in (clipped.scaled, clipped.zeroed))
            one = collections.OrderedDict(total=bounded, **dict(zip(COUNTS, counts, strict=True)))
            return tf.nest.map_structure(tf.add, accumulator, one)

        @tff.tensorflow.computation(sum_type, sum_type)
        def merge(one: object, other: object) -> object:
            return tf.nest.map_structure(tf.add, one, other)

        @tff.tensorflow.computation(sum_type)
        def report(accumulator: collections.OrderedDict) -> object:
            return accumulator["total"]

        @tff.federated_computation
        def initialize() -> object:
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
        def summed(state: tff.Value, value: tff.Value) -> tff.templates.MeasuredProcessOutput:
            total = tff.federated_aggregate(value, zero(), accumulate, merge, report)
            return tff.templates.MeasuredProcessOutput(state, total, tff.federated_value((), tff.SERVER))

        return tff.templates.AggregationProcess(initialize, summed)
