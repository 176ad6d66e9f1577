"""The query of each kind of mechanism, and `build_query`, which picks it."""

from typing import Any

from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.queries._base import MatrixFactorizationQuery


class BandedQuery(MatrixFactorizationQuery, kinds=("banded", "banded_toeplitz")):
    """The query of a banded C, Toeplitz or not: O(bands·d) memory."""


class BandedInverseQuery(MatrixFactorizationQuery, kinds=("banded_inverse",)):
    """The query of a banded C⁻¹: no memory that grows with d, and as many draws in a round as bands."""


class BLTQuery(MatrixFactorizationQuery, kinds=("blt",)):
    """The query of a BLT: O(buffers·d) memory."""


class DenseQuery(MatrixFactorizationQuery, kinds=("dense",)):
    """The query of any lower-triangular C: t + 1 draws in round t, and C⁻¹ kept with the state: 2n² bytes."""


class IdentityQuery(MatrixFactorizationQuery, kinds=("identity",)):
    """The query of C = I: independent noise, as in DP-FedAvg, and no memory."""


class BandedPlusLowRankQuery(MatrixFactorizationQuery, kinds=("structured",)):
    """The query of a decoder of h diagonals plus rank r: O((h + r)·d) memory."""


class TreeQuery(MatrixFactorizationQuery, kinds=("tree",), variant="online"):
    """The query of `Tree(..., variant="online")`: O(log(rounds)·d) memory."""


class PseudoInverseTreeQuery(MatrixFactorizationQuery, kinds=("tree",), variant="full"):
    """The query of `Tree(..., variant="full")`: O(log(rounds)·d) memory."""


class VanillaTreeQuery(MatrixFactorizationQuery, kinds=("tree",), variant="vanilla"):
    """The query of `Tree(..., variant="vanilla")`: O(log(rounds)·d) memory."""


_QUERIES = (
    BandedQuery,
    BandedInverseQuery,
    BLTQuery,
    DenseQuery,
    IdentityQuery,
    BandedPlusLowRankQuery,
    TreeQuery,
    PseudoInverseTreeQuery,
    VanillaTreeQuery,
)


def build_query(
    mechanism: Mechanism,
    *,
    record_specs: Any,
    clip_norm: float,
    noise_multiplier: float,
    insecure_seed: int | None = None,
    grid: Grid | None = None,
) -> MatrixFactorizationQuery:
    """Returns the query of a mechanism: `BLTQuery` for a BLT, and so on; arguments as of `MatrixFactorizationQuery`.

    That class itself is the query of a kind from outside of this package.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = build_query(tff_mf.BLT.production("b400"), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                     noise_multiplier=7.379)
        >>> len(query.initial_global_state().noise.rows)
        4
        >>> event = query.dp_event(2350, tff_mf.MinSep(min_sep=447, max_participations=5))
        >>> round(event.noise_multiplier, 3)
        1.601

    Raises:
        InputTypeError: If the exact class of the mechanism is not registered, or an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the stream of a kind from outside does not give C⁻¹z.
    """
    query = next((each for each in _QUERIES if each.takes(mechanism)), MatrixFactorizationQuery)
    return query(
        mechanism,
        record_specs=record_specs,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        insecure_seed=insecure_seed,
        grid=grid,
    )
