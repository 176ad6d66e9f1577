"""The sum of a round's updates, in floats or in integers of a grid: nothing in a node's reply is trusted.

Every reply is checked, clipped again, and counted.
"""

import dataclasses
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata

from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.grids import Grid

from ..runs.ledger import ReportCounts
from . import clipping, mods

_STYPE = "numpy.ndarray"
_MAX_HEADER = 4096
# What layers keep of their batches, by the names that PyTorch, Keras and Flax give it: statistics of batch and instance
# normalization, and vectors of spectral normalization.
_BUFFER = re.compile(
    r"(^|[./_])(running_(mean|var)|moving_(mean|variance))(:0)?$|(^|[./])(weight)?_[uv]$|(^|[./])batch_stats[./]"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Names and shapes of a model's float32 arrays, in order.

    Example:
        >>> layout = Layout(shapes={"w": (2, 2), "b": (1,)})
        >>> layout.dimension, layout.arrays(np.arange(5, dtype=np.float32))["b"]
        (5, array([4.], dtype=float32))
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def vector(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns arrays as one vector, float32 `[dimension]`."""
        return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in self.shapes])

    def arrays(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a vector `[dimension]` as arrays, which are views of it."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(vector, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


# What nodes reply with: the model that they trained, its difference from the one that they were sent, or that
# difference in integers.
MODEL, UPDATE, INTEGERS = "model", "update", "integers"
REPLIES = (MODEL, UPDATE, INTEGERS)

Arrays = dict[str, np.ndarray]


class Summands:
    """How a reply becomes a summand, and how the noised sum becomes a model's change.

    Formal guarantee: with a grid, updates are integers in units of g = ζ·2^-bits, and their sum and the noise are exact
    in int64. The release is a function of y = exact sum + integer noise alone, and does not depend on the order of the
    nodes. Each summand has Σq² ≤ 4^bits, whatever its node sent. Nothing overflows: the sum of at most `max_clients`
    summands is at most 2⁵², and so is the noise. The product with g and its rounding to float32 are post-processing.

    Args:
        clip_norm: ζ.
        replies: What nodes reply with; floats become integers on the server.
        grid: The grid, no more than whose `max_clients` updates may be summed; `None` for sums in float32.
    """

    def __init__(self, clip_norm: np.float32, replies: str, grid: Grid | None) -> None:
        self._clip_norm, self._replies, self._grid = clip_norm, replies, grid
        # Types of the arrays in a reply, and of a sum.
        integers = grid is not None and replies == INTEGERS
        self.sent = np.dtype(grid.integers if integers else np.float32)
        self.summed = np.dtype(np.float32 if grid is None else np.int64)
        # What nodes have to know of it, for the settings in a message.
        self.for_nodes: Mapping[str, int | float | str] = {}
        if integers:
            self.for_nodes = {mods.BITS: grid.bits, mods.TYPE: grid.integers, mods.CLIP_NORM: float(clip_norm)}

    def bounded(self, reply: Arrays, model: Mapping[str, np.ndarray]) -> clipping.Clipped:
        """Returns a reply as it is added to the sum, whatever its node sent, and how it was clipped."""
        if self._replies == MODEL:
            with np.errstate(over="ignore", invalid="ignore"):
                update = [reply[name] - model[name] for name in reply]
        else:
            update = list(reply.values())
        if self._grid is None:
            return clipping.clip_again(update, self._clip_norm)
        if self._replies == INTEGERS:
            return clipping.clip_integers_again(update, bits=self._grid.bits)
        return clipping.clip_to_grid(update, self._clip_norm, bits=self._grid.bits)

    def noised(self, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Returns a sum with its noise, float32 `[dimension]`, in units of the model."""
        if self._grid is None:
            return total + noise
        # Exact up to the product: both are whole numbers of at most 2⁵².
        unit = float(self._clip_norm) * 2.0**-self._grid.bits
        return ((total + noise).astype(np.float64) * unit).astype(np.float32)


class RefusedReplyError(ValueError):
    """A reply that is not in the sum; its text is one of the reasons in `ReportCounts`."""


def model_arrays(record: ArrayRecord, left_out: Collection[str] = ()) -> Arrays:
    """Returns the arrays of a model that are trained, in the order of the record.

    Args:
        record: The model.
        left_out: Names of its arrays that nodes do not train.

    Example:
        >>> list(model_arrays(ArrayRecord({"bias": Array(np.zeros(3, np.float32))})))
        ['bias']
    """
    if not isinstance(record, ArrayRecord):
        raise InputTypeError(f"initial_arrays={type(record).__name__} must be an ArrayRecord of flwr.app.")
    if isinstance(left_out, str):
        raise InputTypeError(f"left_out={left_out!r} must be a collection of names: write [{left_out!r}].")
    if unknown := sorted(set(left_out) - set(record)):
        raise InputValueError(f"left_out has {unknown[0]!r}, and initial_arrays no array of this name: see its keys().")
    arrays = {name: np.array(array.numpy()) for name, array in record.items() if name not in left_out}
    if not arrays:
        raise InputValueError("initial_arrays has no array: pass the arrays that clients train.")
    for name, value in arrays.items():
        if value.dtype != np.float32:
            raise InputTypeError(
                f"initial_arrays has {name!r} of type {value.dtype}, and noise is added to float32 only: convert it, "
                "or name it in left_out if clients do not train it."
            )
        if _BUFFER.search(name):
            raise InputValueError(
                f"initial_arrays has {name!r}, which by its name a layer computes from its batches and no gradient "
                "trains: noise would be added to it, with which a variance falls below zero. Name it in left_out, so "
                "that each node keeps its own; or take GroupNorm or LayerNorm."
            )
        if not np.isfinite(value).all():
            raise InputValueError(f"initial_arrays has values in {name!r} that are not finite: start from others.")
    return arrays


def as_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Returns arrays as a record for Flower's messages.

    Example:
        >>> list(as_record({"bias": np.zeros(3, np.float32)}))
        ['bias']
    """
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


class UpdateSum:
    """The sum over a cohort of updates, each of which has a norm of at most the clip norm.

    Formal guarantee: whatever a client sends, it adds to the sum one record of the model's shapes with a joint L2 norm
    of at most ζ, once, or nothing; the sum of replies depends on no metric and on no number of examples that clients
    send. On a grid, records are integers and their sum is exact.

    Args:
        sent: The model that the clients were sent.
        summands: What replies become.
        asked: Metadata of the message to each chosen node, by Flower's node id.
        key: Name of the record of arrays in a reply.
    """

    def __init__(self, sent: Arrays, *, summands: Summands, asked: Mapping[int, Metadata], key: str) -> None:
        self._sent, self._summands, self._asked, self._key = sent, summands, asked, key
        self._total = {name: np.zeros(value.shape, summands.summed) for name, value in sent.items()}
        self._seen: set[int] = set()
        self._refused: Counter[str] = Counter()
        self._counted = self._clipped = self._zeroed = 0

    def take(self, message: Message) -> None:
        """Adds the update in a reply, or counts the reply as refused; a message that reports an error is no reply."""
        if message.has_error():
            return
        try:
            arrays = self._read(message)
        except RefusedReplyError as refused:
            self._refused[str(refused)] += 1
            return
        clipped = self._summands.bounded(arrays, self._sent)
        for name, leaf in zip(arrays, clipped.leaves, strict=True):
            self._total[name] += leaf
        self._counted += 1
        self._clipped += clipped.scaled
        self._zeroed += clipped.zeroed

    def total(self) -> np.ndarray:
        """Returns the sum as one vector `[dimension]`, float32 or int64, in the order of the model's record."""
        return np.concatenate([value.reshape(-1) for value in self._total.values()])

    def counts(self) -> ReportCounts:
        """Returns the counts of the replies that came; a node that never replied is not among them."""
        return ReportCounts(
            came=self._counted + sum(self._refused.values()),
            counted=self._counted,
            clipped=self._clipped,
            zeroed=self._zeroed,
            refused=dict(self._refused),
        )

    def _read(self, message: Message) -> Arrays:
        node = message.metadata.src_node_id
        if node not in self._asked:
            raise RefusedReplyError("not chosen")
        # The sender's id is what the sender wrote; the message's id is known to its receiver only.
        if message.metadata.reply_to_message_id != self._asked[node].message_id:
            raise RefusedReplyError("another round")
        if node in self._seen:
            raise RefusedReplyError("duplicate")
        self._seen.add(node)
        try:
            record = message.content.get(self._key, ArrayRecord())
            given = dict(record.items()) if isinstance(record, ArrayRecord) else None
        # Flower reads some records only now, and a node has written them.
        except Exception as error:
            raise RefusedReplyError("damaged") from error
        if given is None:
            raise RefusedReplyError("damaged")
        if not given:
            raise RefusedReplyError("empty")
        if self._sent.keys() - given.keys():
            raise RefusedReplyError("missing leaf")
        if given.keys() - self._sent.keys():
            raise RefusedReplyError("extra leaf")
        return {name: _checked(given[name], like.shape, self._summands.sent) for name, like in self._sent.items()}


def _checked(array: Any, expected: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array that a node sent, if its content is of the right type and shape.

    The header in the content is read before memory is taken for the array; what the node says beside it is not used.
    """
    try:
        data = array.data
        most = math.prod(expected) * dtype.itemsize + _MAX_HEADER
        if array.stype != _STYPE or not isinstance(data, bytes) or len(data) > most:
            raise RefusedReplyError("damaged")
        file = io.BytesIO(data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise RefusedReplyError("damaged")
        shape, fortran, sent = np.lib.format.read_array_header_1_0(file)
        if sent != dtype:
            raise RefusedReplyError("dtype")
        if shape != expected:
            raise RefusedReplyError("shape")
        values = np.frombuffer(data, dtype, offset=file.tell())
        return values.reshape(shape, order="F" if fortran else "C")
    except RefusedReplyError:
        raise
    except Exception as error:
        raise RefusedReplyError("damaged") from error
