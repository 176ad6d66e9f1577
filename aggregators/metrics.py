"""Measurements of clients, withheld where no noise covers them; and counts of rounds of noise."""

import collections
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_mf.base import validation
from tff_mf.noise.tensorflow import NoiseState


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
    """
    remedy = "pass an unweighted aggregator, such as tff.aggregators.zeroing_factory around build_mf_aggregator's"
    validation.instance("aggregator", aggregator, tff.aggregators.UnweightedAggregationFactory, remedy)
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


_RESTARTED = ("inner_query_state", "indicator_state")


def rounds_drawn(state: Any) -> dict[str, int]:
    """Returns for each noise in a state the number of rounds for which it was drawn, over all its restarts.

    This is the state's own count: every `next` of the process adds one, whatever the program counts.

    Args:
        state: A process's state, or any structure that contains one.

    Returns:
        Rounds by the fingerprint of the noise, which is `MFAggregationFactory.fingerprint` for the aggregator's sums.
        The smaller number if two noises have the same fingerprint.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> query = queries.build_query(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                             noise_multiplier=8.0)
        >>> _, state, _ = query.get_noised_result(tf.zeros([2]), query.initial_global_state())
        >>> rounds_drawn({"server": state}) == {query.fingerprint.hex(): 1}
        True
    """
    drawn: dict[str, int] = {}

    def note(fingerprint: str, rounds: int) -> None:
        drawn[fingerprint] = min(rounds, drawn.get(fingerprint, rounds))

    def visit(node: object) -> object | None:
        if isinstance(node, NoiseState):
            note(np.asarray(node.fingerprint).astype("<i8").tobytes().hex(), int(np.asarray(node.round)))
            return node
        if isinstance(node, tuple) and getattr(node, "_fields", ()) == _RESTARTED:
            # A restart resets the noise's own round to 0, whereas this counter continues.
            inner, total = node
            for fingerprint in rounds_drawn(inner):
                note(fingerprint, int(np.asarray(total)))
            return node
        return None

    tree.traverse(visit, state)
    return drawn
