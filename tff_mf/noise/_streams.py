"""`build_stream`: the stream that is registered for a mechanism."""

from typing import Any

from tff_mf import registry
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.noise._outside import checked_stream
from tff_mf.noise._stream import NoiseStream
from tff_mf.noise.dense import DenseStream
from tff_mf.noise.toeplitz_rows import ToeplitzRowsStream


def build_stream(
    mechanism: Mechanism, *, dimension: int, stddev: float, insecure_seed: int | None = None
) -> NoiseStream:
    """Returns the noise stream of a mechanism; see `NoiseStream` for arguments and guarantee.

    A kind that is registered without a stream gets the rows of C⁻¹, which is slow: t + 1 draws in round t.

    Formal guarantee: that of `NoiseStream`. For a kind from outside of this package, its first 32 rows are checked to
    be C⁻¹z for the z of the keys that it drew, before it is returned.

    Example:
        >>> import tff_mf
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = stream.next(stream.init())
        >>> row.shape, int(state.round), len(state.rows)
        (TensorShape([3]), 1, 4)

    Raises:
        InputTypeError: If the exact class of the mechanism is not registered, or its kind has neither a stream nor an
            end.
        InputValueError: If the stream of a kind from outside does not give C⁻¹z.
    """
    record = registry.registered(mechanism)
    build = record.stream_builder() or _build_rows
    arguments = {"dimension": dimension, "stddev": stddev, "insecure_seed": insecure_seed}
    return checked_stream(build, mechanism, **arguments) if record.outside else build(mechanism, **arguments)


def _build_rows(mechanism: Mechanism, **arguments: Any) -> NoiseStream:
    if not isinstance(mechanism, ToeplitzMechanism):
        return DenseStream(mechanism, **arguments)
    stream = ToeplitzRowsStream(mechanism, **arguments)
    return stream if mechanism.max_rounds else stream.limited_to(ToeplitzRowsStream.MOST_ROUNDS)
