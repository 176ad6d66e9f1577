"""Validates aggregation factories that are passed as arguments."""

import tensorflow_federated as tff

from tff_mf import _validate


def unweighted(aggregator: object, remedy: str) -> None:
    """Raises unless `aggregator` is an unweighted aggregation factory.

    Raises:
        InputTypeError: If it is anything else; the message ends with `remedy`.
    """
    _validate.instance("aggregator", aggregator, tff.aggregators.UnweightedAggregationFactory, remedy)
