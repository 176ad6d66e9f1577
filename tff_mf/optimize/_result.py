"""What an optimizer hands back: the mechanism, and how the search for it ended."""

import dataclasses
from typing import Generic, TypeVar

from tff_mf.mechanisms import Mechanism

MechanismT = TypeVar("MechanismT", bound=Mechanism)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizationResult(Generic[MechanismT]):
    """A mechanism with the status of the optimization that found it.

    Attributes:
        mechanism: The mechanism, with `optimized_for` set.
        objective: The loss that was minimized, "max" or "rms".
        loss: That loss, recomputed from the parameters of `mechanism`.
        converged: Whether the search ended in a stationary point.
        message: How it ended, in words.
        iterations: Iterations of the optimizer, over all its starts.
        seconds: Wall-clock time.
        gradient_norm: Largest entry of the gradient of log(loss) at the end.
        history: Losses on the way to `loss`; each optimizer says at which points.
        duality_gap: How far the squared loss is from a proven lower bound of it, relatively, for the optimizers
            that have one: each says for which class of matrices.
    """

    mechanism: MechanismT
    objective: str
    loss: float
    converged: bool
    message: str
    iterations: int
    seconds: float
    gradient_norm: float
    history: tuple[float, ...]
    duality_gap: float | None = None
