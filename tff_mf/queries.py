"""TensorFlow Privacy queries that add a mechanism's correlated noise to a sum of clipped records."""

import collections
from typing import Any, ClassVar, NamedTuple

from tff_mf import _requires

_requires.packages("A query", "tensorflow", "tensorflow_privacy")

import dp_accounting  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_privacy as tfp  # noqa: E402

from tff_mf import _validate, accounting  # noqa: E402
from tff_mf.errors import InputTypeError, InputValueError  # noqa: E402
from tff_mf.mechanisms import BLT, Identity, Mechanism  # noqa: E402
from tff_mf.noise import (  # noqa: E402
    NoiseState,
    _clipping,
    build_stream,
)
from tff_mf.participation import Participation  # noqa: E402


class QueryState(NamedTuple):
    """Global state of a query. Secret, for the sake of `noise`."""

    noise: NoiseState


class _MatrixFactorizationQuery(tfp.SumAggregationDPQuery):
    """Clips each record to `clip_norm` and adds row t of σζ·C⁻¹z to the sum of round t.

    Formal guarantee: over the rounds of one stream (`initial_global_state`, then one
    `get_noised_result` after another, each on the state of the one before), what is released is
    G + σζ·C⁻¹z, where row t of G is the sum of round t's clipped records: post-processing of the
    Gaussian mechanism CG + σζ·z. For a client whose rounds fit `participation`, zeroing out its
    records moves CG by at most ζ·sens_Π(C), so that the whole run, all rounds together, is one
    Gaussian mechanism with noise multiplier σ / sens_Π(C): `dp_event` returns it. Sensitivity is
    taken over the parameters as cast to float32. Arithmetic is that of float32, and Philox is not a
    cryptographic generator; neither is covered by the statement.

    The event of a single round, returned by `get_noised_result`, is `NoOpDpEvent`. Rounds must not be
    composed: their noise is correlated on purpose, later rounds subtracting what earlier ones added,
    so that no round has a guarantee of its own, and any sum of such guarantees is void.

    Args:
        mechanism: The mechanism.
        record_specs: Structure of `tf.TensorSpec`, float and of fixed shape: one client's record.
        clip_norm: Bound ζ on the L2 norm of a record, over all leaves together.
        noise_multiplier: σ: standard deviation of each coordinate of Z divided by `clip_norm`. With 0
            there is no noise and no privacy.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.

    Raises:
        InputTypeError: If an argument, or a leaf of `record_specs`, is of the wrong type.
        InputValueError: If an argument is out of range, or a leaf's shape is not fixed.
    """

    _kind: ClassVar[type[Mechanism]] = Mechanism

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        record_specs: Any,
        clip_norm: float,
        noise_multiplier: float,
        insecure_seed: int | None = None,
    ) -> None:
        _validate.instance("mechanism", mechanism, self._kind, "or let queries.build_query pick the query")
        self._mechanism = mechanism
        self._specs = record_specs
        self._leaves = _leaf_specs(record_specs)
        self._clip_norm = _float32_at_most("clip_norm", _validate.positive("clip_norm", clip_norm))
        self._noise_multiplier = _validate.nonnegative("noise_multiplier", noise_multiplier)
        self._insecure = insecure_seed is not None
        self._stream = build_stream(
            mechanism,
            dimension=sum(leaf.shape.num_elements() for leaf in self._leaves),
            stddev=self._noise_multiplier * float(self._clip_norm),
            insecure_seed=insecure_seed,
        )

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._insecure

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds: see the guarantee of the class.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        if self._insecure:
            raise InputValueError("insecure_seed was given: TEST ONLY, such a run has no privacy to account for.")
        return accounting.dp_event(self._mechanism, rounds, participation, noise_multiplier=self._noise_multiplier)

    def initial_global_state(self) -> QueryState:
        """Returns the state before round 0."""
        return QueryState(noise=self._stream.init())

    def derive_sample_params(self, global_state: QueryState) -> tf.Tensor:
        """Returns the clip norm, float32 `[]`: all that clients are told."""
        del global_state
        return tf.constant(self._clip_norm)

    def initial_sample_state(self, template: Any = None) -> Any:
        """Returns a sum of no records."""
        return super().initial_sample_state(self._specs if template is None else template)

    def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
        """Returns the record clipped to the norm `params`; a record that is not finite becomes zero."""
        return tf.nest.pack_sequence_as(record, _clipping.clip_record(tf.nest.flatten(record), params))

    def get_noised_result(
        self, sample_state: Any, global_state: QueryState
    ) -> tuple[Any, QueryState, dp_accounting.DpEvent]:
        """Returns the noised sum, the state of the next round, and `NoOpDpEvent`: see the class."""
        row, noise = self._stream.next(global_state.noise)
        parts = tf.split(row, [leaf.shape.num_elements() for leaf in self._leaves])
        noised = [
            _clipping.add(total, tf.reshape(part, leaf.shape))
            for total, part, leaf in zip(tf.nest.flatten(sample_state), parts, self._leaves, strict=True)
        ]
        return (
            tf.nest.pack_sequence_as(sample_state, noised),
            QueryState(noise=noise),
            dp_accounting.NoOpDpEvent(),
        )

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds that drew `keys`; see `NoiseStream.replay`."""
        return self._stream.replay(keys)

    def derive_metrics(self, global_state: QueryState) -> collections.OrderedDict[str, tf.Tensor]:
        """Returns the number of rounds drawn, which says nothing about any client."""
        return collections.OrderedDict(round=global_state.noise.round)


class BLTQuery(_MatrixFactorizationQuery):
    """Correlated noise of a BLT, with one row of memory a buffer; guarantee as of its base class.

    Example:
        >>> import tff_mf
        >>> query = BLTQuery(tff_mf.BLT.production("b400"), record_specs=tf.TensorSpec([2]),
        ...                  clip_norm=1.0, noise_multiplier=7.379)
        >>> event = query.dp_event(2350, tff_mf.MinSep(min_sep=447, max_participations=5))
        >>> round(event.noise_multiplier, 3)
        1.601
    """

    _kind = BLT


class IdentityQuery(_MatrixFactorizationQuery):
    """Independent noise, as in DP-FedAvg; guarantee as of its base class, with C = I.

    Example:
        >>> import tff_mf
        >>> query = IdentityQuery(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                       noise_multiplier=2.0)
        >>> query.dp_event(100, tff_mf.MinSep(min_sep=10, max_participations=4)).noise_multiplier
        1.0
    """

    _kind = Identity


_QUERIES: dict[type[Mechanism], type[_MatrixFactorizationQuery]] = {BLT: BLTQuery, Identity: IdentityQuery}


def build_query(
    mechanism: Mechanism,
    *,
    record_specs: Any,
    clip_norm: float,
    noise_multiplier: float,
    insecure_seed: int | None = None,
) -> _MatrixFactorizationQuery:
    """Returns the query of a mechanism: `BLTQuery` for a BLT, and so on; arguments as of the query.

    Example:
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
    query = _QUERIES.get(type(mechanism))
    if query is None:
        raise InputTypeError(f"mechanism of type {type(mechanism).__name__} has no query yet.")
    return query(
        mechanism,
        record_specs=record_specs,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        insecure_seed=insecure_seed,
    )


def _leaf_specs(record_specs: Any) -> list[tf.TensorSpec]:
    leaves = tf.nest.flatten(record_specs)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise InputTypeError(f"record_specs has the leaf {leaf!r}; each leaf must be a tf.TensorSpec.")
        if leaf.dtype not in _clipping.LEAF_TYPES:
            names = ", ".join(dtype.name for dtype in _clipping.LEAF_TYPES)
            raise InputTypeError(f"record_specs has a leaf of type {leaf.dtype.name}; noise needs one of {names}.")
        if not leaf.shape.is_fully_defined():
            raise InputValueError(f"record_specs has a leaf of shape {leaf.shape}; every dimension must be known.")
    if not any(leaf.shape.num_elements() for leaf in leaves):
        raise InputValueError(f"record_specs={record_specs!r} has no values to add noise to.")
    return leaves


def _float32_at_most(name: str, value: float) -> np.float32:
    result = np.float32(min(value, float(np.finfo(np.float32).max)))
    if float(result) > value:
        result = np.nextafter(result, np.float32(0))
    if result <= 0:
        raise InputValueError(f"{name}={value!r} is too small for float32.")
    return result
