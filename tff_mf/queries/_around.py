"""Queries around a query: noise that is restarted, and a state in variables for optimizers that would not update it."""

from typing import Any, NamedTuple

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.noise.tensorflow import NoiseState
from tff_mf.problem.participation import Participation
from tff_mf.queries._query import MatrixFactorizationQuery


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
        given = None if rounds is None else validation.whole("rounds", rounds)
        self._rounds = min((each for each in (given, query.run_rounds) if each is not None), default=None)
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
        return tf.nest.map_structure(lambda leaf: _or_nan(done < self._rounds, leaf), results), state, event

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


class Kept(NamedTuple):
    """The global state of a `VariableQuery`: empty, because the state is in variables."""


class VariableQuery(tfp.SumAggregationDPQuery):
    """A query of this package for TensorFlow Privacy's optimizers, with its state in TensorFlow variables.

    The generic Keras optimizers of TensorFlow Privacy keep the state of a query in a Python attribute. In the
    `tf.function` that `fit` runs, this is the first state forever: each step would draw the noise of round 0, which
    never cancels. Their `get_config` also returns the state, and with it the keys of the noise. Other queries of this
    package therefore refuse these optimizers. This one updates its variables wherever it runs, and gives the optimizer
    an empty state.

    Formal guarantee: the query's guarantee over all its results, which are one stream: each execution of
    `get_noised_result`, eager or in a `tf.function`, sequential or concurrent, is the next round. One record of a round
    is one example or client (a microbatch of TensorFlow Privacy); the caller must bound how often a record takes part.

    Args:
        query: The query. Its state is created here, not when an optimizer asks for it.

    Example:
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        >>> query = queries.build_query(tff_mf.Tree(16), clip_norm=1.0, noise_multiplier=2.0,
        ...     record_specs=[tf.TensorSpec(variable.shape) for variable in model.trainable_variables])
        >>> sgd = tfp.make_keras_generic_optimizer_class(tf.keras.optimizers.legacy.SGD)
        >>> kept = VariableQuery(query)
        >>> model.compile(sgd(kept, num_microbatches=4, learning_rate=0.1),
        ...               tf.keras.losses.MeanSquaredError(reduction="none"))
        >>> _ = model.fit(tf.ones([12, 2]), tf.ones([12]), batch_size=4, shuffle=False, verbose=0)
        >>> int(kept.state.noise.round)
        3

    Raises:
        InputTypeError: If `query` is not a query of this package.
        InputValueError: If it is built in a graph, used on several replicas, or passed to a second optimizer.
    """

    def __init__(self, query: MatrixFactorizationQuery | RestartedQuery) -> None:
        if not isinstance(query, MatrixFactorizationQuery | RestartedQuery):
            raise InputTypeError(f"query={query!r} must be a query of tff_mf, such as queries.build_query returns.")
        if not tf.executing_eagerly():
            raise InputValueError(
                "a VariableQuery must be built eagerly: build it outside of any tf.function or graph."
            )
        self._query = query
        self._taken = False
        self._rounds = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._one_at_a_time = tf.CriticalSection()
        self._variables = tf.nest.map_structure(_variable, query.initial_global_state())

    @property
    def state(self) -> Any:
        """The state of the query. Secret, because its noise can be subtracted with it."""
        return tf.nest.map_structure(lambda variable: variable.read_value(), self._variables)

    @property
    def rounds(self) -> int:
        """Number of rounds drawn, over all restarts."""
        return int(self._rounds)

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._query.insecure

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the query's event of a whole run.

        Raises:
            InputValueError: If the noise is repeatable, the participation does not fit the rounds, or more than
                `rounds` rounds have been drawn.
        """
        if rounds < self.rounds:
            raise InputValueError(
                f"rounds={rounds}, but {self.rounds} rounds have been drawn: a round is a step, not an epoch."
            )
        return self._query.dp_event(rounds, participation)

    def initial_global_state(self) -> Kept:
        """Returns the empty state.

        Raises:
            InputValueError: If it was returned before: a second optimizer needs a query of its own.
        """
        if self._taken:
            raise InputValueError("query is in use already: build another VariableQuery for another optimizer.")
        self._taken = True
        return Kept()

    def derive_sample_params(self, global_state: Kept) -> tf.Tensor:
        """Returns the clip norm, float32 `[]`."""
        del global_state
        return self._query.derive_sample_params(self.state)

    def initial_sample_state(self, template: Any = None) -> Any:
        """Returns an empty sum, in the types that records are summed in; `template` may hold variables."""
        specs = tf.nest.map_structure(lambda leaf: _spec(leaf) if isinstance(leaf, tf.Variable) else leaf, template)
        return self._query.initial_sample_state(specs)

    def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
        """Returns the record, clipped as the query does."""
        return self._query.preprocess_record(params, record)

    def get_noised_result(self, sample_state: Any, global_state: Kept) -> tuple[Any, Kept, dp_accounting.DpEvent]:
        """Returns the noised sum, the empty state, and `UnsupportedDpEvent`; the variables go on to the next round."""
        del global_state
        if tf.distribute.in_cross_replica_context() or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise InputValueError(
                "query cannot be used on several replicas: each replica would draw rounds of its own."
            )

        def step() -> Any:
            result, state, _ = self._query.get_noised_result(sample_state, self.state)
            steps = tf.nest.map_structure(lambda variable, value: variable.assign(value), self._variables, state)
            counted = self._rounds.assign_add(1)
            with tf.control_dependencies([] if tf.executing_eagerly() else [*tf.nest.flatten(steps), counted]):
                return tf.nest.map_structure(tf.identity, result)

        # Two concurrent steps would read the same state, and the stream would lose a round.
        return self._one_at_a_time.execute(step), Kept(), dp_accounting.UnsupportedDpEvent()

    def derive_metrics(self, global_state: Kept) -> Any:
        """Returns the metrics of the query, which do not depend on any client."""
        del global_state
        return self._query.derive_metrics(self.state)


def _spec(variable: tf.Variable) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, variable.dtype)


def _variable(initial: tf.Tensor) -> tf.Variable:
    # The capacity for keys may grow.
    shape = tf.TensorShape([None, *initial.shape[1:]]) if initial.shape.rank == 2 else initial.shape
    return tf.Variable(initial, trainable=False, shape=shape)


def _or_nan(valid: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
    return tf.where(valid, leaf, tf.constant(float("nan"), leaf.dtype))
