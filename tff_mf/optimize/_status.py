"""Attaches the status of a search to the mechanism that it found."""

import dataclasses
import time
from typing import TypeVar

from tff_mf.mechanisms import Mechanism, SearchStatus
from tff_mf.sensitivities.losses import max_loss, rms_loss

MechanismT = TypeVar("MechanismT", bound=Mechanism)


def with_status(
    mechanism: MechanismT,
    *,
    objective: str,
    converged: bool,
    message: str,
    iterations: int,
    began: float,
    gradient_norm: float,
    history: tuple[float, ...],
    loss: float | None = None,
    duality_gap: float | None = None,
) -> MechanismT:
    """Returns the mechanism with the status of the search that found it in `optimized_for`.

    Args:
        mechanism: What was found, with `optimized_for` set.
        objective: The loss that was minimized, "max" or "rms".
        converged: Whether the search converged.
        message: How the search ended, in words.
        iterations: Iterations of the optimizer.
        began: When the search began, by `time.perf_counter`.
        gradient_norm: Largest entry of the gradient of log(loss) at the end.
        history: Losses during the search.
        loss: The loss of the mechanism; `None` to compute it from the mechanism's parameters.
        duality_gap: Relative duality gap of the squared loss, or `None`.
    """
    optimized_for = mechanism.optimized_for
    assert optimized_for is not None
    if loss is None:
        loss_of = max_loss if objective == "max" else rms_loss
        loss = loss_of(mechanism, optimized_for.rounds, optimized_for.participation, optimized_for.workload)
    search = SearchStatus(
        objective=objective,
        loss=loss,
        message=message,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        gradient_norm=gradient_norm,
        history=history,
    )
    optimized_for = dataclasses.replace(optimized_for, converged=converged, duality_gap=duality_gap, search=search)
    return dataclasses.replace(mechanism, optimized_for=optimized_for)
