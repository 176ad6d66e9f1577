"""SavedModels for TensorFlow Lite, where it can convert them."""

import dataclasses
import os
import re

import tensorflow as tf

_REASON_LENGTH = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiteModel:
    """A SavedModel for TensorFlow Lite, or why there is none.

    Attributes:
        content: The file, or `None`.
        reason: Why there is none, or an empty text.
    """

    content: bytes | None
    reason: str = ""


def convert_to_lite(saved_model: str | os.PathLike[str]) -> LiteModel:
    """Returns a SavedModel converted for TensorFlow Lite, with the operations that it needs TensorFlow for.

    It runs where the Flex delegate is linked in, as in TensorFlow's own Python package. What cannot be converted is no
    error: the result says why.

    Args:
        saved_model: Folder of the SavedModel.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(os.fspath(saved_model))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter.experimental_enable_resource_variables = True
    try:
        return LiteModel(content=converter.convert())
    # The converter raises whatever its parts raise, and whatever it is, there is no file.
    except Exception as error:
        return LiteModel(content=None, reason=_reason(str(error)))


def _reason(message: str) -> str:
    custom = re.search(r"^Custom ops: (.*)$", message, re.MULTILINE)
    if custom:
        return f"TensorFlow Lite has no {custom[1]}, and SELECT_TF_OPS does not have it either."
    return message.strip().splitlines()[0][:_REASON_LENGTH] if message.strip() else "TensorFlow Lite does not say why."
