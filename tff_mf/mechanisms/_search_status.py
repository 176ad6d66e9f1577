"""How the search for a mechanism ended."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchStatus:
    """How an optimizer's search ended. It describes one search in this process and is not stored in artifacts.

    Whether the search converged, and its duality gap, are fields of `OptimizedFor`, which artifacts store.

    Attributes:
        objective: The loss that was minimized, "max" or "rms".
        loss: That loss, recomputed from the parameters of the mechanism that the optimizer returned.
        message: How the search ended, in words.
        iterations: Iterations of the optimizer, over all its starts.
        seconds: Wall-clock time.
        gradient_norm: Largest entry of the gradient of log(loss) at the end, or the measure of stationarity that the
            optimizer's docstring names instead.
        history: Losses during the search; each optimizer's docstring says at which points.
    """

    objective: str
    loss: float
    message: str
    iterations: int
    seconds: float
    gradient_norm: float
    history: tuple[float, ...]
