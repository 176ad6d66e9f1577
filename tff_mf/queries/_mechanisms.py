"""One query a mechanism. They differ in what their noise needs of memory and time, for a model of d parameters."""

from typing import Any, ClassVar

from tff_mf import _validate
from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import (
    BLT,
    Banded,
    BandedInverse,
    BandedPlusLowRank,
    BandedToeplitz,
    Dense,
    Identity,
    Mechanism,
    Tree,
)
from tff_mf.queries._base import MatrixFactorizationQuery


class BandedQuery(MatrixFactorizationQuery):
    """Noise of a banded C, Toeplitz or not: O(bands·d) memory; guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = BandedQuery(tff_mf.BandedToeplitz.square_root(8), record_specs=tf.TensorSpec([2]),
        ...                     clip_norm=1.0, noise_multiplier=2.0)
        >>> len(query.initial_global_state().noise.rows)
        7
    """

    _kinds = (Banded, BandedToeplitz)


class BandedInverseQuery(MatrixFactorizationQuery):
    """Noise of a banded C⁻¹: no row of memory, and as many draws a round as bands; guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = BandedInverseQuery(tff_mf.BandedInverse.square_root(8), record_specs=tf.TensorSpec([2]),
        ...                            clip_norm=1.0, noise_multiplier=2.0)
        >>> query.initial_global_state().noise.rows
        ()
    """

    _kinds = (BandedInverse,)


class BLTQuery(MatrixFactorizationQuery):
    """Noise of a BLT: O(buffers·d) memory; guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = BLTQuery(tff_mf.BLT.production("b400"), record_specs=tf.TensorSpec([2]),
        ...                  clip_norm=1.0, noise_multiplier=7.379)
        >>> event = query.dp_event(2350, tff_mf.MinSep(min_sep=447, max_participations=5))
        >>> round(event.noise_multiplier, 3)
        1.601
    """

    _kinds = (BLT,)


class DenseQuery(MatrixFactorizationQuery):
    """Noise of any lower-triangular C: O(d) memory, and t + 1 draws in round t; guarantee as of its base class.

    Round t needs a row of C⁻¹, which is kept with the state: 2n² bytes for n rounds.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = DenseQuery(tff_mf.Dense(matrix=[[1.0, 0.0], [0.5, 1.0]]), record_specs=tf.TensorSpec([2]),
        ...                    clip_norm=1.0, noise_multiplier=2.0)
        >>> query.initial_global_state().noise.rows
        ()
    """

    _kinds = (Dense,)


class IdentityQuery(MatrixFactorizationQuery):
    """Independent noise, as in DP-FedAvg: nothing to remember; guarantee as of its base class, with C = I.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = IdentityQuery(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                       noise_multiplier=2.0)
        >>> round(query.dp_event(100, tff_mf.MinSep(min_sep=10, max_participations=4)).noise_multiplier, 9)
        1.0
    """

    _kinds = (Identity,)


class BandedPlusLowRankQuery(MatrixFactorizationQuery):
    """Noise of a decoder of h diagonals plus rank r: O((h + r)·d) memory; guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> near = tff_mf.BandedPlusLowRank(diagonals=[[1.0, 1.0]], left=[[0.0], [0.5]], right=[[1.0], [0.0]])
        >>> spec = tf.TensorSpec([2])
        >>> query = BandedPlusLowRankQuery(near, record_specs=spec, clip_norm=1.0, noise_multiplier=2.0)
        >>> len(query.initial_global_state().noise.rows)
        2
    """

    _kinds = (BandedPlusLowRank,)


class _AnyTreeQuery(MatrixFactorizationQuery):
    """Noise of a tree: O(log(rounds)·d) memory."""

    _kinds = (Tree,)
    _variant: ClassVar[str]

    def __init__(self, mechanism: Tree, **arguments: Any) -> None:
        if isinstance(mechanism, Tree):
            _validate.one_of("variant", mechanism.variant, (self._variant,))
        super().__init__(mechanism, **arguments)


class TreeQuery(_AnyTreeQuery):
    """Noise of `Tree(..., variant="online")`: O(log(rounds)·d) memory; arguments and guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = TreeQuery(tff_mf.Tree(1024, variant="online"), record_specs=tf.TensorSpec([2]),
        ...                   clip_norm=1.0, noise_multiplier=2.0)
        >>> len(query.initial_global_state().noise.rows)
        10
    """

    _variant = "online"


class PseudoInverseTreeQuery(_AnyTreeQuery):
    """Noise of `Tree(..., variant="full")`: O(log(rounds)·d) memory; arguments and guarantee as of its base class.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = PseudoInverseTreeQuery(tff_mf.Tree(1024, variant="full"), record_specs=tf.TensorSpec([2]),
        ...                                clip_norm=1.0, noise_multiplier=2.0)
        >>> len(query.initial_global_state().noise.rows)
        10
    """

    _variant = "full"


_QUERIES: dict[type[Mechanism], type[MatrixFactorizationQuery]] = {
    Banded: BandedQuery,
    BandedInverse: BandedInverseQuery,
    BandedToeplitz: BandedQuery,
    BLT: BLTQuery,
    Dense: DenseQuery,
    Identity: IdentityQuery,
    BandedPlusLowRank: BandedPlusLowRankQuery,
}
_TREES: dict[str, type[MatrixFactorizationQuery]] = {"full": PseudoInverseTreeQuery, "online": TreeQuery}


def build_query(
    mechanism: Mechanism,
    *,
    record_specs: Any,
    clip_norm: float,
    noise_multiplier: float,
    insecure_seed: int | None = None,
) -> MatrixFactorizationQuery:
    """Returns the query of a mechanism: `BLTQuery` for a BLT, and so on; arguments as of the query.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> query = build_query(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                     noise_multiplier=0.0)
        >>> result, state, _ = query.get_noised_result(tf.constant([1.0, 2.0]), query.initial_global_state())
        >>> result.numpy()
        array([1., 2.], dtype=float32)

    Raises:
        InputTypeError: If there is no query for the mechanism, or an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
    query = _TREES[mechanism.variant] if isinstance(mechanism, Tree) else _QUERIES.get(type(mechanism))
    if query is None:
        raise InputTypeError(f"mechanism of type {type(mechanism).__name__} has no query.")
    return query(
        mechanism,
        record_specs=record_specs,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        insecure_seed=insecure_seed,
    )
