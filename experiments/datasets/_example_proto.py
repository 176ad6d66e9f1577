"""Reads and writes serialized `tf.train.Example`s without TensorFlow, which takes nine seconds to load."""

from collections.abc import Mapping

_NAME, _FEATURE, _BYTES_LIST, _INT64_LIST, _VALUE = 1, 2, 1, 3, 1


def feature_names(example: bytes) -> set[str] | None:
    """Returns the names of the features of a serialized example; None if it is none."""
    try:
        return {_fields(entry)[0][1].decode() for entry in _entries(example)}
    except (ValueError, IndexError, TypeError):
        return None


def strings(example: bytes, name: str) -> list[bytes]:
    """Returns the values of the feature `name`, which must be of strings.

    Raises:
        ValueError: If the example is damaged, or has no such feature.
    """
    for entry in _entries(example):
        parts = dict(_fields(entry))
        if parts[_NAME].decode() == name:
            lists = [value for number, value in _fields(parts[_FEATURE]) if number == _BYTES_LIST]
            return [value for one in lists for number, value in _fields(one) if number == _VALUE]
    raise ValueError(f"no feature {name!r}")


def serialized(features: Mapping[str, str | int]) -> bytes:
    """Returns a serialized example with one value a feature, in the order of `features`: a text or a whole number ≥ 0.

    Example:
        >>> strings(serialized({"score": 0, "tokens": "a b"}), "tokens")
        [b'a b']
    """
    return _field(1, b"".join(_field(1, _entry(name, value)) for name, value in features.items()))


def _entry(name: str, value: str | int) -> bytes:
    text = isinstance(value, str)
    content = value.encode() if isinstance(value, str) else _as_varint(value)
    feature = _field(_BYTES_LIST if text else _INT64_LIST, _field(_VALUE, content))
    return _field(_NAME, name.encode()) + _field(_FEATURE, feature)


def _field(number: int, content: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _entries(example: bytes) -> list[bytes]:
    # The wire format is this simple: Example{1: Features{1: map entry{1: name, 2: feature}}}, all of them
    # with a length before them.
    return [entry for _, features in _fields(example) for _, entry in _fields(features)]


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    fields = []
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 != 2:
            raise ValueError("not a field with a length")
        length, position = _varint(message, position)
        if position + length > len(message):
            raise ValueError("a field that is cut off")
        fields.append((tag >> 3, message[position : position + length]))
        position += length
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
        shift += 7
