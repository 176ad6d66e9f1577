"""`build_stream`: the stream of a mechanism."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tff_mf import grids, registry, sensitivities, validation
from tff_mf.errors import InputValueError
from tff_mf.grids import LARGEST_NORMAL, Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.streams._steps import IdentitySteps, Steps
from tff_mf.streams._stream import NoiseStream
from tff_mf.streams.arguments import float32_at_least
from tff_mf.streams.banded_inverse import BandedInverseSteps
from tff_mf.streams.banded_plus_low_rank import BandedPlusLowRankSteps
from tff_mf.streams.blt import BLTSteps
from tff_mf.streams.inverse_rows import InverseRowsSteps
from tff_mf.streams.rows import RowsSteps, banded_steps, banded_toeplitz_steps
from tff_mf.streams.trees import TreeSteps

# Of all rows of a mechanism that is not banded: 1 GiB in int32.
_MOST_ENTRIES = 2**28
_FEWEST_ROUNDS = 32
# Relative to the largest entry of the rows that are compared.
_TOLERANCE = 1e-9

# In floats; any other kind has the rows of C⁻¹. On a grid, those of the second table.
_STEPS: dict[str, Callable[[Any], Steps]] = {
    "identity": lambda mechanism: IdentitySteps(),
    "blt": BLTSteps,
    "banded": banded_steps,
    "banded_toeplitz": banded_toeplitz_steps,
    "banded_inverse": BandedInverseSteps,
    "structured": BandedPlusLowRankSteps,
    "tree": TreeSteps,
}
_SAME_ON_A_GRID = ("identity", "blt", "banded_inverse", "tree")


def build_stream(
    mechanism: Mechanism,
    *,
    dimension: int,
    stddev: float,
    grid: Grid | None = None,
    insecure_seed: int | None = None,
    generator: str | None = None,
) -> NoiseStream:
    """Returns the noise stream of a mechanism in NumPy: see `NoiseStream` for its guarantee.

    A kind without a stream of its own (`Dense`, and kinds from outside of this package) gets the rows of C⁻¹, which is
    slow: t + 1 draws in round t.

    Formal guarantee: as for `NoiseStream`. For a kind from outside, the noise is computed from the C⁻¹ of all its
    rounds, and its first 32 rows are checked to be those of the inverse of C.

    Args:
        mechanism: The mechanism.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise: σ times the clip norm; with a grid, σ.
        grid: The grid, in units of which rows are, or `None` for floats.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        generator: "philox", the default, or "aes": AES in counter mode, a cryptographic generator, which needs the
            package `cryptography`. See docs/streams.md.

    Example:
        >>> from tff_mf import BLT, Grid
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> noise, state = stream.next(stream.init())
        >>> noise.dtype, noise.shape, int(state["round"]), sorted(state)[:3]
        (dtype('float32'), (3,), 1, ['fingerprint', 'keys', 'round'])
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0, grid=Grid(bits=16, max_clients=100))
        >>> stream.next(stream.init())[0].dtype
        dtype('int64')

    Raises:
        InputTypeError: If an argument is of the wrong type; if the exact class of the mechanism is not registered, or
            its kind has neither a stream nor an end; with a grid, if the kind is from outside of this package.
        InputValueError: If an argument is out of range, the matrices of a kind from outside are not consistent, or the
            grid does not fit the noise.
        ImportError: If the generator needs a package that is not installed.
    """
    record = registry.registered(mechanism)
    stddev = validation.nonnegative("stddev", stddev)
    shared = {"dimension": dimension, "grid": grid, "insecure_seed": insecure_seed, "generator": generator}
    if grid is not None:
        grids.check(grid)
        deviation = stddev * 2**grid.bits
        found = grids.recursion(mechanism, deviation=deviation, largest_normal=LARGEST_NORMAL)
        steps = _STEPS[record.kind](found.mechanism) if record.kind in _SAME_ON_A_GRID else _rows(found, dimension)
        setting = (repr(grid), found.digest)
        return NoiseStream(
            mechanism, steps, stddev=np.float64(deviation), limit=found.rounds, setting=setting, **shared
        )
    limit, setting, cast = mechanism.max_rounds, (), mechanism.cast_to_float32()
    if record.outside or record.kind not in _STEPS:
        steps = InverseRowsSteps(cast)
        if record.outside:
            _check_outside(mechanism, cast, steps)
        limit, setting = limit or InverseRowsSteps.MOST_ROUNDS, (steps.digest,)
    else:
        steps = _STEPS[record.kind](cast)
    deviation = float32_at_least("stddev", stddev)
    return NoiseStream(mechanism, steps, stddev=deviation, limit=limit, setting=setting, **shared)


def _check_outside(mechanism: Mechanism, cast: Mechanism, steps: InverseRowsSteps) -> None:
    """Raises unless the first rows of the C⁻¹ that noise is computed from are those of a C that passes."""
    few = min(mechanism.max_rounds or _FEWEST_ROUNDS, _FEWEST_ROUNDS)
    for checked in (mechanism, cast):
        sensitivities.check_outside(checked, few)
    expected = cast.inverse(few)
    # Not > of the difference: NaN must not pass.
    if not np.all(np.abs(steps.first_rows(few) - expected) <= _TOLERANCE * np.max(np.abs(expected))):
        raise InputValueError(
            f"inverse of kind {mechanism.kind!r} for all of its rounds does not begin as for {few}: it must not depend "
            "on the number of rounds."
        )


def _rows(found: Any, dimension: int) -> RowsSteps:
    """Returns the steps of the recursion over rows, whose coefficients are multiples of a power of two."""
    kind, entries = found.mechanism.kind, (found.bands - 1) * validation.whole("dimension", dimension)
    if kind in ("dense", "structured") and entries > _MOST_ENTRIES:
        raise InputValueError(
            f"grid with dimension={dimension} is refused: integer noise of a {kind} mechanism needs all {found.bands} "
            f"rows in memory, {entries:,} numbers, and the limit is {_MOST_ENTRIES:,}. Take a banded mechanism or a "
            "BLT, or grid=None, whose noise is not covered by the guarantee."
        )
    return RowsSteps(found.relative_scales, found.coefficients, found.stored)
