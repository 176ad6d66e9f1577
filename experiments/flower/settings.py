"""The settings of a run on Flower that its plan does not have."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..sampling import PARAMETERS, SamplingSettings
from .updates import MODEL, REPLIES

_GENERATORS = ("aes", "philox", "tensorflow")
NUMPY, TORCH = "numpy", "torch"


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is at most a clip norm.

    Example:
        >>> float(checked_clip_norm(0.5))
        0.5
    """
    clip_norm = validation.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """Server momentum, in float32 as `tff.learning.optimizers.build_sgdm` computes it.

    With the noised mean x̂ of a round: v ← momentum·v − x̂ and w ← w − learning_rate·v. With `learning_rate=1` and
    `momentum=0` it is plain FedAvg. It reads noised values only, so that it costs no privacy.

    Attributes:
        learning_rate: Learning rate of the server.
        momentum: From 0 to below 1.

    Example:
        >>> step = ServerOptimizer(learning_rate=1.0, momentum=0.5)
        >>> step.next(np.float32([0]), np.float32([2]), np.float32([1]))
        (array([0.], dtype=float32), array([0.], dtype=float32))
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validation.positive("learning_rate", self.learning_rate)
        if not 0 <= validation.real("momentum", self.momentum) < 1 or not math.isfinite(self.learning_rate):
            raise InputValueError(f"momentum={self.momentum!r} must lie in [0, 1).")

    def next(self, weights: np.ndarray, velocity: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns weights and velocity after a step.

        Args:
            weights: float32 `[dimension]`.
            velocity: float32 `[dimension]`; zeros before the first step.
            mean: Noised mean of the updates, float32 `[dimension]`.
        """
        velocity = np.float32(self.momentum) * velocity - mean
        return weights - np.float32(self.learning_rate) * velocity, velocity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long a round waits for nodes, and for their replies.

    Attributes:
        nodes_seconds: Time until enough allowed nodes are connected; after it the round begins with fewer.
        replies_seconds: Time until all replies have come; after it the round ends with fewer.
        poll_seconds: Time between two questions to the SuperLink.
        fewest: Fewest nodes with which a round begins; with fewer after `nodes_seconds`, the run stops, and can be
            resumed.
    """

    nodes_seconds: float = 600.0
    replies_seconds: float = 600.0
    poll_seconds: float = 1.0
    fewest: int = 1

    def __post_init__(self) -> None:
        validation.nonnegative("nodes_seconds", self.nodes_seconds)
        validation.positive("replies_seconds", self.replies_seconds)
        validation.positive("poll_seconds", self.poll_seconds)
        validation.whole("fewest", self.fewest, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        optimizer: The server's optimizer.
        replies: `model` if nodes reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent; `integers`, with a grid, if they reply
            with that difference in integers, as `mods.integers_mod` makes them. Floats become integers of a grid on
            the server.
        generator: Generator of the noise, as in `tff_mf.noise.numpy.build_stream`: by default AES, a cryptographic one,
            whose package Flower itself needs.
        engine: `numpy` or `torch`: where the server computes the noise and keeps its memory, for equal keys the same
            numbers on a grid.
        floating_point: Whether a plan without a grid stays in floating point, where the guarantee holds for real
            numbers only. Otherwise updates, their sums and the noise are integers.
        waiting: How long rounds wait.
        arrayrecord_key: Name of the record of arrays in messages and replies.
        configrecord_key: Name of the record of settings in messages.

    Example:
        >>> FlowerSettings(optimizer=ServerOptimizer(momentum=0.9)).replies
        'model'
    """

    optimizer: ServerOptimizer = dataclasses.field(default_factory=ServerOptimizer)
    replies: str = MODEL
    generator: str = "aes"
    engine: str = NUMPY
    floating_point: bool = False
    waiting: Waiting = dataclasses.field(default_factory=Waiting)
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self) -> None:
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, REPLIES)
        validation.one_of("generator", self.generator, _GENERATORS)
        validation.one_of("engine", self.engine, (NUMPY, TORCH))
        validation.instance("floating_point", self.floating_point, bool, "pass True or False")
        validation.instance("arrayrecord_key", self.arrayrecord_key, str, "name the record")
        validation.instance("configrecord_key", self.configrecord_key, str, "name the record")

    def as_json(self) -> dict[str, Any]:
        """Returns what a resumed run must share beside its rate, as JSON."""
        return {
            "server_momentum": self.optimizer.momentum,
            "replies": self.replies,
            "generator": self.generator,
        }


def sampling_of(config: Mapping[str, Any]) -> SamplingSettings:
    """Returns how the nodes of an app take part: `sampling` of its configuration, and the parameters that are not 0.

    Raises:
        InputError: If there is no such sampling, or it needs another parameter or does not take one of these.

    Example:
        >>> sampling_of({"sampling": "min-sep", "min-sep": 4, "max-participations": 3, "rounds": 12}).schema(12)
        MinSep(min_sep=4, max_participations=3)
    """
    given = {name: config.get(name.replace("_", "-")) for name in PARAMETERS}
    return SamplingSettings(sampling=config["sampling"], **{name: value for name, value in given.items() if value})
