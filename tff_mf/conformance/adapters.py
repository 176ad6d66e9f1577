"""Subjects of other libraries' interfaces, for `tff_mf.conformance.check`: each is a few lines, to copy and change."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_mf.conformance.claim import Released
from tff_mf.conformance.rounds import leaves, rebuilt


class OfFunction:
    """A function of a cohort's updates that returns what is released, and keeps no state.

    Example:
        >>> sums = OfFunction(lambda updates: sum(updates, np.random.default_rng().normal(size=3)))
        >>> state, released = sums.step(sums.start(), [np.ones(3)])
        >>> released.shape
        (3,)
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function

    def start(self) -> None:
        """Returns no state."""

    def step(self, state: None, updates: Sequence[Any]) -> tuple[None, Any]:
        """Calls the function."""
        return state, self._function(list(updates))


class OfProcess:
    """A `tff.templates.AggregationProcess` over clients; its measurements are beside the result."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def start(self) -> Any:
        """Returns the initial state."""
        return self._process.initialize()

    def step(self, state: Any, updates: Sequence[Any]) -> tuple[Any, Released]:
        """Aggregates the updates."""
        output = self._process.next(state, list(updates))
        return output.state, Released(estimate=output.result, beside=output.measurements)


class OfQuery:
    """A `DPQuery` of TensorFlow Privacy, of this package or another one.

    Args:
        query: The query.
        like: A record, as for `check`.
    """

    def __init__(self, query: Any, like: Any) -> None:
        self._query, self._like = query, like

    def start(self) -> Any:
        """Returns the initial global state."""
        return self._query.initial_global_state()

    def step(self, state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        """Accumulates the updates as records, and adds noise."""
        zeros = rebuilt(self._like, [np.zeros(leaf.shape, np.float32) for leaf in leaves(self._like).values()])
        sums, parameters = self._query.initial_sample_state(zeros), self._query.derive_sample_params(state)
        for update in updates:
            sums = self._query.accumulate_record(parameters, sums, update)
        released, state, _ = self._query.get_noised_result(sums, state)
        return state, released


class OfStacked:
    """An `optax.GradientTransformation` that takes the gradients of a batch, stacked along the first axis.

    Args:
        transformation: The transformation, such as `optax.contrib.differentially_private_aggregate`.
        like: A gradient, as for `check`.
    """

    def __init__(self, transformation: Any, like: Any) -> None:
        self._transformation, self._like = transformation, like

    def start(self) -> Any:
        """Returns the initial state."""
        return self._transformation.init(self._like)

    def step(self, state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        """Transforms the stacked gradients."""
        columns = zip(*(leaves(update).values() for update in updates), strict=True)
        stacked = rebuilt(self._like, [np.stack(column) for column in columns])
        released, state = self._transformation.update(stacked, state)
        return state, released


class OfKeras:
    """A Keras optimizer that clips the gradients of single losses, such as `DPKerasSGDOptimizer` of TFP.

    The loss of a client is the inner product of its update and the weights, whose gradient is the update.

    Args:
        build: Returns the optimizer for a number of clients, with learning rate 1.
        like: A gradient, as for `check`: a list of arrays.
    """

    def __init__(self, build: Callable[[int], Any], like: Sequence[Any]) -> None:
        self._build, self._like = build, like

    def start(self) -> None:
        """Returns no state."""

    def step(self, state: None, updates: Sequence[Any]) -> tuple[None, Any]:
        """Takes one step from weights of zero."""
        import tensorflow as tf

        variables = [tf.Variable(tf.zeros(part.shape)) for part in self._like]
        with tf.GradientTape(persistent=True) as tape:
            products = [
                [tf.reduce_sum(part * weights) for part, weights in zip(update, variables, strict=True)]
                for update in updates
            ]
            losses = tf.stack([tf.add_n(product) for product in products])
        self._build(len(updates)).minimize(losses, variables, tape=tape)
        return state, [-variable.numpy() for variable in variables]
