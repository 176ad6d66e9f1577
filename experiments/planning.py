"""Which mechanism for which deployment: every one of them at the user's numbers, before anything is run."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import tff_mf
from tff_mf import _gaussian, _validate
from tff_mf.errors import InputValueError
from tff_mf.losses import errors

from . import progress, statements
from .deployment import Deployment, cases

# What a search costs, as products of rounds and squares of bands: about a second each.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7
_ROUNDS_OF_A_QUICK_DENSE_SEARCH = 128
_INVERSE_BANDS = 8

# Losses so close are taken to be equal: what then counts is what happens if the estimates are wrong.
_AS_GOOD = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A mechanism at the user's numbers.

    Attributes:
        name: What to ask `tff-mf optimize` or `tff-mf train` for.
        mechanism: The mechanism; `None` if it was not searched for.
        note: Why it was not searched for, or empty.
        figures: What the table shows, by column; an unbounded ε is infinite.
        if_wrong: ε at the same noise if an estimate is wrong, by case; infinite where the mechanism cannot go on.
        loss_if_wrong: RmsLoss in the same cases, which compares mechanisms at equal privacy.
    """

    name: str
    mechanism: tff_mf.Mechanism | None
    note: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    if_wrong: dict[str, float] = dataclasses.field(default_factory=dict)
    loss_if_wrong: dict[str, float] = dataclasses.field(default_factory=dict)


