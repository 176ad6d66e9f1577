"""`Grid`: the integers on which updates are summed and noised, and the normals that their noise is drawn from."""

import dataclasses
import functools
import hashlib
import math
from typing import Any, Self

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import normals

# With fewer bits, rounding moves an update by a noticeable part of the clip norm; with more, squared norms of integers
# are not exact in float64.
FEWEST_BITS, MOST_BITS = 8, 26
# Noise and sums below this are exact in float64, and so is the sum of both.
LARGEST = 2**52

# End of the last table of normals: what lies beyond it is drawn there.
LARGEST_NORMAL = 13.5

_INT32_LIMIT = 2**31
_SPARE_BITS = 5
_FEWEST_AUTO_BITS, _MOST_AUTO_BITS = 14, 22

# Cohorts of a sampling may be larger than those on average: with this room, all are with near certainty.
_ROOM, _FEWEST_CLIENTS = 2, 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Updates, sums and noise are whole multiples of g = clip norm / 2^bits.

    Formal guarantee: a client's record is a vector of integers, in units of g, of L2 norm at most 2^bits. The sum of at
    most `max_clients` of them fits into the type `integers`, coordinate by coordinate and in every order; with noise of
    at most 2^52 it is below 2^53, so that it is exact in int64 and in float64.

    Attributes:
        bits: log₂ of the clip norm in units of g, from 8 to 26. A bit more halves the error of rounding, and doubles
            what floating point costs in the guarantee: see docs/explanation/guarantee.md.
        max_clients: Largest number of records in one sum.

    Example:
        >>> grid = Grid(bits=16, max_clients=6500)
        >>> grid.integers, grid.bits_per_coordinate
        ('int32', 30)
    """

    bits: int
    max_clients: int

    def __post_init__(self) -> None:
        bits = validation.whole("bits", self.bits)
        if not FEWEST_BITS <= bits <= MOST_BITS:
            raise InputValueError(f"bits={bits} must be at least {FEWEST_BITS} and at most {MOST_BITS}.")
        clients = validation.whole("max_clients", self.max_clients)
        if clients << bits > LARGEST:
            raise InputValueError(
                f"max_clients={clients} with bits={bits} exceeds the maximum of {LARGEST >> bits}, above which a sum "
                "could be inexact: take fewer bits or fewer clients."
            )
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "max_clients", clients)

    @classmethod
    def auto(cls, *, dimension: int, max_clients: int) -> Self:
        """Returns a grid of ⌈½ log₂ d⌉ + 5 bits, but at least 14 and at most 22.

        Rounding to the nearest integers moves a record by at most √d/2 units, and on average by √(d/12): that is at
        most 1/64 of the clip norm, almost at a right angle to it.

        Args:
            dimension: Number d of coordinates of a record.
            max_clients: Largest number of records in one sum.

        Example:
            >>> Grid.auto(dimension=4_050_748, max_clients=100)
            Grid(bits=16, max_clients=100)
        """
        # ⌈½ log₂ d⌉ is the smallest b with 4^b ≥ d.
        half = ((validation.whole("dimension", dimension) - 1).bit_length() + 1) // 2
        return cls(bits=min(max(half + _SPARE_BITS, _FEWEST_AUTO_BITS), _MOST_AUTO_BITS), max_clients=max_clients)

    @classmethod
    def with_room(cls, *, dimension: int, cohort: float) -> Self:
        """Returns `auto` for twice a cohort, and for 1000 clients at least.

        The number of clients of a sum must not depend on who was drawn, and some samplings have larger cohorts than on
        average.

        Args:
            dimension: Number d of coordinates of a record.
            cohort: Number of records in a sum, for some samplings on average.

        Example:
            >>> Grid.with_room(dimension=4_050_748, cohort=6500)
            Grid(bits=16, max_clients=13000)
            >>> Grid.with_room(dimension=8, cohort=600.5).max_clients
            1202

        Raises:
            InputValueError: If a sum of this many records could be inexact.
        """
        return cls.auto(dimension=dimension, max_clients=max(_FEWEST_CLIENTS, _ROOM * math.ceil(cohort)))

    @property
    def largest_norm(self) -> int:
        """The clip norm in units of g: 2^bits."""
        return 2**self.bits

    @property
    def largest_sum(self) -> int:
        """Largest absolute value of a coordinate of a sum, in units of g."""
        return self.max_clients << self.bits

    @property
    def integers(self) -> str:
        """Type in which records are summed: "int32" if every sum fits, otherwise "int64"."""
        return "int32" if self.largest_sum < _INT32_LIMIT else "int64"

    @property
    def bits_per_coordinate(self) -> int:
        """Bits that a coordinate of a sum needs, with its sign: as many as the modulus of a secure sum has."""
        return (2 * self.largest_sum).bit_length()


def check(grid: Grid | None) -> Grid | None:
    """Returns `grid` if it is a `Grid` or `None`.

    Example:
        >>> check(None)
    """
    if grid is not None:
        validation.instance("grid", grid, Grid, "pass tff_mf.Grid(bits=..., max_clients=...), or None")
    return grid


def check_dimension(grid: Grid | None, dimension: int | None) -> None:
    """Raises unless a grid and the number of parameters are given together.

    Example:
        >>> check_dimension(None, None)

    Raises:
        InputValueError: If only one is given, or the number is out of range.
    """
    if (check(grid) is None) != (dimension is None):
        raise InputValueError(
            f"grid={grid!r} and dimension={dimension!r} must be given together: what a grid costs depends on both."
        )
    if dimension is not None:
        validation.whole("dimension", dimension)


@functools.cache
def sampler() -> str:
    """Returns the name of the sampler, for fingerprints: with other tables, a key gives other noise.

    Example:
        >>> sampler().split()[0]
        'tff_mf.numerics.normals'
    """
    tables = normals.tables()
    digest = hashlib.sha256()
    for table in (tables.layers, *tables.edges, *tables.cumulative):
        digest.update(table.astype("<i8").tobytes())
    return f"tff_mf.numerics.normals {normals.PART} {digest.hexdigest()}"


def description(grid: Grid) -> dict[str, Any]:
    """Returns what determines the integers of a run on a grid, as JSON: `bits`, `max_clients`, `integers`, `sampler`.

    Example:
        >>> description(Grid(bits=16, max_clients=6500))["integers"]
        'int32'
    """
    return {
        "bits": grid.bits,
        "max_clients": grid.max_clients,
        "integers": grid.integers,
        "sampler": sampler(),
    }
