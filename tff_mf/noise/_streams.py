"""`build_stream`: the stream that is registered for a mechanism."""

from collections.abc import Callable
from typing import Any

from tff_mf import _matrices, grids, registry
from tff_mf.errors import InputTypeError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.noise._grid import GridStream
from tff_mf.noise._outside import checked_stream
from tff_mf.noise._stream import NoiseStream
from tff_mf.noise.dense import DenseStream
from tff_mf.noise.grid_banded_inverse import BandedInverseGridStream
from tff_mf.noise.grid_blt import BLTGridStream
from tff_mf.noise.grid_identity import IdentityGridStream
from tff_mf.noise.grid_rows import RowsGridStream
from tff_mf.noise.grid_tree import build_tree_grid_stream
from tff_mf.noise.toeplitz_rows import ToeplitzRowsStream


def build_stream(
    mechanism: Mechanism,
    *,
    dimension: int,
    stddev: float,
    insecure_seed: int | None = None,
    grid: Grid | None = None,
) -> NoiseStream | GridStream:
    """Returns the noise stream of a mechanism; see `NoiseStream` for arguments and guarantee.

    With a grid, the rows are integers in units of the grid, as float64, and `stddev` is in units of the clip norm: see
    `GridStream`.

    A kind that is registered without a stream gets the rows of C⁻¹, which is slow: t + 1 draws in round t.

    Formal guarantee: as for `NoiseStream`. For a kind from outside of this package, its first 32 rows are checked to
    be C⁻¹z for the z of the keys that it drew, before it is returned.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = stream.next(stream.init())
        >>> row.shape, int(state.round), len(state.rows)
        (TensorShape([3]), 1, 4)
        >>> grid = tff_mf.Grid(bits=16, max_clients=100)
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0, grid=grid)
        >>> row, state = stream.next(stream.init())
        >>> bool(tf.reduce_all(row == tf.floor(row)))
        True

    Raises:
        InputTypeError: If the exact class of the mechanism is not registered, or its kind has neither a stream nor an
            end; with a grid, if the kind is from outside of this package.
        InputValueError: If the stream of a kind from outside does not give C⁻¹z, or the grid does not fit the noise.
    """
    if grids.check(grid) is not None:
        return _grid_stream(mechanism, dimension=dimension, stddev=stddev, insecure_seed=insecure_seed, grid=grid)
    record = registry.registered(mechanism)
    build = record.stream_builder() or _build_rows
    arguments = {"dimension": dimension, "stddev": stddev, "insecure_seed": insecure_seed}
    return checked_stream(build, mechanism, **arguments) if record.outside else build(mechanism, **arguments)


def _build_rows(mechanism: Mechanism, **arguments: Any) -> NoiseStream:
    if not isinstance(mechanism, ToeplitzMechanism):
        stream = DenseStream(mechanism, **arguments)
    else:
        stream = ToeplitzRowsStream(mechanism, **arguments)
        stream = stream if mechanism.max_rounds else stream.limited_to(ToeplitzRowsStream.MOST_ROUNDS)
    # C⁻¹ is computed; the coefficients of other streams are parameters.
    return stream.bound_to(f"inverse={_matrices.digest(stream.coefficients())}")


_GRID_STREAMS: dict[str, Callable[..., GridStream]] = {
    "identity": IdentityGridStream,
    "blt": BLTGridStream,
    "banded": RowsGridStream,
    "banded_toeplitz": RowsGridStream,
    "banded_inverse": BandedInverseGridStream,
    "dense": RowsGridStream,
    "structured": RowsGridStream,
    "tree": build_tree_grid_stream,
}


def _grid_stream(mechanism: Mechanism, **arguments: Any) -> GridStream:
    record = registry.registered(mechanism)
    if record.outside:
        raise InputTypeError(
            f"mechanism of kind {mechanism.kind!r} has no integer recursion: kinds from outside of tff_mf take no "
            "grid. Pass grid=None (--grid none), which gives up a guarantee about the numbers that are released."
        )
    return _GRID_STREAMS[record.kind](mechanism, **arguments)
