"""A query with its state in variables, for optimizers that would not update it."""

from typing import Any, NamedTuple

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.participation import Participation
from tff_mf.queries._base import MatrixFactorizationQuery
from tff_mf.queries._restarts import RestartedQuery


class Kept(NamedTuple):
    """The global state of a `VariableQuery`: empty, because the state is in variables."""


class VariableQuery(tfp.SumAggregationDPQuery):
    """A query of this package for TensorFlow Privacy's optimizers, with its state in TensorFlow variables.

    The generic Keras optimizers of TensorFlow Privacy keep the state of a query in a Python attribute. In the
    `tf.function` that `fit` runs, this is the first state forever: each step would draw the noise of round 0, which
    never cancels. Their `get_config` also returns the state, and with it the keys of the noise. Other queries of this
    package therefore refuse these optimizers. This one updates its variables wherever it runs, and gives the optimizer
    an empty state.

    Formal guarantee: that of the query over all its results, which are one stream: each execution of
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
        """Returns the event of a whole run: that of the query.

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
        """Returns an empty sum, in the types that records are summed in."""
        return self._query.initial_sample_state(template)

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


def _variable(initial: tf.Tensor) -> tf.Variable:
    # The capacity for keys may grow.
    shape = tf.TensorShape([None, *initial.shape[1:]]) if initial.shape.rank == 2 else initial.shape
    return tf.Variable(initial, trainable=False, shape=shape)
