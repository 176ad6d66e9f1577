"""Gradients of all examples of a batch at once, for chains of layers whose gradients are known in closed form."""

from collections.abc import Callable

import tensorflow as tf

from tff_mf.keras._per_example import Gradients, Outer, Stacked

_layers = tf.keras.layers
# Each maps one example at a time, whatever its settings. Subclasses may not, and are not among them.
_WITHOUT_VARIABLES = frozenset(
    {
        _layers.AveragePooling2D,
        _layers.Dropout,
        _layers.ELU,
        _layers.Flatten,
        _layers.GlobalAveragePooling2D,
        _layers.GlobalMaxPooling2D,
        _layers.InputLayer,
        _layers.LeakyReLU,
        _layers.MaxPooling2D,
        _layers.ReLU,
        _layers.Rescaling,
        _layers.Reshape,
        _layers.ZeroPadding2D,
    }
)
# A function of the user's own may compute with several examples.
_NAMES = ("elu", "gelu", "linear", "relu", "selu", "sigmoid", "softmax", "softplus", "swish", "tanh")
_ACTIVATIONS = (
    *(getattr(tf.keras.activations, name) for name in _NAMES),
    tf.nn.elu,
    tf.nn.relu,
    tf.nn.selu,
    tf.nn.tanh,
)


def is_chain(model: tf.keras.Model) -> bool:
    """Returns whether `chain_gradients` knows every layer of a model, and that each maps one example at a time."""
    # A model that was called with batches of different shapes has no inputs, and no shapes.
    if type(model) is not tf.keras.Sequential or not model.inputs:
        return False
    layers = model.layers
    distinct = len({id(layer) for layer in layers}) == len(layers)
    variables = [id(variable) for layer in layers for variable in layer.trainable_variables]
    return distinct and len(set(variables)) == len(variables) and all(map(_is_known, layers))


def values_in_memory(model: tf.keras.Model) -> int:
    """Returns how many values `chain_gradients` has in memory for one example, of patches and gradients."""
    convolutions = [layer for layer in model.layers if type(layer) is _layers.Conv2D]
    patches = [
        layer.output_shape[1] * layer.output_shape[2] * layer.kernel.shape[:3].num_elements() for layer in convolutions
    ]
    return 1 + sum(patches) + sum(layer.kernel.shape.num_elements() for layer in convolutions)


def chain_gradients(
    model: tf.keras.Model,
    inputs: tf.Tensor,
    of_loss: Callable[[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]], tf.Tensor],
) -> list[Gradients]:
    """Returns the gradients of each example's loss for the model's trainable variables, in their order.

    One pass forward and one back, with the same masks of dropout, give the gradient g of each layer's result. For a
    dense layer with the input x, the gradient of an example's kernel is the outer product of x and g; for a
    convolution, it is the product of the patches of x, transposed, and g.

    Args:
        model: A model for which `is_chain` holds.
        inputs: A batch of examples, float32 `[batch, ...]`.
        of_loss: Returns the gradient of each example's loss for its own result of the chain, to which an activation is
            applied first. Keras finds the logits of a softmax only where it is called together with its loss.
    """
    trained: list[tuple[tf.keras.layers.Layer, tf.Tensor, tf.Tensor]] = []
    hidden, activation = tf.cast(inputs, tf.float32), tf.keras.activations.linear
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        for layer in model.layers:
            hidden = activation(hidden)
            activation = getattr(layer, "activation", tf.keras.activations.linear)
            if layer.weights:
                layer_input, hidden = hidden, _linear(layer, hidden)
                tape.watch(hidden)
                trained.append((layer, layer_input, hidden))
            elif type(layer) is not _layers.Activation:
                hidden = layer(hidden, training=True)
    results = [result for _, _, result in trained]
    gradients = tape.gradient(
        hidden,
        results,
        output_gradients=of_loss(hidden, activation),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    found: list[Gradients] = []
    for (layer, layer_input, _), gradient in zip(trained, gradients, strict=True):
        if layer.trainable:
            found.extend(_of_layer(layer, layer_input, gradient))
    return found


def _is_known(layer: tf.keras.layers.Layer) -> bool:
    if layer.compute_dtype != "float32":
        return False
    if type(layer) in _WITHOUT_VARIABLES:
        return True
    if getattr(layer, "activation", None) not in _ACTIVATIONS:
        return False
    if type(layer) is _layers.Dense:
        return len(layer.input_shape) == 2
    if type(layer) is _layers.Conv2D:
        return layer.data_format == "channels_last" and layer.groups == 1 and None not in layer.output_shape[1:]
    return type(layer) is _layers.Activation


def _linear(layer: tf.keras.layers.Layer, inputs: tf.Tensor) -> tf.Tensor:
    """Returns the result of a layer before its activation."""
    if type(layer) is _layers.Dense:
        product = tf.matmul(inputs, layer.kernel)
    else:
        product = tf.nn.convolution(
            inputs,
            layer.kernel,
            strides=layer.strides,
            padding=layer.padding.upper(),
            dilations=layer.dilation_rate,
        )
    return tf.nn.bias_add(product, layer.bias) if layer.use_bias else product


def _of_layer(layer: tf.keras.layers.Layer, inputs: tf.Tensor, gradient: tf.Tensor) -> list[Gradients]:
    if type(layer) is _layers.Dense:
        kernel: Gradients = Outer(inputs, gradient)
        bias = Stacked(gradient)
    else:
        patches = tf.image.extract_patches(
            inputs,
            sizes=[1, *layer.kernel_size, 1],
            strides=[1, *layer.strides, 1],
            rates=[1, *layer.dilation_rate, 1],
            padding=layer.padding.upper(),
        )
        batch, places = tf.shape(gradient)[0], gradient.shape[1] * gradient.shape[2]
        patches = tf.reshape(patches, [batch, places, patches.shape[3]])
        products = tf.matmul(patches, tf.reshape(gradient, [batch, places, layer.filters]), transpose_a=True)
        kernel = Stacked(tf.reshape(products, [batch, *layer.kernel.shape]))
        bias = Stacked(tf.reduce_sum(gradient, axis=[1, 2]))
    return [kernel, bias] if layer.use_bias else [kernel]
