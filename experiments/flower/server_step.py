"""The server's optimizer: gradient descent with momentum on the noised mean of updates (FedAvg, FedSGDM)."""

import dataclasses
import math

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """Server momentum, in float32 as `tff.learning.optimizers.build_sgdm` computes it.

    With the noised mean x̂ of a round: v ← momentum·v − x̂ and w ← w − learning_rate·v. With `learning_rate=1` and
    `momentum=0` it is plain FedAvg. It reads noised values only, so that it costs no privacy.

    Attributes:
        learning_rate: Learning rate of the server.
        momentum: From 0 to below 1.

    Raises:
        InputTypeError: If a value is not a number.
        InputValueError: If one is out of range.

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
