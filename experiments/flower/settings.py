"""Settings of a run on Flower that its privacy plan does not have."""

import dataclasses
from typing import Any

import numpy as np

from tff_mf import validation

from .cohorts import Waiting
from .server_step import ServerOptimizer
from .summands import MODEL, REPLIES

_GENERATORS = ("aes", "philox", "tensorflow")


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is at most a clip norm.

    Raises:
        InputTypeError: If it is not a number.
        InputValueError: If it is out of range.

    Example:
        >>> float(checked_clip_norm(0.5))
        0.5
    """
    clip_norm = validation.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        clip_norm: Clip norm ζ, to which the server clips every update.
        optimizer: The server's optimizer.
        replies: `model` if nodes reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent; `integers`, with a grid, if they reply
            with that difference in integers, as `mods.integers_mod` makes them. Floats become integers of a grid on
            the server.
        generator: Generator of the noise, as in `tff_mf.streams.build_stream`: by default AES, a cryptographic one,
            whose package Flower itself needs.
        waiting: How long rounds wait.
        arrayrecord_key: Name of the record of arrays in messages and replies.
        configrecord_key: Name of the record of settings in messages.

    Raises:
        InputTypeError: If a value is of the wrong type.
        InputValueError: If one is out of range.

    Example:
        >>> FlowerSettings(clip_norm=0.5, optimizer=ServerOptimizer(momentum=0.9)).replies
        'model'
    """

    clip_norm: float
    optimizer: ServerOptimizer = dataclasses.field(default_factory=ServerOptimizer)
    replies: str = MODEL
    generator: str = "aes"
    waiting: Waiting = dataclasses.field(default_factory=Waiting)
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self) -> None:
        checked_clip_norm(self.clip_norm)
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, REPLIES)
        validation.one_of("generator", self.generator, _GENERATORS)
        validation.instance("arrayrecord_key", self.arrayrecord_key, str, "name the record")
        validation.instance("configrecord_key", self.configrecord_key, str, "name the record")

    def as_json(self) -> dict[str, Any]:
        """Returns what a resumed run must share, as JSON."""
        return {
            "clip_norm": self.clip_norm,
            "server_learning_rate": self.optimizer.learning_rate,
            "server_momentum": self.optimizer.momentum,
            "replies": self.replies,
            "generator": self.generator,
        }
