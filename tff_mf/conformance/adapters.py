"""Subjects of other libraries' interfaces, for `tff_mf.conformance.check`: each is a few lines, to copy and change."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_mf.conformance.trial import Released, leaves, rebuilt


@dataclasses.dataclass(frozen=True)
class Made:
    """A subject of two functions; without a state, if it has no `start`."""

    step: Callable[[Any, Sequence[Any]], tuple[Any, Any]]
    start: Callable[[], Any] = lambda: None


def of_function(function: Callable[[Sequence[Any]], Any]) -> Made:
    """Returns a function of a cohort's updates, which returns what is released, as a subject without a state.

    Example:
        >>> sums = of_function(lambda updates: sum(updates, np.random.default_rng().normal(size=3)))
        >>> state, released = sums.step(sums.start(), [np.ones(3)])
        >>> released.shape
        (3,)
    """
    return Made(lambda state, updates: (state, function(updates)))


def of_process(process: Any) -> Made:
    """Returns a `tff.templates.AggregationProcess` over clients as a subject: measurements are beside the result."""

    def step(state: Any, updates: Sequence[Any]) -> tuple[Any, Released]:
        output = process.next(state, list(updates))
        return output.state, Released(estimate=output.result, beside=output.measurements)

    return Made(step, process.initialize)


def of_query(query: Any, like: Any) -> Made:
    """Returns a `DPQuery` of TensorFlow Privacy, of this package or another one, as a subject, in graphs as in TFF.

    Args:
        query: The query.
        like: A record, as for `check`.
    """
    import tensorflow as tf

    # Outside of graphs, each call would build anew what asks the system for a key.
    accumulate, noised = tf.function(query.accumulate_record), tf.function(query.get_noised_result)
    zeros = rebuilt(like, [np.zeros(leaf.shape, np.float32) for leaf in leaves(like).values()])

    def step(state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        sums, parameters = query.initial_sample_state(zeros), query.derive_sample_params(state)
        for update in updates:
            sums = accumulate(parameters, sums, update)
        released, state, _ = noised(sums, state)
        return state, released

    return Made(step, query.initial_global_state)


def of_stacked(make: Callable[[], Any], like: Any) -> Made:
    """Returns an `optax.GradientTransformation` as a subject; it takes gradients that are stacked along the first axis.

    Args:
        make: Returns the transformation, such as `optax.contrib.differentially_private_aggregate`, with another key for
            each start.
        like: A gradient, as for `check`.
    """

    def start() -> Any:
        transformation = make()
        return transformation, transformation.init(like)

    def step(state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        transformation, state = state
        columns = zip(*(leaves(update).values() for update in updates), strict=True)
        released, state = transformation.update(rebuilt(like, map(np.stack, columns)), state)
        return (transformation, state), released

    return Made(step, start)


def of_keras(build: Callable[[int], Any], like: Sequence[Any]) -> Made:
    """Returns a Keras optimizer that clips gradients, such as `DPKerasSGDOptimizer` of TFP, as a subject.

    The loss of a client is the inner product of its update and the weights, whose gradient is the update.

    Args:
        build: Returns the optimizer for a number of clients, with learning rate 1.
        like: A gradient, as for `check`: a list of arrays.
    """
    import tensorflow as tf

    @functools.cache
    def graph(clients: int) -> Any:
        variables, optimizer = [tf.Variable(tf.zeros(np.shape(part))) for part in like], build(clients)

        @tf.function
        def step(*columns: Any) -> list[Any]:
            """Takes one step from weights of zero."""
            for variable in variables:
                variable.assign(tf.zeros_like(variable))
            with tf.GradientTape(persistent=True) as tape:
                products = [column * variable for column, variable in zip(columns, variables, strict=True)]
                losses = tf.add_n([tf.reduce_sum(one, range(1, one.shape.rank)) for one in products])
            optimizer.minimize(losses, variables, tape=tape)
            return [-variable for variable in variables]

        return step

    def step(state: None, updates: Sequence[Any]) -> tuple[None, Any]:
        columns = (np.asarray(parts, np.float32) for parts in zip(*updates, strict=True))
        return state, graph(len(updates))(*columns)

    return Made(step)
