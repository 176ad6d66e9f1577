"""Translates errors of a worker: the graph's message instead of gRPC's."""

import contextlib
import re
from collections.abc import Iterator

import grpc

from tff_mf.base.errors import InputValueError

# An assertion of `tff_mf.noise.tensorflow` in the graph, as TensorFlow prints it.
_PAST_THE_END = re.compile(r"The [^\[\]]+ is defined for \d+ rounds, and all of them have run\.")
_REMEDY = (
    " Nothing of this round was released. To train longer, calibrate the noise for all rounds of the run, with a "
    "mechanism that is defined for them, and pass rounds= to build_mf_aggregator."
)


class NoRoundsLeftError(InputValueError):
    """The mechanism is not defined for this round; nothing of the round was computed."""


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Raises `NoRoundsLeftError` in place of the gRPC error that reports it; passes on all other errors."""
    try:
        yield
    except grpc.RpcError as error:
        found = _PAST_THE_END.search(str(error))
        if found is None:
            raise
        raise NoRoundsLeftError(found.group() + _REMEDY) from None
