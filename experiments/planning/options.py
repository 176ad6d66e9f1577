"""Mechanisms compared at the numbers of a deployment, before anything is run, and a recommendation."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import digits
from tff_mf.sensitivities.losses import Errors

from ..output import progress
from ..runs import mechanism_names, statements
from ..runs.mechanism_names import MechanismSetting
from ..runs.sizes import state_rows
from .deployment import Deployment, cases

# Cost of a search as rounds times squared bands: this many take about a second.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7
_ROUNDS_OF_A_QUICK_DENSE_SEARCH = 128
_INVERSE_BANDS = 8
# Times the cost with unit norms.
_COST_OF_FITTED_NORMS = 5

# Losses within this factor are taken to be equal: then the losses in the cases of wrong estimates decide.
AS_GOOD = 1.1


# A banded matrix whose column norms are fitted to the participation.
_FITTED = "banded, fitted"
_FOR_RMS_ALONE = (
    "--mechanism banded --free-norms, its column norms fitted to this participation for RmsLoss alone: its MaxLoss may "
    "be larger, and plan never recommends it"
)

_NO_ERROR = Errors(math.inf, math.inf)
_BUILT_IN = ("blt", "banded", "banded-toeplitz", "banded-inverse", "dense")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A mechanism at the numbers of a deployment.

    Attributes:
        name: Its name for `tff-mf optimize` or `tff-mf train`; `note` has the flags of one that has no name.
        mechanism: The mechanism; `None` if it was not optimized.
        note: Why it was not optimized, or what it is for; or empty.
        figures: Columns of the table; an unbounded ε is infinite.
        if_wrong: ε at the same noise if an estimate is wrong, by case; infinite for rounds that C is not defined for.
        loss_if_wrong: The objective's loss in the same cases, which compares mechanisms at equal privacy.
    """

    name: str
    mechanism: tff_mf.Mechanism | None
    note: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    if_wrong: dict[str, float] = dataclasses.field(default_factory=dict)
    loss_if_wrong: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searched:
    """A mechanism in its setting, before noise is chosen.

    Attributes:
        name: Its name.
        mechanism: The mechanism; `None` if it was not optimized.
        sensitivity: Its sensitivity as it runs.
        error: Its RmsError and MaxError.
        note: Why it was not optimized, or empty.
    """

    name: str
    mechanism: tff_mf.Mechanism | None
    sensitivity: float = math.inf
    error: Errors = _NO_ERROR
    note: str = ""


