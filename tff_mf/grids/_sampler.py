"""The standard normals that noise on a grid is drawn from, and what a file says of a grid and of them."""

import functools
import hashlib
from typing import Any

from tff_mf.grids._grid import Grid
from tff_mf.numerics import normals

# End of the last table: what lies beyond it is drawn there.
LARGEST_NORMAL = 13.5


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
