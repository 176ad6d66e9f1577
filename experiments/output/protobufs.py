"""Messages of TensorFlow without TensorFlow, which takes nine seconds to load."""

import functools
from typing import Any

from tff_mf.base.errors import MissingDependencyError

# Number and type of each field that is used; a type with a star is repeated. A map is a list of its entries.
_MESSAGES = {
    "Example": {"features": (1, "Features")},
    "Features": {"feature": (1, "Entry*")},
    "Entry": {"key": (1, "string"), "value": (2, "Feature")},
    "Feature": {"bytes_list": (1, "BytesList"), "int64_list": (3, "Int64List")},
    "BytesList": {"value": (1, "bytes*")},
    "Int64List": {"value": (1, "int64*")},
}


def new(name: str) -> Any:
    """Returns a new message.

    Raises:
        MissingDependencyError: If protobuf is not installed.
    """
    return _classes()[name]()


def parsed(name: str, data: bytes) -> Any:
    """Returns the message in `data`.

    Raises:
        ValueError: If it is damaged or was cut off.
        MissingDependencyError: If protobuf is not installed.
    """
    message = new(name)
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except (DecodeError, TypeError) as error:
        raise ValueError("it is damaged or was cut off") from error
    return message


@functools.cache
def _classes() -> dict[str, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingDependencyError(
            "Reading files of TensorFlow needs protobuf, not installed here. Run: pip install protobuf"
        ) from None

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tff_mf.proto", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, described) in fields.items():
            kind = described.removesuffix("*")
            message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_OPTIONAL if kind == described else kinds.LABEL_REPEATED,
                type=kinds.TYPE_MESSAGE if kind in _MESSAGES else getattr(kinds, f"TYPE_{kind.upper()}"),
                type_name=kind if kind in _MESSAGES else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name], pool)
