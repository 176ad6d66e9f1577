"""Sum of the gradients of single examples, each of which is clipped."""

from typing import Any

import tensorflow as tf

from tff_mf.base.errors import InputValueError
from tff_mf.frameworks.keras import _checks
from tff_mf.queries import clipping

# Values of single examples' gradients that are in memory at a time.
_MOST_VALUES = 2**25


class ClippedSum:
    """The sum over a batch of the gradients of single examples, each clipped to the norm `clip_norm`.

    Formal guarantee: the result is a sum of one term for each example of the batch, which depends on that example, the
    weights and random bits (of dropout) alone. The L2 norm of a term, over all variables together, is at most
    ζ = `clip_norm` in exact arithmetic, by norms in float64 and the margins of `tff_mf.queries.clipping.clip_record`. A
    term that is not finite is zero. The rounding of the sum itself, in float32, is not covered, as it is not for sums
    of clients.

    A loss or a model that computes with several examples at once has no such terms. Losses and models are therefore
    evaluated on batches of one example, in parallel (`tf.vectorized_map`; one by one if the model has recurrent layers
    that are not unrolled). Layers that update variables in training, such as `BatchNormalization`, and losses that are
    added to the model, such as regularizers, are refused.

    TensorFlow Privacy's fast gradient clipping is not used, because a gradient can exceed its bound.

    Args:
        model: A model that is built; `training=True` is passed to it.
        loss: A loss of Keras, by name or as an object, or a function of (targets, outputs). It gets a batch of one; if
            it returns several values, their mean is taken.
        clip_norm: Bound ζ on the norm of an example's gradient; from 1e-20 to 1e20.

    Source: Abadi et al. (2016), algorithm 1.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(2,))])
        >>> model.set_weights([tf.zeros([2, 1])])
        >>> total = ClippedSum(model, "mean_squared_error", clip_norm=1.0)
        >>> total(tf.constant([[3.0, 4.0], [0.1, 0.0]]), tf.constant([[5.0], [-1.0]]))[0].numpy().round(3)
        array([[-0.4],
               [-0.8]], dtype=float32)

    Raises:
        InputValueError: If the model is refused, or `clip_norm` is out of range.
    """

    def __init__(self, model: tf.keras.Model, loss: str | _checks.Loss, *, clip_norm: float) -> None:
        _checks.check(model)
        self._model, self._loss = model, _checks.loss_function(loss)
        self._clip_norm = clipping.checked_clip_norm(clip_norm)
        self._variables = model.trainable_variables
        self._function = tf.function(self._checked_sum, autograph=False, reduce_retracing=True)

    def __call__(self, x: Any, y: Any, present: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns the sum over a batch.

        Args:
            x: Inputs: a structure of tensors, `[batch, ...]` each.
            y: Targets: a structure of tensors, `[batch, ...]` each.
            present: Which places of the batch hold an example, bool `[batch]`; all if `None`. Others contribute zero.

        Returns:
            A list of tensors, float32, one for each of `model.trainable_variables`.

        Raises:
            InputValueError: If the model updates variables or adds losses when it is called.
        """
        if tf.config.functions_run_eagerly():
            raise InputValueError(
                "functions run eagerly, and no graph shows whether the model updates variables: call "
                "tf.config.run_functions_eagerly(False)."
            )
        _checks.check_options()
        x, y = (tf.nest.map_structure(tf.convert_to_tensor, structure) for structure in (x, y))
        if present is None:
            present = tf.ones([tf.shape(tf.nest.flatten(x)[0])[0]], tf.bool)
        return self._function(x, y, present)

    def _checked_sum(self, x: Any, y: Any, present: tf.Tensor) -> list[tf.Tensor]:
        # A graph is made when the sum is first computed, and again for other shapes.
        _checks.check(self._model)
        if list(map(id, self._model.trainable_variables)) != list(map(id, self._variables)):
            raise InputValueError("model has other layers than when it was passed: make it whole first.")
        with tf.control_dependencies(_of_one_length([*tf.nest.flatten((x, y)), present])):
            sums = self._sum(*tf.nest.map_structure(tf.identity, (x, y, present)))
        _checks.check_graph(self._model, tf.compat.v1.get_default_graph())
        return sums

    def _sum(self, x: Any, y: Any, present: tf.Tensor) -> list[tf.Tensor]:
        size = max(1, _MOST_VALUES // _values_of(self._variables))
        if present.shape[0] is not None and present.shape[0] <= size:
            return self._part(x, y, present)
        batch = tf.shape(present)[0]

        def add(begin: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            part = tf.nest.map_structure(lambda tensor: tensor[begin : begin + size], (x, y, present))
            return begin + size, [old + new for old, new in zip(sums, self._part(*part), strict=True)]

        zeros = [tf.zeros(variable.shape, tf.float32) for variable in self._variables]
        # One part at a time: the parts are there to bound memory.
        return tf.while_loop(lambda begin, _: begin < batch, add, [tf.constant(0), zeros], parallel_iterations=1)[1]

    def _part(self, x: Any, y: Any, present: tf.Tensor) -> list[tf.Tensor]:
        return clipped(self._gradients(x, y), present, self._clip_norm)

    def _gradients(self, x: Any, y: Any) -> list[tf.Tensor]:
        """Returns the gradients of each example: a tensor `[batch, ...]` for each variable."""

        def one(example: Any) -> list[tf.Tensor]:
            inputs, target = tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], example)
            with tf.GradientTape() as tape:
                outputs = self._model(inputs, training=True)
                # Keras would pass each of several to a loss of its own.
                if len(tf.nest.flatten(outputs)) != 1:
                    raise InputValueError(
                        f"model has {len(tf.nest.flatten(outputs))} outputs, and the loss is of one: make one output "
                        "of them, with tf.keras.layers.Concatenate."
                    )
                value = tf.reduce_mean(self._loss(target, outputs))
            gradients = tape.gradient(value, self._variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return [tf.convert_to_tensor(gradient) for gradient in gradients]

        # `tf.vectorized_map` cannot differentiate loops over time steps.
        layers = self._model._flatten_layers()
        if any(isinstance(layer, tf.keras.layers.RNN) and not layer.unroll for layer in layers):
            specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._variables]
            return tf.map_fn(one, (x, y), fn_output_signature=specs)
        return tf.vectorized_map(one, (x, y))


def clipped(gradients: list[tf.Tensor], present: tf.Tensor, clip_norm: Any) -> list[tf.Tensor]:
    """Returns the sums of gradients `[batch, ...]`, of which each example's are clipped together.

    A gradient that is not finite contributes zero, and so does a place in which no example is present.
    """
    flat = [tf.reshape(gradient, [tf.shape(gradient)[0], gradient.shape[1:].num_elements()]) for gradient in gradients]
    squares = [tf.reduce_sum(tf.square(tf.cast(gradient, tf.float64)), axis=1) for gradient in flat]
    factors = clipping.factors(tf.sqrt(tf.add_n(squares)), tf.constant(clip_norm, tf.float32))
    weights = tf.where(present, factors, 0.0)[:, tf.newaxis]
    # Each product is rounded once, and then all are added: no matrix product, which may compute in fewer bits.
    return [
        tf.reshape(tf.reduce_sum(tf.math.multiply_no_nan(rows, weights), axis=0), gradient.shape[1:])
        for rows, gradient in zip(flat, gradients, strict=True)
    ]


def _of_one_length(tensors: list[tf.Tensor]) -> list[Any]:
    """Returns checks that all tensors have one entry for each example: TensorFlow repeats one for all others."""
    lengths = {0 if tensor.shape.rank == 0 else tensor.shape[0] for tensor in tensors} - {None}
    if len(lengths) > 1:
        shapes = [str(tensor.shape) for tensor in tensors]
        raise InputValueError(f"a batch has arrays of the shapes {shapes}: each must have one entry for each example.")
    message = "The arrays of a batch must have one entry for each example."
    checks = [
        tf.debugging.assert_equal(tf.shape(tensor)[0], tf.shape(tensors[0])[0], message) for tensor in tensors[1:]
    ]
    return [check for check in checks if check is not None]


def _values_of(variables: list[tf.Variable]) -> int:
    """Returns how many values the gradients of one example have in memory."""
    return sum(variable.shape.num_elements() for variable in variables)