def options(
    deployment: Deployment,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    dimension: int | None = None,
    thorough: bool = False,
) -> list[Option]:
    """Returns every mechanism at the user's numbers, the one with the least RmsLoss first.

    Args:
        deployment: What is known.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ, in place of ε.
        dimension: Number of model parameters, for the memory in bytes.
        thorough: Whether searches of minutes are made.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or not exactly one of `epsilon` and `noise_multiplier` given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InputValueError("Give either epsilon=ε or noise_multiplier=σ, and not both.")
    if epsilon is not None:
        _validate.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        _validate.nonnegative("noise_multiplier", noise_multiplier)
    if dimension is not None:
        _validate.whole("dimension", dimension)
    found = []
    searches = list(_searches(deployment))
    for name, rows, search, too_slow in progress.steps(searches, len(searches), "plan"):
        if too_slow and not thorough:
            found.append(Option(name=name, mechanism=None, note=too_slow))
            continue
        start = time.perf_counter()
        try:
            mechanism = search()
            seconds = time.perf_counter() - start
            found.append(_at(deployment, name, mechanism, rows, seconds, epsilon, noise_multiplier, dimension))
        except InputValueError as error:
            # Some mechanisms have limits that others do not; the table says so.
            found.append(Option(name=name, mechanism=None, note=str(error)))
    return sorted(found, key=lambda option: option.figures.get("rms_loss", math.inf))


def recommend(found: list[Option]) -> tuple[Option, str]:
    """Returns the mechanism to take, and why.

    Of those whose RmsLoss is within a tenth of the least, both as planned and in the worst case if an estimate is
    wrong, the one that keeps the least state; of equal ones, that with the least RmsLoss.
    """
    searched = [option for option in found if option.mechanism is not None]
    best = searched[0].figures["rms_loss"]
    close = [option for option in searched if option.figures["rms_loss"] <= _AS_GOOD * best]
    least_worst = min(_worst(option) for option in close)
    pool = [option for option in close if _worst(option) <= _AS_GOOD * least_worst]
    chosen = min(pool, key=lambda option: (option.figures["memory_rows"], option.figures["rms_loss"]))
    loss, rows = chosen.figures["rms_loss"], chosen.figures["memory_rows"]
    reasons = [
        f"its RmsLoss, {loss:.2f}, is the least found"
        if loss == best
        else f"its RmsLoss, {loss:.2f}, is within {loss / best - 1:.1%} of the least found ({searched[0].name})"
    ]
    if math.isfinite(least_worst):
        stuck = [option.name for option in close if math.isinf(_worst(option))]
        reasons.append("it can run longer than planned" + (f", which {stuck[0]} cannot" if stuck else ""))
    more = [option for option in pool if option.figures["memory_rows"] > rows]
    copies = f"it keeps {rows} {'copy' if rows == 1 else 'copies'} of the model as state"
    reasons.append(copies + (f", {more[0].name} {more[0].figures['memory_rows']}" if more else ""))
    return chosen, f"{chosen.name}: {'; '.join(reasons)}."


def claim(deployment: Deployment, option: Option) -> statements.Claim:
    """Returns what a line on a mechanism at the user's numbers is to state.

    Raises:
        InputValueError: If the mechanism was not searched for.
    """
    if option.mechanism is None:
        raise InputValueError(f"option={option.name!r} was not searched for: {option.note}.")
    mu = _gaussian.mu_of(option.figures["sensitivity"], option.figures["noise_multiplier"])
    return statements.Claim(
        guarantee=tff_mf.Guarantee(mu=mu),
        delta=deployment.delta,
        rounds=deployment.rounds,
        participation=statements.bound_to(deployment.participation),
        population=deployment.population,
    )


def _worst(option: Option) -> float:
    return max(option.loss_if_wrong.values())


def _searches(deployment: Deployment) -> Iterator[tuple[str, int, Callable[[], tff_mf.Mechanism], str]]:
    """Yields names, rows of state, searches, and why not to make them unless asked to."""
    n, schema_ = deployment.rounds, deployment.participation
    bands = min(deployment.separation, n)
    setting = {"rounds": n, "participation": schema_}
    levels = n.bit_length()
    products = n * bands**2
    slow = f"not searched, takes about {products / _PRODUCTS_OF_A_QUICK_SEARCH:.0f} s: --thorough"
    yield "identity", 0, tff_mf.Identity, ""
    yield "blt", 4, lambda: tff_mf.optimize_blt(**setting, buffers=min(4, max(1, n - 1)), objective="rms"), ""
    yield (
        "banded",
        bands - 1,
        lambda: tff_mf.optimize_banded(**setting, bands=bands),
        (slow if products > _PRODUCTS_OF_A_QUICK_SEARCH else ""),
    )
    yield "banded-toeplitz", bands - 1, lambda: tff_mf.optimize_banded_toeplitz(**setting, bands=bands), ""
    inverse_bands = min(_INVERSE_BANDS, n)
    yield "banded-inverse", 0, lambda: tff_mf.optimize_banded_inverse(**setting, bands=inverse_bands), ""
    dense_slow = "not searched, takes minutes or more: --thorough"
    yield (
        "dense",
        n,
        lambda: tff_mf.optimize_dense(**setting),
        (dense_slow if n > _ROUNDS_OF_A_QUICK_DENSE_SEARCH else ""),
    )
    for variant in ("full", "online"):
        yield f"tree-{variant}", levels, lambda variant=variant: tff_mf.Tree(n, variant=variant), ""


def _at(
    deployment: Deployment,
    name: str,
    mechanism: tff_mf.Mechanism,
    rows: int,
    seconds: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    dimension: int | None,
) -> Option:
    n, schema_, delta = deployment.rounds, deployment.participation, deployment.delta
    if epsilon is not None:
        sigma = tff_mf.calibrate_noise_multiplier(mechanism, n, schema_, epsilon=epsilon, delta=delta)
    else:
        assert noise_multiplier is not None
        sigma = noise_multiplier
    sens, error = tff_mf.sensitivity(mechanism.as_run(), n, schema_), errors(mechanism, n)
    planned = tff_mf.Guarantee(mu=_gaussian.mu_of(sens, sigma))
    figures = {
        "rms_loss": sens * error.rms,
        "max_loss": sens * error.max,
        "sensitivity": sens,
        "noise_multiplier": sigma,
        "zcdp_rho": planned.zcdp_rho,
        "epsilon": planned.epsilon(delta),
        "memory_rows": rows,
        "memory_bytes": None if dimension is None else 4 * rows * dimension,
        "seconds": seconds,
    }
    wrong, losses = {}, {}
    for case, (rounds, other) in cases(deployment).items():
        if mechanism.max_rounds is not None and mechanism.max_rounds < rounds:
            wrong[case] = losses[case] = math.inf
            continue
        # Sensitivity can take a second, and both follow from it.
        sens = tff_mf.sensitivity(mechanism.as_run(), rounds, other)
        wrong[case] = tff_mf.Guarantee(mu=_gaussian.mu_of(sens, sigma)).epsilon(delta)
        losses[case] = sens * (error.rms if rounds == n else tff_mf.rms_error(mechanism, rounds))
    return Option(name=name, mechanism=mechanism, figures=figures, if_wrong=wrong, loss_if_wrong=losses)
