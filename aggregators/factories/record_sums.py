"""Sums of clipped values inside the aggregator, which are released only with noise."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.queries import clipping

from ..resident import tff_insides

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


def check_integers(factory: tff.aggregators.UnweightedAggregationFactory, grid: tff_mf.Grid) -> None:
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


def distribute_aggregate_form(computation: tff.Computation) -> tff.backends.mapreduce.DistributeAggregateForm:
    """Returns TFF's distribute-aggregate form of a computation, such as the `next` of a learning process.

    TFF's own `get_distribute_aggregate_form_for_computation` refuses every `tff.federated_aggregate`: the form has a
    fixed list of sums, with no server computation between them. Each sum that clips is therefore replaced by TFF's
    plain sum. For clients that follow the protocol the result is the same; this form does not bound other clients. A
    computation without such a form raises TFF's `TypeError`.

    Example:
        >>> import tff_mf
        >>> from tff_mf import aggregators
        >>> mean = aggregators.build_mf_aggregator(
        ...     tff_mf.Identity(), clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2
        ... ).create(tff.TensorType(np.float32, [2]))
        >>> @tff.federated_computation(*mean.next.type_signature.parameter)
        ... def one_round(state, value):
        ...     output = mean.next(state, value)
        ...     return output.state, output.result
        >>> str(distribute_aggregate_form(one_round).client_work.type_signature.result[0])
        '{float32[2]}@CLIENTS'
    """
    return tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(_with_plain_sums(computation))


def _with_plain_sums(computation: tff.Computation) -> tff.Computation:
    framework = tff.framework

    def plain(block: tff.framework.ComputationBuildingBlock) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
        if not isinstance(block, framework.Call) or not isinstance(block.function, framework.Intrinsic):
            return block, False
        if block.function.uri != framework.FEDERATED_AGGREGATE.uri or not _clips(block.function.type_signature):
            return block, False
        argument = block.argument
        value = argument[0] if isinstance(argument, framework.Struct) else framework.Selection(argument, index=0)
        sum_type = tff.FunctionType(value.type_signature, block.type_signature)
        return framework.Call(framework.Intrinsic(framework.FEDERATED_SUM.uri, sum_type), value), True

    changed, found = framework.transform_postorder(computation.to_building_block(), plain)
    return framework.ConcreteComputation.from_building_block(changed) if found else computation


def _clips(aggregate: tff.FunctionType) -> bool:
    """Returns whether an intrinsic belongs to a `ClippingSum`, judged by the type of its accumulator."""
    value, zero = aggregate.parameter[0], aggregate.parameter[1]
    expected = tff.StructType([("total", value.member), *((count, np.int32) for count in COUNTS)])
    return zero.is_equivalent_to(expected)
