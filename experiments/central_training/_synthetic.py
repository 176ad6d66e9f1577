"""Made images in the shape of a real data set, for dry runs of its settings."""

import numpy as np

# Side of the patterns that classes are told apart by, before they are enlarged.
_PATTERN = 4
_SIGNAL, _SPREAD = 40.0, 30.0
_PART = 4096


def images(examples: int, *, shape: tuple[int, int, int], classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy pictures of one coarse pattern for each class, the same for the same arguments.

    A network can learn them, and no accuracy on them says anything about real images.

    Args:
        examples: Their number N.
        shape: Height, width and channels; height and width are multiples of 4.
        classes: Number of classes, which occur about equally often.
        seed: Seed of labels and pixels; the patterns are the same for all seeds.

    Returns:
        Images, uint8 `[N, height, width, channels]`, and labels, int32 `[N]`.

    Example:
        >>> x, y = images(3, shape=(8, 8, 1), classes=2, seed=0)
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
