"""What went wrong in a worker, in the words of the graph and not in those of gRPC."""

import contextlib
import re
from collections.abc import Iterator

import grpc

from tff_mf.errors import InputValueError

# What `tff_mf.noise` asserts in the graph, as TensorFlow prints it.
_PAST_THE_END = re.compile(r"The [^\[\]]+ is defined for \d+ rounds, and all of them have run\.")
_REMEDY = " Nothing of this round was released. Train with more rounds, a mechanism of more rounds, or restart_every."


class NoRoundsLeftError(InputValueError):
    """A round after the last one that a mechanism is defined for; nothing of it was computed."""


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Raises `NoRoundsLeftError`, and nothing of TensorFlow's and gRPC's around it, where that is what happened."""
    try:
        yield
    except grpc.RpcError as error:
        found = _PAST_THE_END.search(str(error))
        if found is None:
            raise
        raise NoRoundsLeftError(found.group() + _REMEDY) from None
