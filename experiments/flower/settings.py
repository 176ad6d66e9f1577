"""Settings of a run on Flower that its privacy plan does not have."""

import dataclasses
from typing import Any

from tff_mf import validation

from .clipping import checked_clip_norm
from .cohorts import Waiting
from .server_step import ServerOptimizer
from .updates import MODEL, UPDATE


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        clip_norm: Clip norm ζ, to which the server clips every update.
        optimizer: The server's optimizer.
        replies: `model` if clients reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent.
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
    waiting: Waiting = dataclasses.field(default_factory=Waiting)
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self) -> None:
        checked_clip_norm(self.clip_norm)
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, (MODEL, UPDATE))
        validation.instance("arrayrecord_key", self.arrayrecord_key, str, "name the record")
        validation.instance("configrecord_key", self.configrecord_key, str, "name the record")

    def as_json(self) -> dict[str, Any]:
        """Returns what a resumed run must share, as JSON."""
        return {
            "clip_norm": self.clip_norm,
            "server_learning_rate": self.optimizer.learning_rate,
            "server_momentum": self.optimizer.momentum,
            "replies": self.replies,
        }
