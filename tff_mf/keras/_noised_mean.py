"""Noise for sums of clipped gradients, round after round: the part of a training loop that needs the mechanism."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.planning.order import Order
from tff_mf.queries import MatrixFactorizationQuery, build_query


class NoisedMean:
    """Adds a mechanism's noise to the sum of clipped gradients, and divides by the constant batch size.

    The state is explicit, as TensorFlow Privacy's queries have it, and is an argument of the `tf.function` that steps
    it. `Training` keeps it in variables instead.

    Formal guarantee: over the rounds of one state (`init`, then one `next` after another, each on the state of the one
    before), everything returned is a function of one Gaussian release, whose guarantee is
    `order.guarantee(mechanism, noise_multiplier=...)`: if `gradient_sum` of round t is the sum over
    `order.batches(t, 1)` of gradients that depend on one example each, with norms of at most `clip_norm`, as
    `ClippedSum` returns. The graph refuses more rounds than the order has. Each round draws a key of 128 bits from the
    operating system.

    Args:
        mechanism: The mechanism.
        variables: The model's trainable variables, or tensors of their shapes and types.
        order: The order of the examples.
        clip_norm: Bound ζ on the L2 norm of an example's gradient, over all variables together.
        noise_multiplier: σ: standard deviation of each coordinate of Z divided by `clip_norm`.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.

    Example:
        >>> import tff_mf
        >>> from tff_mf import keras
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        >>> order = tff_mf.Order.fixed(examples=8, batch_size=4, epochs=2)
        >>> noise = NoisedMean(tff_mf.Tree(4), model.trainable_variables, order=order, clip_norm=1.0,
        ...                    noise_multiplier=2.0)
        >>> clipped_sum = keras.ClippedSum(model, "mean_squared_error", clip_norm=1.0)
        >>> state = noise.init()
        >>> for x, y in keras.dataset(order, (tf.ones([8, 2]), tf.ones([8, 1]))):
        ...     mean, state = noise.next(clipped_sum(x, y), state)
        >>> [tensor.shape.as_list() for tensor in mean], int(state.noise.round)
        ([[2, 1], [1]], 4)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the mechanism has fewer rounds than the order.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        variables: Iterable[Any],
        *,
        order: Order,
        clip_norm: float,
        noise_multiplier: float,
        insecure_seed: int | None = None,
    ) -> None:
        validation.instance("order", order, Order, "pass a tff_mf.Order")
        specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        if not specs:
            raise InputTypeError("variables=[] has nothing to train: pass the model's trainable_variables.")
        query = build_query(
            mechanism,
            record_specs=specs,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            insecure_seed=insecure_seed,
        )
        self._order = order
        self._query = query.bound_to(order.fingerprint.hex()).limited_to(order.rounds)

    @property
    def query(self) -> MatrixFactorizationQuery:
        """The query, limited to the rounds of the order."""
        return self._query

    @property
    def order(self) -> Order:
        """The order of the examples."""
        return self._order

    def init(self) -> Any:
        """Returns the state before round 0. Secret, because the noise can be subtracted with it."""
        return self._query.initial_global_state()

    def next(self, gradient_sum: Any, state: Any) -> tuple[Any, Any]:
        """Returns the noised mean, and the state of the next round.

        Args:
            gradient_sum: Sum of the clipped gradients, a list of tensors, one for each variable.
            state: The state before this round.

        Raises:
            InputValueError: If the sum has other shapes than the variables.
            tf.errors.InvalidArgumentError: From the graph, past the last round of the order.
        """
        noised, state, _ = self._query.get_noised_result(list(gradient_sum), state)
        divisor = float(self._order.batch_size)
        return [part / tf.cast(divisor, part.dtype) for part in noised], state

    def guarantee(self, *, adjacency: str = "zero-out") -> accounting.Guarantee:
        """Returns the guarantee of the whole training, without amplification: see `Order.guarantee`.

        Raises:
            InputValueError: If the noise is repeatable.
        """
        self._check_secure()
        return self._order.guarantee(
            self._query.mechanism, noise_multiplier=self._query.noise_multiplier, adjacency=adjacency
        )

    def epsilon(self, delta: float) -> float:
        """Returns ε of the whole training, for zero-out of one example: see `Order.epsilon`.

        Raises:
            InputValueError: If the noise is repeatable, or no ε is known for the order and the mechanism.
        """
        self._check_secure()
        return self._order.epsilon(self._query.mechanism, noise_multiplier=self._query.noise_multiplier, delta=delta)

    def statement(self, delta: float) -> str:
        """Returns the guarantee of the whole training in one line: see `Order.statement`.

        Raises:
            InputValueError: As `epsilon`, and if δ is not below 1 / examples.
        """
        self._check_secure()
        return self._order.statement(self._query.mechanism, noise_multiplier=self._query.noise_multiplier, delta=delta)

    def _check_secure(self) -> None:
        if self._query.insecure:
            raise InputValueError(
                "insecure_seed was given: TEST ONLY, such a training has no privacy guarantee. Leave it out."
            )
