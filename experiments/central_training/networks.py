"""Networks by name: the networks of the papers' image experiments, and a small one for digits."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

# Height and width of the smallest images that each takes.
LEAST_SIDE = {"digits": 6, "kairouz-small": 13, "kairouz-vgg": 8}
NAMES = tuple(LEAST_SIDE)

# From the mode of Keras' variance scaling to the initializer of the next layer.
Initial = Callable[[str], Any]


def build(name: str, *, shape: Sequence[int], classes: int, seed: int) -> "tf.keras.Sequential":
    """Returns a network for images of bytes, with logits as its result and weights that follow from a seed.

    `kairouz-small` and `kairouz-vgg` are the networks of Kairouz et al. (2021), table 2; activations (tanh), paddings,
    pooling and initial weights are of the code that was released with the paper.

    Example:
        >>> build("digits", shape=(8, 8, 1), classes=10, seed=1).count_params()
        1258
    """
    import tensorflow as tf

    from tff_mf.base import validation

    validation.one_of("network", name, NAMES)
    initial = _initial_weights(seed)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input(tuple(shape)),
            tf.keras.layers.Rescaling(1 / 127.5, offset=-1),
            *_LAYERS[name](initial),
            tf.keras.layers.Dense(classes, kernel_initializer=initial("fan_avg")),
        ]
    )


def _initial_weights(seed: int) -> Initial:
    """Returns what makes the initializer of each layer: two layers with one seed would begin with the same weights."""
    import tensorflow as tf

    layers = itertools.count(1)

    def initial(mode: str) -> Any:
        return tf.keras.initializers.VarianceScaling(
            mode=mode, distribution="untruncated_normal", seed=1000 * seed + next(layers)
        )

    return initial


def _convolution(initial: Initial, filters: int, size: int, **more: Any) -> Any:
    import tensorflow as tf

    return tf.keras.layers.Conv2D(
        filters, size, activation="tanh", kernel_initializer=initial("fan_in"), **{"padding": "same", **more}
    )


def _dense(initial: Initial, units: int) -> Any:
    import tensorflow as tf

    return tf.keras.layers.Dense(units, activation="tanh", kernel_initializer=initial("fan_avg"))


def _digits(initial: Initial) -> list[Any]:
    from tensorflow.keras import layers

    return [
        _convolution(initial, 8, 3, padding="valid"),
        layers.MaxPooling2D(2),
        _convolution(initial, 16, 2, padding="valid"),
        layers.Flatten(),
    ]


def _kairouz_small(initial: Initial) -> list[Any]:
    from tensorflow.keras import layers

    return [
        _convolution(initial, 16, 8, strides=2),
        layers.MaxPooling2D(2, strides=1),
        _convolution(initial, 32, 4, strides=2, padding="valid"),
        layers.MaxPooling2D(2, strides=1),
        layers.Flatten(),
        _dense(initial, 32),
    ]


def _kairouz_vgg(initial: Initial) -> list[Any]:
    from tensorflow.keras import layers

    blocks = [
        [_convolution(initial, filters, 3), _convolution(initial, filters, 3), layers.MaxPooling2D(2)]
        for filters in (32, 64, 128)
    ]
    return [*(layer for block in blocks for layer in block), layers.Flatten(), _dense(initial, 128)]


_LAYERS: Mapping[str, Callable[[Initial], list[Any]]] = {
    "digits": _digits,
    "kairouz-small": _kairouz_small,
    "kairouz-vgg": _kairouz_vgg,
}
