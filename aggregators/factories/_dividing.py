"""Refuses TFF's factories that would divide a noised value by an exact number or weight of clients."""

import sys
from typing import Any

import tensorflow_federated as tff

from tff_mf.errors import InputTypeError

_DIVIDING = (tff.aggregators.MeanFactory, tff.aggregators.UnweightedMeanFactory)


def refuse() -> None:
    """Raises if one of TFF's mean factories is among the callers, at any depth.

    This is a help, and `check_process` is the promise: it finds all factories that divide. A factory cannot see what it
    is wrapped in, except that the wrapper's `create` is on the call stack; the `create` of TFF's `MeanFactory` and
    `UnweightedMeanFactory`, and of classes that inherit from them, is recognized there by its first argument.

    Raises:
        InputTypeError: If a mean factory is among the callers.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if code.co_name == "create" and isinstance(first, _DIVIDING):
            raise InputTypeError(
                f"{type(first).__name__} would divide the noised sum by the exact number or weight of the clients "
                "that reported, which voids the guarantee: the noise would shrink as more clients report. Pass the "
                "aggregator of build_mf_aggregator itself, which divides by the constant clients_per_round; where an "
                "algorithm needs a weighted one, tff.aggregators.as_weighted_aggregator(aggregator)."
            )
        frame = frame.f_back
