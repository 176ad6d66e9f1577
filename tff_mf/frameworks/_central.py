"""What central training has in common: which plans it can be of, and the units in which sums and noise are added."""

import math
from collections.abc import Collection
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning.plan import Plan
from tff_mf.problem.grids import Grid

# Of the largest norm, what a term that is clipped leaves for its rounding; and at most this share of its square.
_MARGIN, _LARGEST_SHARE = 2.0, 2.0**-13


def check_central(plan: Plan) -> None:
    """Raises unless a plan can be one of central training: no restarts, adaptive clipping, searches or simulation.

    Example:
        >>> check_central("a plan")
        Traceback (most recent call last):
        ...
        tff_mf.base.errors.InputTypeError: plan='a plan' must be of type Plan: make one with tff_mf.plan.
    """
    validation.instance("plan", plan, Plan, "make one with tff_mf.plan")
    for name in ("restart_every", "adaptive_count_stddev", "search"):
        if getattr(plan, name) is not None:
            raise InputValueError(
                f"{name}={getattr(plan, name)!r} of the plan is not supported in central training: make the plan "
                f"without {name}."
            )
    if plan.cohort != plan.clients_per_round:
        raise InputValueError(f"cohort={plan.cohort} of the plan must be its clients_per_round, a whole batch.")


def noise_of(plan: Plan, dimension: int) -> dict[str, Any]:
    """Returns the settings of the stream of a plan's noise for a model: on a grid, σ is in units of the clip norm.

    Raises:
        InputValueError: If the model has more parameters than the plan's grid is for.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism="identity", rounds=9, sampling=tff_mf.SingleParticipation(), delta=1e-5,
        ...                    clients_per_round=4, noise_multiplier=3.0, clip_norm=0.5)
        >>> noise_of(plan, 10)["stddev"], noise_of(plan.for_model(10), 10)["stddev"]
        (1.5, 3.0)
    """
    if plan.grid is not None:
        plan.for_model(dimension)
    return {
        "stddev": plan.noise_multiplier * (plan.clip_norm if plan.grid is None else 1.0),
        "grid": plan.grid,
        "insecure_seed": plan.insecure_seed,
    }


def unit_of(plan: Plan) -> float:
    """Returns what sums and noise are multiples of: g with a grid, and 1 without."""
    return 1.0 if plan.grid is None else plan.clip_norm / plan.grid.largest_norm


def check_units(types: Collection[str], plan: Plan) -> None:
    """Raises unless the types of sums say that they are in the units of a plan: float64 on a grid alone.

    Raises:
        InputValueError: Otherwise; noise of another unit would be far too small, or too large.
    """
    if ({"float64"} == set(types)) if plan.grid is not None else ("float64" not in types):
        return
    raise InputValueError(
        f"sums of the types {sorted(types)} are not in the units of the plan, which has grid={plan.grid!r}: pass "
        "grid=plan.grid to clipped_sum, and its sums as they are."
    )


def check_integers(fit: bool, plan: Plan) -> None:
    """Raises unless sums on the plan's grid are whole numbers that its integers have room for.

    Raises:
        InputValueError: Otherwise; whole noise hides no fractions.
    """
    if not fit:
        assert plan.grid is not None
        raise InputValueError(
            f"sums are not whole numbers of at most {plan.grid.largest_sum}, as clipped_sum gives with grid=plan.grid: "
            "add up those of parts of a batch (optax.MultiSteps with use_grad_mean=False), take no means of them, and "
            "scale nothing before the noise is added."
        )


def check_places(places: int, grid: Grid) -> None:
    """Raises if a batch has more places than a sum on a grid may have terms."""
    if places > grid.max_clients:
        raise InputValueError(
            f"gradients of {places} examples exceed max_clients={grid.max_clients} of the grid: take a Grid of more."
        )


def scales(clip_norm: float, grid: Grid, dimension: int) -> tuple[float, float]:
    """Returns 1/g, and the norm in units of g to which longer terms are scaled: most are in bound when rounded."""
    largest = float(grid.largest_norm)
    rounding = min(dimension / 12, _LARGEST_SHARE * largest**2)
    aim = math.sqrt(largest**2 - rounding) - min(_MARGIN, _LARGEST_SHARE * largest)
    return largest / clip_norm, aim
