"""Training metrics that stay with the clients: what no noise covers is not released."""

import collections

import tensorflow_federated as tff


def withhold_metrics(metric_finalizers: object, local_unfinalized_metrics_type: object = None) -> tff.Computation:
    """The `metrics_aggregator=` of TFF's algorithms that releases nothing of what clients measure.

    TFF's own aggregators release the exact loss and number of examples of the clients that trained, without noise: the
    number alone tells whether a client took part. Evaluate the released model on clients that do not train instead.

    Formal guarantee: `metrics["client_work"]["train"]` is an empty structure, whatever clients measure.

    Args:
        metric_finalizers: What TFF passes, unused.
        local_unfinalized_metrics_type: What TFF passes for functional models, unused.

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
