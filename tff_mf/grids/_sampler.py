"""The standard normals that noise on a grid is drawn from."""

import functools
import hashlib

from tff_mf import normals

# End of the last table: what lies beyond it is drawn there.
LARGEST_NORMAL = 13.5


@functools.cache
def sampler() -> str:
    """Returns the name of the sampler, for fingerprints: with other tables, a key gives other noise.

    Example:
        >>> sampler().split()[0]
        'tff_mf.normals'
    """
    tables = normals.tables()
    digest = hashlib.sha256()
    for table in (tables.layers, *tables.edges, *tables.cumulative):
        digest.update(table.astype("<i8").tobytes())
    return f"tff_mf.normals {normals.PART} {digest.hexdigest()}"
