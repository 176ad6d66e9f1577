"""Translates errors of a worker: the graph's sentence instead of gRPC's."""

import contextlib
import os
import re
from collections.abc import Iterator

import grpc

from tff_mf.base.errors import InputValueError

# Assertions of `tff_mf.noise.tensorflow` and `tff_mf.queries` in the graph, as TensorFlow prints them.
_PAST_THE_END = re.compile(r"The [^\[\]]+ is defined for \d+ rounds, and all of them have run\.")
_OTHERS = re.compile(r"(This state is of other noise|More than max_clients=\d+ clients of the grid)[^\[\]]+")
_REMEDY = (
    " Nothing of this round was released. To train longer, calibrate the noise for all rounds of the run, with a "
    "mechanism that is defined for them, and pass rounds= to build_mf_aggregator."
)


class NoRoundsLeftError(InputValueError):
    """The mechanism is not defined for this round; nothing of the round was computed."""


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Raises an error with the sentence of our assertion in place of the gRPC error that contains it.

    `TF_CPP_MIN_LOG_LEVEL=0`, which asks for all that TensorFlow writes, shows gRPC's error as well. All other errors
    are passed on.

    Raises:
        NoRoundsLeftError: After the last round.
        InputValueError: If a state is of other noise, or a round has more clients than the grid has room for.
    """
    try:
        yield
    except grpc.RpcError as error:
        shown = error if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0" else None
        if found := _PAST_THE_END.search(str(error)):
            raise NoRoundsLeftError(found.group() + _REMEDY) from shown
        if found := _OTHERS.search(str(error)):
            raise InputValueError(found.group()) from shown
        raise
