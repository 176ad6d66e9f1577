"""Validates aggregation factories that are passed as arguments."""

import tensorflow_federated as tff

from tff_mf.base import validation


def unweighted(aggregator: object, remedy: str) -> None:
    """Raises unless `aggregator` is an unweighted aggregation factory.

    Raises:
        InputTypeError: If it is anything else; the message ends with `remedy`.
    """
    validation.instance("aggregator", aggregator, tff.aggregators.UnweightedAggregationFactory, remedy)
