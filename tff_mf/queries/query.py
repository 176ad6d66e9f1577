"""The query of any mechanism: records are clipped, and noise is added to their sum, which may be restarted."""

import collections
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise.tensorflow import NoiseState, build_stream
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import Participation
from tff_mf.queries import clipping


class QueryState(NamedTuple):
    """Global state of a query. Secret, because `noise` can be subtracted with it."""

    noise: NoiseState


class MatrixFactorizationQuery(tfp.SumAggregationDPQuery):
    """Clips each record to `clip_norm` and adds row t of σζ·C⁻¹z to the sum of round t, for any mechanism.

    The memory and the time that the noise takes depend on the mechanism: see docs/results.md.

    Formal guarantee: over the rounds of one stream (`initial_global_state`, then one `get_noised_result` after another,
    each on the state of the previous one), the release is G + σζ·C⁻¹z, where row t of G is the sum of the clipped
    records of round t: post-processing of the Gaussian mechanism CG + σζ·z. For a client whose rounds fit
    `participation`, zeroing out its records moves CG by at most ζ·sens_Π(C). The whole run, all rounds together, is
    therefore one Gaussian mechanism with noise multiplier σ / sens_Π(C), which `dp_event` returns. Sensitivity is
    computed for the parameters cast to float32. A state of a query with another mechanism, clip norm, noise multiplier
    or restart is refused in the graph, however it was loaded. That Philox, which is not a cryptographic generator,
    gives random bits is an assumption.

    Without `grid`, arithmetic in float32 is not covered by the guarantee: an adversary who knows all other records can
    prove from one release that a client took part. With `grid`, records are integers, their sum and its noise are
    exact, and the guarantee holds for the numbers that are released; what the finite precision of the noise costs is
    included in `guarantee` and `dp_event`. See docs/explanation/guarantee.md.

    The event of a single round, returned by `get_noised_result`, is `UnsupportedDpEvent`, which every accountant of
    dp_accounting refuses. Rounds must not be composed: their noise is correlated on purpose, and later rounds subtract
    noise that earlier rounds added. One released round alone is differentially private, but guarantees of single
    rounds, added up or composed, say nothing about the run.

    Args:
        mechanism: The mechanism.
        record_specs: Structure of `tf.TensorSpec`, float and of fixed shape: one client's record.
        clip_norm: Bound ζ on the L2 norm of a record, over all leaves together; from 1e-20 to 1e20.
        noise_multiplier: σ: standard deviation of each coordinate of Z divided by `clip_norm`. 0 means no noise and no
            privacy.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        grid: The integers that records are rounded to and summed in, or `None` for sums and noise in floating point.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        record_specs: Any,
        clip_norm: float,
        noise_multiplier: float,
        insecure_seed: int | None = None,
        grid: Grid | None = None,
    ) -> None:
        validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
        self._mechanism = mechanism
        self._specs = record_specs
        self._leaves = _leaf_specs(record_specs)
        self._clip_norm = clipping.checked_clip_norm(clip_norm)
        self._noise_multiplier = validation.nonnegative("noise_multiplier", noise_multiplier)
        self._insecure = insecure_seed is not None
        self._grid = grid
        self._summands = clipping.Summands() if grid is None else clipping.GridSummands(grid)
        self._stream = build_stream(
            mechanism,
            dimension=sum(leaf.shape.num_elements() for leaf in self._leaves),
            # On a grid, in units of the clip norm.
            stddev=self._noise_multiplier * (float(self._clip_norm) if grid is None else 1.0),
            insecure_seed=insecure_seed,
            grid=grid,
        ).bound_to(repr((float(self._clip_norm), self._noise_multiplier)))

    def bound_to(self, setting: str) -> Self:
        """Returns the same query, bound to a setting: see `NoiseStream.bound_to`."""
        bound = copy.copy(self)
        bound._stream = self._stream.bound_to(setting)
        return bound

    def limited_to(self, rounds: int) -> Self:
        """Returns the same query, limited to `rounds` rounds: see `NoiseStream.limited_to`."""
        limited = copy.copy(self)
        limited._stream = self._stream.limited_to(rounds)
        return limited

    @property
    def run_rounds(self) -> int | None:
        """Number of rounds that `limited_to` left; `None` without it."""
        return self._stream.run_rounds

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys: mechanism, clip norm, σ, restarts etc.

        The records are no part of it: an aggregator has its fingerprint before it knows a model. The guarantee is about
        the vector of all leaves, in any order; records whose leaves change places only get noise that cancels less.
        """
        return self._stream.fingerprint

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism."""
        return self._mechanism

    @property
    def noise_multiplier(self) -> float:
        """σ: standard deviation of each coordinate of Z divided by the clip norm."""
        return self._noise_multiplier

    @property
    def grid(self) -> Grid | None:
        """The integers that records are summed in, or `None` for floating point."""
        return self._grid

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._insecure

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds: see the guarantee of the class.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        return self.guarantee(rounds, participation).dp_event()

    def guarantee(
        self, rounds: int, participation: Participation, *, restart_every: int | None = None
    ) -> accounting.Guarantee:
        """Returns the guarantee of a whole run, which is restarted every `restart_every` rounds unless that is `None`.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        if self._insecure:
            raise InputValueError(
                "insecure_seed was given: TEST ONLY, such a run has no privacy guarantee. Build the query without it."
            )
        return accounting.guarantee(
            self._mechanism,
            rounds,
            participation,
            noise_multiplier=self._noise_multiplier,
            restart_every=restart_every,
            grid=self._grid,
            dimension=None if self._grid is None else self._stream.dimension,
        )

    def initial_global_state(self) -> Any:
        """Returns the state before round 0."""
        return QueryState(noise=self._stream.init())

    def derive_sample_params(self, global_state: Any) -> tf.Tensor:
        """Returns the clip norm, float32 `[]`: all that clients receive."""
        del global_state
        return tf.constant(self._clip_norm)

    def initial_sample_state(self, template: Any = None) -> Any:
        """Returns an empty sum, in the types that records are summed in.

        Raises:
            InputValueError: If the template has other shapes than `record_specs`, or holds variables, as TensorFlow
                Privacy's optimizers pass them before they draw noise.
        """
        template = self._specs if template is None else template
        if any(isinstance(leaf, tf.Variable) for leaf in tf.nest.flatten(template)):
            raise InputValueError(
                "template holds variables, as an optimizer of TensorFlow Privacy passes them. It would repeat the "
                "noise of the first round in every step and return its keys from get_config: train with "
                "tff_mf.frameworks.keras. In a loop of your own, pass nothing, or the specs of the records."
            )
        # TensorSpecs or a record; like TensorFlow Privacy's queries, this takes Python numbers too.
        like = [leaf if hasattr(leaf, "dtype") else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(template)]
        self._check_shapes("template", like)
        zeros = [tf.zeros(leaf.shape, self._summands.summed_type(tf.as_dtype(leaf.dtype))) for leaf in like]
        return self._summands.of(tf.nest.pack_sequence_as(template, zeros), 0)

    def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
        """Returns the record clipped to the norm `params`; one that is not finite becomes zero.

        It is in float32 or wider; with a grid, it is a tuple of the record in integers, and 1, the number of clients.
        """
        clipped = self._summands.clipped(self._checked("record", record), params)
        return self._summands.of(tf.nest.pack_sequence_as(record, clipped), 1)

    def clip_again(self, record: Any) -> tuple[Any, clipping.Clipped]:
        """Returns what a client sent after it was clipped on the server as well, and how it was clipped.

        Formal guarantee: the result is within the bound that `preprocess_record` keeps, whatever the client sent, and
        what came from `preprocess_record` is unchanged, bit for bit.
        """
        return self._summands.clipped_again(record, tf.constant(self._clip_norm))

    def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, dp_accounting.DpEvent]:
        """Returns the noised sum, the state of the next round, and `UnsupportedDpEvent`: see the class."""
        row, noise = self._stream.next(global_state.noise)
        noised = self._noised(sample_state, row, self._clip_norm)
        return noised, QueryState(noise=noise), dp_accounting.UnsupportedDpEvent()

    def _noised(self, total: Any, row: tf.Tensor, clip_norm: np.float32 | tf.Tensor) -> Any:
        """Returns the sum of the records plus the flat row of noise."""
        records, unit = self._summands.opened(total, clip_norm)
        sums = self._checked("sample_state", records)
        rows = tf.split(row, [leaf.shape.num_elements() for leaf in self._leaves])
        noised = [
            self._summands.noised(leaf_sum, tf.reshape(noise, leaf.shape), unit, leaf.dtype)
            for leaf_sum, noise, leaf in zip(sums, rows, self._leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(records, noised)

    def _checked(self, name: str, value: Any) -> list[tf.Tensor]:
        """Returns the leaves of a record or a sum, after checking their shapes; a graph checks them when it runs.

        TensorFlow would broadcast other shapes: one noise value, or one clipped value, to many coordinates.
        """
        # Leaves may be Python numbers.
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        self._check_shapes(name, leaves)
        return [tf.ensure_shape(leaf, spec.shape) for leaf, spec in zip(leaves, self._leaves, strict=True)]

    def _check_shapes(self, name: str, leaves: Sequence[Any]) -> None:
        actual = [tf.TensorShape(leaf.shape) for leaf in leaves]
        expected = [spec.shape for spec in self._leaves]
        if len(actual) != len(expected) or not all(map(tf.TensorShape.is_compatible_with, actual, expected)):
            raise InputValueError(
                f"{name} has tensors of the shapes {[str(shape) for shape in actual]}, and record_specs has "
                f"{[str(shape) for shape in expected]}: build the query with the specs of its records."
            )

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds that drew `keys`; see `NoiseStream.replay`."""
        return self._stream.replay(keys)

    def reset_state(self, noised_results: Any, global_state: Any) -> Any:
        """Returns the state before round 0: a restart, for TensorFlow Privacy's `RestartQuery`.

        After a restart the noise is independent. `dp_event` does not cover restarts; `RestartedQuery.dp_event` does.
        """
        del noised_results, global_state
        return QueryState(noise=self._stream.init())

    def derive_metrics(self, global_state: Any) -> collections.OrderedDict[str, tf.Tensor]:
        """Returns metrics of the noise, which do not depend on any client.

        `round` is the number of rounds since the start or the last restart, `noise_stddev` the standard deviation σζ of
        each coordinate of Z, and `rows_in_use` the number of noise rows in memory.
        """
        step, stddev = global_state.noise.round, self._stream.stddev
        if self._grid is not None:
            stddev = np.float32(float(stddev) * 2.0**-self._grid.bits * float(self._clip_norm))
        return collections.OrderedDict(
            round=step, noise_stddev=tf.constant(stddev), rows_in_use=tf.cast(self._stream.rows_in_use(step), tf.int64)
        )


def build_query(mechanism: Mechanism, **settings: Any) -> MatrixFactorizationQuery:
    """Returns the query of a mechanism: see `MatrixFactorizationQuery` for arguments and guarantee.

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
    """
    return MatrixFactorizationQuery(mechanism, **settings)


def _leaf_specs(record_specs: Any) -> list[tf.TensorSpec]:
    leaves = tf.nest.flatten(record_specs)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise InputTypeError(f"record_specs has the leaf {leaf!r}; each leaf must be a tf.TensorSpec.")
        if leaf.dtype not in clipping.LEAF_TYPES:
            names = ", ".join(dtype.name for dtype in clipping.LEAF_TYPES)
            raise InputTypeError(f"record_specs has a leaf of type {leaf.dtype.name}; noise needs one of {names}.")
        if not leaf.shape.is_fully_defined():
            raise InputValueError(f"record_specs has a leaf of shape {leaf.shape}; every dimension must be known.")
    if not any(leaf.shape.num_elements() for leaf in leaves):
        raise InputValueError(f"record_specs={record_specs!r} has no entries to add noise to.")
    return leaves


class RestartedQuery(tfp.RestartQuery):
    """Restarts the noise of a query after every `restart_every` rounds: DP-FTRL-TR, for any mechanism.

    With restarts, a mechanism of r rounds runs for any number of rounds. TensorFlow Privacy's `RestartQuery` also takes
    the queries of this package, with any indicator, but then its user must account for the restarts: `dp_event` of the
    inner query describes a run without restarts, whose ε is too small.

    Formal guarantee: the query's guarantee (see its class) for the strategy matrix of the whole run, which is
    block-diagonal: C for each restart, with keys of its own. Participation refers to the whole run: a client may
    take part before and after a restart, and `dp_event` accounts for both.

    Args:
        query: The query; its mechanism must be defined for at least `restart_every` rounds. If it was limited
            (`limited_to`), the whole run is.
        restart_every: Number of rounds between restarts, at least 1.
        rounds: Number of rounds of the whole run, over all restarts: the graph refuses the next one. `None` for any
            number.

    Source: Kairouz et al. (2021), appendix D.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> tree = queries.build_query(tff_mf.Tree(16), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                            noise_multiplier=8.0)
        >>> event = RestartedQuery(tree, restart_every=16).dp_event(64, tff_mf.MinSep(min_sep=16, max_participations=4))
        >>> round(event.noise_multiplier, 3)
        1.789
    """

    def __init__(self, query: MatrixFactorizationQuery, *, restart_every: int, rounds: int | None = None) -> None:
        if not isinstance(query, MatrixFactorizationQuery):
            raise InputTypeError(
                f"query={query!r} must be a query of tff_mf: restarts are accounted for by its mechanism."
            )
        self._restart_every = query.mechanism.check(validation.whole("restart_every", restart_every))
        own_rounds = None if rounds is None else validation.whole("rounds", rounds)
        self._rounds = min((limit for limit in (own_rounds, query.run_rounds) if limit is not None), default=None)
        query = query.bound_to(f"restart_every={self._restart_every}")
        super().__init__(query, tfp.restart_query.PeriodicRoundRestartIndicator(period=self._restart_every))

    def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, dp_accounting.DpEvent]:
        """Returns the noised sum and the state of the next round, restarted after every `restart_every` rounds."""
        # Here, since the function with both branches gets the state as an argument.
        global_state.inner_query_state.noise.refuse_constant()
        if self._rounds is None:
            return super().get_noised_result(sample_state, global_state)
        done, inner = global_state.indicator_state, global_state.inner_query_state
        message = f"The restarted run is defined for {self._rounds} rounds, and all of them have run."
        check = tf.debugging.assert_less(done, self._rounds, message=message)
        with tf.control_dependencies([] if check is None else [check]):
            # Everything that draws noise reads this number, and therefore after the check.
            noise = inner.noise._replace(round=tf.identity(inner.noise.round))
        checked = global_state._replace(inner_query_state=inner._replace(noise=noise))
        results, state, event = super().get_noised_result(sample_state, checked)
        # As in `NoiseStream.next`: if assertions are stripped from the graph, the release is NaN.
        valid = done < self._rounds
        results = tf.nest.map_structure(lambda leaf: tf.where(valid, leaf, tf.constant(np.nan, leaf.dtype)), results)
        return results, state, event

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._inner_query.insecure

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys: mechanism, clip norm, σ, restarts etc."""
        return self._inner_query.fingerprint

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds since a restart, given their keys; see `NoiseStream`."""
        return self._inner_query.replay(keys)

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds, over all its restarts.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        return self._inner_query.guarantee(rounds, participation, restart_every=self._restart_every).dp_event()
