"""TFF's factories that divide by exact numbers of clients: noised values are not to come into their hands."""

import sys
from typing import Any

import tensorflow_federated as tff

from tff_mf.errors import InputTypeError

_DIVIDING = {
    factory.create.__code__: factory.__name__
    for factory in (tff.aggregators.MeanFactory, tff.aggregators.UnweightedMeanFactory)
}


def refuse() -> None:
    """Refuses to be called while a factory of TFF that divides creates what is in it, at any depth.

    Formal guarantee: no process comes to be in which TFF's `MeanFactory` or `UnweightedMeanFactory`, or a class that
    inherits their `create`, divides what was noised. They show nothing of themselves to a factory inside but that
    their `create` runs, so that is what is looked for, by the code itself and not by a name. Other factories that
    divide are found by `check_process` alone.

    Raises:
        InputTypeError: If one does.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = _DIVIDING.get(frame.f_code)
        if name is not None:
            raise InputTypeError(
                f"tff.aggregators.{name} would divide the noised sum by the exact number, or weight, of the clients "
                "that reported: the noise would shrink with them, and the guarantee be void. Pass the aggregator of "
                "build_mf_aggregator itself, which divides by the constant clients_per_round; where an algorithm wants "
                "a weighted one, tff.aggregators.as_weighted_aggregator(aggregator)."
            )
        frame = frame.f_back
