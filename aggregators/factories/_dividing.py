"""Refuses TFF's factories that would divide a noised value by an exact number or weight of clients."""

import sys
from typing import Any

import tensorflow_federated as tff

from tff_mf.errors import InputTypeError

_DIVIDING = {
    factory.create.__code__: factory.__name__
    for factory in (tff.aggregators.MeanFactory, tff.aggregators.UnweightedMeanFactory)
}


def refuse() -> None:
    """Raises if one of TFF's mean factories is among the callers, at any depth.

    Formal guarantee: no process is created in which TFF's `MeanFactory` or `UnweightedMeanFactory`, or a class that
    inherits their `create`, divides a noised value. A factory cannot see what it is wrapped in, except that the
    wrapper's `create` is on the call stack; it is recognized there by its code object, not by its name. Only
    `check_process` finds other factories that divide.

    Raises:
        InputTypeError: If a mean factory is among the callers.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = _DIVIDING.get(frame.f_code)
        if name is not None:
            raise InputTypeError(
                f"tff.aggregators.{name} would divide the noised sum by the exact number or weight of the clients "
                "that reported, which voids the guarantee: the noise would shrink as more clients report. Pass the "
                "aggregator of build_mf_aggregator itself, which divides by the constant clients_per_round; where an "
                "algorithm needs a weighted one, tff.aggregators.as_weighted_aggregator(aggregator)."
            )
        frame = frame.f_back