def options(
    deployment: Deployment,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    dimension: int | None = None,
    thorough: bool = False,
) -> list[Option]:
    """Returns every mechanism at the numbers of a deployment, the one with the least loss first.

    Args:
        deployment: The estimates.
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
        validation.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        validation.nonnegative("noise_multiplier", noise_multiplier)
    if dimension is not None:
        validation.whole("dimension", dimension)
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
            option = _at(deployment, name, mechanism, rows, seconds, epsilon, noise_multiplier, dimension)
            found.append(dataclasses.replace(option, note=_FOR_RMS_ALONE if name == _FITTED else ""))
        except InputValueError as error:
            # A limit of one mechanism does not concern the others: the table names it.
            found.append(Option(name=name, mechanism=None, note=str(error)))
    return sorted(found, key=lambda option: option.figures.get(f"{deployment.objective}_loss", math.inf))


def searched(deployment: Deployment, names: Collection[str]) -> list[Searched]:
    """Returns the mechanisms of some names at the numbers of a deployment; slow searches are left out, and say so.

    Args:
        deployment: The estimates.
        names: Names, as `options` gives them.
    """
    setting, found = deployment.setting, []
    for name, _, search, too_slow in _searches(deployment):
        if name not in names:
            continue
        if too_slow:
            found.append(Searched(name=name, mechanism=None, note=too_slow))
            continue
        try:
            mechanism = search()
            sens, error = setting.sensitivity(mechanism.cast_to_float32()).value, setting.errors(mechanism)
            found.append(Searched(name=name, mechanism=mechanism, sensitivity=sens, error=error))
        except InputValueError as refused:
            found.append(Searched(name=name, mechanism=None, note=str(refused)))
    return found


def figures(
    setting: MechanismSetting,
    found: Searched,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> dict[str, Any]:
    """Returns losses, noise and guarantee of a mechanism for an ε or a σ.

    Formal guarantee: `epsilon` and `zcdp_rho` come from `setting.guarantee` at `noise_multiplier`, which comes from
    `setting.noise_multiplier` if ε is given.
    """
    assert found.mechanism is not None
    if epsilon is not None:
        sigma = setting.noise_multiplier(found.mechanism, epsilon=epsilon, delta=delta)
    else:
        assert noise_multiplier is not None
        sigma = noise_multiplier
    guarantee = _guarantee(setting, found.sensitivity, sigma)
    return {
        "rms_loss": found.sensitivity * found.error.rms,
        "max_loss": found.sensitivity * found.error.max,
        "sensitivity": found.sensitivity,
        "noise_multiplier": sigma,
        "zcdp_rho": guarantee.zcdp_rho,
        "epsilon": guarantee.epsilon(delta),
    }


def recommend(found: list[Option], objective: str = "rms") -> tuple[Option, str]:
    """Returns the mechanism to take, and why.

    Of those whose loss is within a tenth of the least, both as planned and in the worst case if an estimate is
    wrong, the one that keeps the least state; of equal ones, that with the least loss. Column norms that are fitted to
    the participation, which lower RmsLoss at the expense of MaxLoss, are left out.

    Args:
        found: Every mechanism, the one with the least loss first.
        objective: The loss to compare by, "rms" or "max".

    Raises:
        InputValueError: If there is no mechanism for these numbers.
    """
    counts, name = f"{objective}_loss", f"{objective.capitalize()}Loss"
    searched = [option for option in found if option.mechanism is not None and option.name != _FITTED]
    if not searched:
        raise InputValueError(f"There is no mechanism for these numbers: {found[0].name}: {found[0].note}")
    best = searched[0].figures[counts]
    close = [option for option in searched if option.figures[counts] <= AS_GOOD * best]
    least_worst = min(_worst(option) for option in close)
    pool = [option for option in close if _worst(option) <= AS_GOOD * least_worst]
    # A dense matrix keeps no rows because all rows so far are drawn again in each round, which takes longer.
    chosen = min(pool, key=lambda each: (each.name == "dense", each.figures["memory_rows"], each.figures[counts]))
    less = any(option.name == _FITTED and option.figures.get(counts, math.inf) < best for option in found)
    without = f", without {_FITTED}" if less else ""
    loss, rows = chosen.figures[counts], chosen.figures["memory_rows"]
    reasons = [
        f"its {name}, {digits.nearest(loss)}, is the least found{without}"
        if loss == best
        else f"its {name}, {digits.nearest(loss)}, is within {100 * (loss / best - 1):.1f} % of the least found "
        f"({searched[0].name}{without})"
    ]
    if math.isfinite(least_worst):
        stuck = [option.name for option in close if math.isinf(_worst(option))]
        reasons.append("it can run longer than planned" + (f", which {stuck[0]} cannot" if stuck else ""))
    more = [option for option in pool if option.figures["memory_rows"] > rows]
    copies = f"it keeps {rows or 'no'} {'copies' if rows > 1 else 'copy'} of the model as state"
    reasons.append(copies + (f", {more[0].name} {more[0].figures['memory_rows']}" if more else ""))
    return chosen, f"{chosen.name}: {'; '.join(reasons)}."


def claim(deployment: Deployment, option: Option) -> statements.Claim:
    """Returns the content of the one-line statement of a mechanism at the numbers of a deployment.

    Raises:
        InputValueError: If the mechanism was not optimized.
    """
    if option.mechanism is None:
        raise InputValueError(f"option={option.name!r} was not optimized: {option.note}.")
    setting = deployment.setting
    found = _guarantee(setting, option.figures["sensitivity"], option.figures["noise_multiplier"])
    return setting.claim(found, delta=deployment.delta, population=deployment.population)


def _guarantee(setting: MechanismSetting, sensitivity: float, noise_multiplier: float) -> tff_mf.Guarantee:
    """Returns `setting.guarantee` for a known sensitivity, which can take a second to compute."""
    return tff_mf.Guarantee.of_gaussian(sensitivity, noise_multiplier).under(setting.adjacency)


def _worst(option: Option) -> float:
    return max(option.loss_if_wrong.values())


def _searches(deployment: Deployment) -> Iterator[tuple[str, int, Callable[[], tff_mf.Mechanism], str]]:
    """Yields names, rows of state, searches, and why a search is skipped unless `thorough`."""
    setting = deployment.setting
    n = setting.searched_rounds
    bands, inverse_bands = min(deployment.resolved_min_sep, n), min(_INVERSE_BANDS, n)
    buffers = min(4, max(1, n - 1))

    def rows(name: str) -> int:
        found = state_rows(name, rounds=n, bands=bands, buffers=buffers)
        # Without TensorFlow nothing says how many rows the stream of a plugin keeps; n are always enough.
        return n if found is None else found

    def search(name: str, **options: Any) -> Callable[[], tff_mf.Mechanism]:
        if "objective" in mechanism_names.searched()[name].options:
            options["objective"] = deployment.objective
        return lambda: _optimized(name, setting, options)

    def slow(products: float) -> str:
        seconds = products / _PRODUCTS_OF_A_QUICK_SEARCH
        return f"not searched, takes about {seconds:.0f} s: --thorough" if seconds > 1 else ""

    products = n * bands**2
    dense_slow = "not searched, takes minutes or more: --thorough"
    yield "identity", rows("identity"), tff_mf.Identity, ""
    yield "blt", rows("blt"), search("blt", buffers=buffers), ""
    yield "banded", rows("banded"), search("banded", bands=bands), slow(products)
    if setting.searched_participation.max_participations > 1:
        yield (
            _FITTED,
            rows("banded"),
            search("banded", bands=bands, unit_norms=False),
            slow(_COST_OF_FITTED_NORMS * products),
        )
    yield "banded-toeplitz", rows("banded-toeplitz"), search("banded-toeplitz", bands=bands), ""
    yield "banded-inverse", rows("banded-inverse"), search("banded-inverse", bands=inverse_bands), ""
    yield "dense", rows("dense"), search("dense"), dense_slow if n > _ROUNDS_OF_A_QUICK_DENSE_SEARCH else ""
    for variant in ("full", "online", "vanilla"):
        yield f"tree-{variant}", rows(f"tree-{variant}"), lambda variant=variant: tff_mf.Tree(n, variant=variant), ""
    for name in mechanism_names.searched():
        if name not in _BUILT_IN:
            yield name, rows(name), search(name), ""


def _optimized(name: str, setting: MechanismSetting, options: dict[str, Any]) -> tff_mf.Mechanism:
    if "workload" in mechanism_names.searched()[name].options:
        options["workload"] = setting.searched_workload
    schema = setting.searched_participation
    return mechanism_names.search(name, rounds=setting.searched_rounds, participation=schema, **options)


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
    setting, delta = deployment.setting, deployment.delta
    sens, error = setting.sensitivity(mechanism.cast_to_float32()).value, setting.errors(mechanism)
    found = Searched(name=name, mechanism=mechanism, sensitivity=sens, error=error)
    planned = figures(setting, found, delta=delta, epsilon=epsilon, noise_multiplier=noise_multiplier) | {
        "memory_rows": rows,
        "memory_bytes": None if dimension is None else 4 * rows * dimension,
        "seconds": seconds,
    }
    sigma = planned["noise_multiplier"]
    wrong, losses = {}, {}
    for case, other in cases(deployment).items():
        if mechanism.max_rounds is not None and mechanism.max_rounds < other.searched_rounds:
            wrong[case] = losses[case] = math.inf
            continue
        sens = other.sensitivity(mechanism.cast_to_float32()).value
        wrong[case] = _guarantee(other, sens, sigma).epsilon(delta)
        in_case = error if other.rounds == setting.rounds else other.errors(mechanism)
        losses[case] = sens * getattr(in_case, deployment.objective)
    return Option(name=name, mechanism=mechanism, figures=planned, if_wrong=wrong, loss_if_wrong=losses)
