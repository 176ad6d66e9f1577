"""Sums of clipped values inside of the aggregator, of which nothing is released but with noise."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.noise import _clipping

# Of the values of one sum: how many were scaled, and how many were made zero.
COUNTS = ("clipped", "zeroed")
# A quantized or compressed sum enlarges a clipped value: by 5.6 times with 8 bits of EncodedSumFactory at 4 million
# coordinates, for a client that makes the most of it.
_SUMS = (tff.aggregators.SumFactory, tff.aggregators.SecureSumFactory)


def check(factory: object) -> None:
    """Raises unless a factory is one of the sums that are known to enlarge no clipped value.

    Raises:
        InputTypeError: If it is any other, a subclass of one of them among those.
    """
    if type(factory) not in _SUMS:
        raise InputTypeError(
            f"record_aggregation_factory={factory!r} must be tff.aggregators.SumFactory or SecureSumFactory: another "
            "sum may enlarge a clipped value, which the guarantee does not cover."
        )


class ClippingSum(tff.aggregators.UnweightedAggregationFactory):
    """TFF's `SumFactory` for a server that trusts no client: each value is clipped where it is added.

    A client that runs what it was given sends what `accumulate` passes bit for bit, so that the sum is the one of
    `SumFactory`. Of any other value, the accumulator counts whether it was scaled (`clipped`) or made zero
    (`zeroed`). These counts are exact and say something of single clients: `report` drops them, so that no state,
    measurement or metric has them. Who runs `accumulate` and `merge` as stages of an export can read them.

    Formal guarantee: that of `clip_record` for every value that is added, whatever a client sends in the type that it
    is to send.

    Args:
        clip_norm: Bound on the norm of a value, as `checked_clip_norm` returns it.
    """

    def __init__(self, clip_norm: np.float32) -> None:
        self._clip_norm = clip_norm

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Returns the process that sums values of `value_type`, in the types that `clip_record` returns."""
        specs, clip_norm = tff.types.type_to_tf_tensor_specs(value_type), self._clip_norm

        @tff.tensorflow.computation
        def zero() -> object:
            total = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
            return collections.OrderedDict(total=total, **dict.fromkeys(COUNTS, 0))

        sum_type = zero.type_signature.result

        @tff.tensorflow.computation(sum_type, value_type)
        def accumulate(accumulator: object, value: object) -> object:
            clipped = _clipping.clip_again(tf.nest.flatten(value), tf.constant(clip_norm))
            counts = (tf.cast(happened, tf.int32) for happened in (clipped.scaled, clipped.zeroed))
            one = collections.OrderedDict(
                total=tf.nest.pack_sequence_as(value, clipped.leaves), **dict(zip(COUNTS, counts, strict=True))
            )
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
    fixed list of sums, and no computation of the server's between them. So here each sum that clips becomes TFF's plain
    one. For clients that do as they are told these are the same numbers; others are bound by nothing in this form.

    Args:
        computation: From a state and the clients' data to a state and an output.

    Raises:
        TypeError: If the computation has no such form.

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
    """Returns whether an intrinsic is the one of a `ClippingSum`, by the type of its accumulator."""
    value, zero = aggregate.parameter[0], aggregate.parameter[1]
    expected = tff.StructType([("total", value.member), *((count, np.int32) for count in COUNTS)])
    return zero.is_equivalent_to(expected)


class UnmeasuredSum(tff.aggregators.UnweightedAggregationFactory):
    """A sum whose measurements are withheld: they are exact, and say something of single clients.

    TFF's `SecureSumFactory` measures how many clients had a value beyond its thresholds, without noise.

    Formal guarantee: what `inner` sums in one round depends on the values of that round alone, since it has no state.
    A threshold that follows earlier values would let one client change what all others contribute after it, which
    no bound on its own values covers.

    Args:
        inner: The sum.
    """

    def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory) -> None:
        self._inner = inner

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Returns the process that sums values of `value_type`.

        Raises:
            InputValueError: If the sum keeps a state from round to round.
        """
        process = self._inner.create(value_type)
        state_type = process.initialize.type_signature.result
        if tff.types.contains(state_type, lambda part: isinstance(part, tff.TensorType)):
            raise InputValueError(
                f"record_aggregation_factory={self._inner!r} keeps a state from round to round ({state_type.member}), "
                "through which a client would change what others contribute later: give it constant thresholds."
            )

        @tff.federated_computation(state_type, tff.FederatedType(value_type, tff.CLIENTS))
        def unmeasured(state: tff.Value, value: tff.Value) -> tff.templates.MeasuredProcessOutput:
            output = process.next(state, value)
            nothing = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(output.state, output.result, nothing)

        return tff.templates.AggregationProcess(process.initialize, unmeasured)
