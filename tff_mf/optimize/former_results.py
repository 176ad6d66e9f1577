"""Former names of the optimizers that returned a mechanism beside the status of its search; for one release."""

import dataclasses
import sys
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tff_mf.mechanisms import Mechanism

MechanismT = TypeVar("MechanismT", bound=Mechanism)

_CLASS = "OptimizationResult"
_OPTIMIZERS = {
    "optimize_banded_result": "optimize_banded",
    "optimize_banded_inverse_result": "optimize_banded_inverse",
    "optimize_banded_plus_low_rank_result": "optimize_banded_plus_low_rank",
    "optimize_banded_toeplitz_result": "optimize_banded_toeplitz",
    "optimize_blt_result": "optimize_blt",
    "optimize_dense_result": "optimize_dense",
    "optimize_structured_result": "optimize_banded_plus_low_rank",
}
NAMES = (_CLASS, *_OPTIMIZERS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OptimizationResult(Generic[MechanismT]):
    """A mechanism with the status of its search, whose place is now `mechanism.optimized_for`.

    Attributes:
        mechanism: The mechanism.
        converged: `mechanism.optimized_for.converged`.
        duality_gap: `mechanism.optimized_for.duality_gap`.
        objective, loss, message, iterations, seconds, gradient_norm, history: Those of
            `mechanism.optimized_for.search`.
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


def found(module: str, name: str) -> Any:
    """Returns what a former name stands for, and warns.

    Args:
        module: Name of the module that was asked for it.
        name: The former name.

    Raises:
        AttributeError: If the module never had the name.
    """
    if name not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    today = _OPTIMIZERS.get(name, "optimize_blt and its siblings")
    warnings.warn(
        f"{module}.{name} will be removed in the next release: {today} returns the mechanism, whose optimized_for says "
        "how the search ended, in its fields converged, duality_gap and search.",
        DeprecationWarning,
        stacklevel=3,
    )
    return _OptimizationResult if name == _CLASS else _with_result(getattr(sys.modules[module], today))


def _with_result(optimizer: Callable[..., Mechanism]) -> Callable[..., _OptimizationResult]:
    def optimize(**arguments: Any) -> _OptimizationResult:
        mechanism = optimizer(**arguments)
        optimized_for = mechanism.optimized_for
        assert optimized_for is not None
        assert optimized_for.search is not None
        assert optimized_for.converged is not None
        return _OptimizationResult(
            mechanism=mechanism,
            converged=optimized_for.converged,
            duality_gap=optimized_for.duality_gap,
            **vars(optimized_for.search),
        )

    return optimize
