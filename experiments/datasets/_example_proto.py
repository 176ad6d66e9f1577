"""Reads and writes serialized `tf.train.Example`s without TensorFlow."""

from collections.abc import Mapping
from typing import Any

from ..output import protobufs


def feature_names(example: bytes) -> set[str] | None:
    """Returns the names of the features of a serialized example; None if it is none."""
    try:
        return set(_features(example))
    except ValueError:
        return None


def strings(example: bytes, name: str) -> list[bytes]:
    """Returns the values of the feature `name`, which must be of strings.

    Raises:
        ValueError: If the example is damaged, or has no such feature.
    """
    features = _features(example)
    if name not in features:
        raise ValueError(f"no feature {name!r}")
    return list(features[name].bytes_list.value)


def serialized(features: Mapping[str, str | int]) -> bytes:
    """Returns a serialized example with one value a feature, in the order of `features`: a text or a whole number.

    Example:
        >>> strings(serialized({"score": 0, "tokens": "a b"}), "tokens")
        [b'a b']
    """
    example = protobufs.new("Example")
    for name, value in features.items():
        feature = example.features.feature.add(key=name).value
        if isinstance(value, str):
            feature.bytes_list.value.append(value.encode())
        else:
            feature.int64_list.value.append(value)
    return example.SerializeToString()


def _features(example: bytes) -> dict[str, Any]:
    return {entry.key: entry.value for entry in protobufs.parsed("Example", example).features.feature}
