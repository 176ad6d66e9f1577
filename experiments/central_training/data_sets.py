"""Data sets of images by name: their sizes without loading them, and their real loaders."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

Examples = tuple[np.ndarray, np.ndarray]

_SYNTHETIC = "synthetic-cifar10"
_MOST_SYNTHETIC = 10**6
# The order in which a data set is cut into parts; never the seed of a run, whose parts would then differ.
_SPLIT_SEED = 0
_DIGITS, _DIGITS_TEST = 1797, 297
# ByMerge of Cohen et al. (2017): these capital and small letters are one class.
_MERGED = "CIJKLMOPSUVWXYZ"
_CAPITALS, _SMALL = 10, 36


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData:
    """The parts of a data set; each is images, uint8 `[N, height, width, channels]`, and labels, int32 `[N]`.

    Attributes:
        train: Examples that are trained on, and protected.
        validation: Examples that were split off the training data, and are not trained on.
        test: The data set's own test split.
    """

    train: Examples
    validation: Examples
    test: Examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A data set by name.

    Attributes:
        examples: Number of training examples.
        shape: Height, width and channels.
        network: Name of the network that is usual for it.
        loader: What loads it, in words.
        load: Returns its training and its test examples.
    """

    name: str
    examples: int
    shape: tuple[int, int, int]
    classes: int
    network: str
    loader: str
    load: Callable[[], tuple[Examples, Examples]]

    def split(self, validation_examples: int) -> ImageData:
        """Loads the data set, and splits a part off its training examples, always the same one."""
        (images, labels), test = self._loaded()
        if images.shape != (self.examples, *self.shape):
            raise InputValueError(
                f"dataset={self.name!r}: {self.loader} returned images of shape {images.shape}, not "
                f"{(self.examples, *self.shape)}: remove the damaged files, and load it again."
            )
        order = np.random.default_rng(_SPLIT_SEED).permutation(self.examples)
        kept, held = np.split(order, [self.examples - validation_examples])
        return ImageData(
            train=(images[kept], labels[kept]),
            validation=(images[held], labels[held]),
            test=test,
        )

    def _loaded(self) -> tuple[Examples, Examples]:
        try:
            # Keras announces downloads on stdout, which has the result of the command.
            with contextlib.redirect_stdout(sys.stderr):
                return self.load()
        except MemoryError:
            raise
        # The loaders raise nearly anything: urllib's errors, plain exceptions, TensorFlow's, a damaged archive's.
        except Exception as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise InputValueError(
                f"dataset={self.name!r} cannot be loaded ({reason}): {self.loader} downloads it once, which needs the "
                "Internet; run the command there first, or copy the loader's cache to this machine. digits and "
                f"{_SYNTHETIC} need no download."
            ) from error


def _digits() -> tuple[Examples, Examples]:
    from sklearn import datasets

    found: Any = datasets.load_digits()
    images = np.round(found.data * (255 / 16)).astype(np.uint8).reshape(_DIGITS, 8, 8, 1)
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = np.split(order, [_DIGITS - _DIGITS_TEST])
    labels = found.target.astype(np.int32)
    return (images[train], labels[train]), (images[test], labels[test])


def _mnist() -> tuple[Examples, Examples]:
    import tensorflow as tf

    train, test = tf.keras.datasets.mnist.load_data()
    return _as_examples(*train), _as_examples(*test)


def _cifar10() -> tuple[Examples, Examples]:
    import tensorflow as tf

    train, test = tf.keras.datasets.cifar10.load_data()
    return _as_examples(*train), _as_examples(*test)


def _emnist() -> tuple[Examples, Examples]:
    import tensorflow_federated as tff

    train, test = tff.simulation.datasets.emnist.load_data(only_digits=False)
    return _pooled(train), _pooled(test)


def _pooled(data: Any) -> Examples:
    """Returns the examples of all clients, client after client."""
    found = data.create_tf_dataset_from_all_clients(seed=_SPLIT_SEED)
    elements = list(found.batch(4096).as_numpy_iterator())
    pixels = np.concatenate([each["pixels"] for each in elements])
    labels = np.concatenate([each["label"] for each in elements])
    # TFF has black ink, 0, on white paper, 1.
    return _as_examples(np.round(255 * (1 - pixels)).astype(np.uint8), merged(labels))


def merged(labels: np.ndarray) -> np.ndarray:
    """Returns EMNIST's 62 classes as the 47 of ByMerge: digits, capitals, and the small letters that differ from them.

    Example:
        >>> merged(np.array([9, 10, 35, 36, 38, 61])).tolist()  # 9, A, Z, a, c, z
        [9, 10, 35, 36, 12, 35]
    """
    classes = np.arange(62)
    following = _SMALL
    for letter in range(26):
        if chr(ord("A") + letter) in _MERGED:
            classes[_SMALL + letter] = _CAPITALS + letter
        else:
            classes[_SMALL + letter] = following
            following += 1
    return classes[labels]


