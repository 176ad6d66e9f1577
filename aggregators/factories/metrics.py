"""Withholds metrics and measurements of clients, which no noise covers."""

import collections

import tensorflow_federated as tff

from . import _validate_factory


def withhold_metrics(metric_finalizers: object, local_unfinalized_metrics_type: object = None) -> tff.Computation:
    """The `metrics_aggregator=` of TFF's algorithms that releases nothing that clients measure.

    TFF's own aggregators release the exact loss and number of examples of the clients that trained, without noise: the
    number alone tells whether a client took part. Evaluate the released model on clients that do not train instead.

    Formal guarantee: `metrics["client_work"]["train"]` is an empty structure, whatever clients measure.

    Args:
        metric_finalizers: Passed by TFF, unused.
        local_unfinalized_metrics_type: Passed by TFF for functional models, unused.

    Returns:
        The computation from the clients' metrics to an empty structure at the server.

    Example:
        >>> import numpy as np
        >>> nothing = withhold_metrics(None)
        >>> def released(loss):
        ...     return nothing(loss)
        >>> loss_of_clients = tff.FederatedType(np.float32, tff.CLIENTS)
        >>> str(tff.federated_computation(released, loss_of_clients).type_signature)
        '({float32}@CLIENTS -> <>@SERVER)'
    """
    del metric_finalizers, local_unfinalized_metrics_type

    @tff.federated_computation
    def nothing(client_metrics: object) -> object:
        del client_metrics
        return tff.federated_value(collections.OrderedDict(), tff.SERVER)

    return nothing


def withhold_measurements(
    aggregator: tff.aggregators.UnweightedAggregationFactory,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Returns an aggregator with the same state and result that measures nothing.

    TFF's factories around an aggregator measure their effect exactly: `zeroing_factory` reports the number of clients
    that it zeroed, which tells whether a given client was among them. The mechanism's own measurements are withheld
    too; they are not secret, and the state contains them.

    Formal guarantee: the measurements are an empty structure; state and result are the same as `aggregator`'s.

    Args:
        aggregator: The aggregator whose measurements are withheld.

    Example:
        >>> import numpy as np
        >>> silent = withhold_measurements(tff.aggregators.zeroing_factory(1.0, tff.aggregators.SumFactory()))
        >>> process = silent.create(tff.TensorType(np.float32))
        >>> str(process.next.type_signature.result.measurements)
        '<>@SERVER'

    Raises:
        InputTypeError: If `aggregator` is not an unweighted aggregation factory.
    """
    _validate_factory.unweighted(
        aggregator,
        "pass an unweighted aggregator, such as tff.aggregators.zeroing_factory around build_mf_aggregator's",
    )
    return _Unmeasured(aggregator)


class _Unmeasured(tff.aggregators.UnweightedAggregationFactory):
    """See `withhold_measurements`."""

    def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory) -> None:
        self._inner = inner

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        inner = self._inner.create(value_type)

        @tff.federated_computation(inner.state_type, tff.FederatedType(value_type, tff.CLIENTS))
        def advance(state: tff.Value, value: tff.Value) -> tff.templates.MeasuredProcessOutput:
            output = inner.next(state, value)
            nothing = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(output.state, output.result, nothing)

        return tff.templates.AggregationProcess(inner.initialize, advance)
