"""Sums of clipped values inside of the aggregator, of which nothing is released but with noise."""

import tensorflow_federated as tff

from tff_mf.errors import InputTypeError, InputValueError

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