def _as_examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    images = images if images.ndim == 4 else images[..., np.newaxis]
    return images, labels.reshape(-1).astype(np.int32)


_SOURCES: Mapping[str, ImageSource] = {
    source.name: source
    for source in (
        ImageSource(
            name="digits",
            examples=_DIGITS - _DIGITS_TEST,
            shape=(8, 8, 1),
            classes=10,
            network="digits",
            loader="sklearn.datasets.load_digits",
            load=_digits,
        ),
        ImageSource(
            name="mnist",
            examples=60_000,
            shape=(28, 28, 1),
            classes=10,
            network="kairouz-small",
            loader="tf.keras.datasets.mnist.load_data",
            load=_mnist,
        ),
        ImageSource(
            name="cifar10",
            examples=50_000,
            shape=(32, 32, 3),
            classes=10,
            network="kairouz-vgg",
            loader="tf.keras.datasets.cifar10.load_data",
            load=_cifar10,
        ),
        ImageSource(
            name="emnist",
            examples=671_585,
            shape=(28, 28, 1),
            classes=47,
            network="kairouz-small",
            loader="tff.simulation.datasets.emnist.load_data",
            load=_emnist,
        ),
    )
}


def names() -> tuple[str, ...]:
    """Returns the names of all data sets; `synthetic-cifar10` may have a size behind a colon.

    Example:
        >>> names()
        ('digits', 'mnist', 'cifar10', 'emnist', 'synthetic-cifar10')
    """
    return (*_SOURCES, _SYNTHETIC)


def named(name: str) -> ImageSource:
    """Returns a data set by its name, without loading it.

    Example:
        >>> named("synthetic-cifar10:2000").examples
        2000
    """
    kind, colon, size = name.partition(":")
    if kind == _SYNTHETIC:
        return _synthetic_cifar10(name, size if colon else "50000")
    if name not in _SOURCES:
        meant = validation.did_you_mean(name, names())
        raise InputValueError(f"dataset={name!r} is none of {', '.join(names())}{meant}")
    return _SOURCES[name]


# Side of the patterns that classes are told apart by, before they are enlarged.
_PATTERN = 4
_SIGNAL, _SPREAD = 40.0, 30.0
_PART = 4096


def synthetic_images(
    examples: int, *, shape: tuple[int, int, int], classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy pictures of one coarse pattern for each class, the same for the same arguments.

    A network can learn them, and no accuracy on them says anything about real images.
    Height and width, first in `shape`, are multiples of 4; classes occur about equally often; and the patterns are the
    same for all seeds.

    Returns:
        Images, uint8 `[examples, *shape]`, and labels, int32 `[examples]`.

    Example:
        >>> x, y = synthetic_images(3, shape=(8, 8, 1), classes=2, seed=0)
        >>> x.shape, x.dtype.name, y.shape
        ((3, 8, 8, 1), 'uint8', (3,))
    """
    height, width, channels = shape
    coarse = np.random.default_rng(0).choice([-1.0, 1.0], size=(classes, _PATTERN, _PATTERN, channels))
    patterns = np.kron(coarse, np.ones((1, height // _PATTERN, width // _PATTERN, 1))).astype(np.float32)
    generator = np.random.default_rng([seed, examples])
    labels = generator.integers(classes, size=examples, dtype=np.int32)
    pixels = np.empty((examples, *shape), np.uint8)
    for begin in range(0, examples, _PART):
        part = labels[begin : begin + _PART]
        noise = generator.standard_normal((len(part), *shape), dtype=np.float32)
        pixels[begin : begin + _PART] = np.clip(128 + _SIGNAL * patterns[part] + _SPREAD * noise, 0, 255)
    return pixels, labels


def _synthetic_cifar10(name: str, size: str) -> ImageSource:
    if not (size.isascii() and size.isdecimal() and 0 < int(size[:9]) <= _MOST_SYNTHETIC and len(size) < 9):
        raise InputValueError(
            f"dataset={name!r} must be {_SYNTHETIC} or {_SYNTHETIC}:N with N training examples, at most "
            f"{_MOST_SYNTHETIC}."
        )
    examples, cifar = int(size), _SOURCES["cifar10"]

    def load() -> tuple[Examples, Examples]:
        train, test = (
            synthetic_images(number, shape=cifar.shape, classes=cifar.classes, seed=seed)
            for seed, number in enumerate((examples, max(1, examples // 5)))
        )
        return train, test

    return dataclasses.replace(cifar, name=name, examples=examples, loader="made here", load=load)
