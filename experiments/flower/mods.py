"""A mod of Flower for nodes: replies in integers, where the server's sums are on a grid.

Imports NumPy and Flower alone: apps have a copy of this file for their nodes.
"""

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from . import clipping

# What the server adds to the settings in a message, if it wants integers.
BITS, TYPE, CLIP_NORM = "grid-bits", "grid-integers", "grid-clip-norm"


def integers_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Replaces the model in a node's reply by its update in integers, if the message asks for them.

    A mod of Flower: `ClientApp(mods=[integers_mod])`, the first of several, which is the last to touch the reply. The
    app within replies with the model that it trained. Its messages are otherwise as in a run in floating point.

    Formal guarantee: as for `clipping.clip_to_grid` for the update. No guarantee of a run depends on it: the server
    makes the same comparison of every reply.

    Example:
        app = ClientApp(mods=[integers_mod])
    """
    (config,) = message.content.config_records.values()
    (arrays,) = message.content.array_records.values()
    if BITS not in config:
        return call_next(message, context)
    bits, dtype, clip_norm = int(config[BITS]), np.dtype(str(config[TYPE])), np.float32(config[CLIP_NORM])
    sent = {name: array.numpy() for name, array in arrays.items()}
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    ((key, record),) = reply.content.array_records.items()
    update = {name: record[name].numpy() - value for name, value in sent.items()}
    integers = clipping.as_integers(update, clip_norm, bits=bits, dtype=dtype)
    reply.content.array_records[key] = ArrayRecord({name: Array(value) for name, value in integers.items()})
    return reply
