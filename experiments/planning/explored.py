"""A plan at other cohorts, rounds, min-seps and levels of privacy, and its pictures: every point is computed."""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.planning import options
from tff_mf.planning.options import Option, participations, schema
from tff_mf.sensitivities.losses import errors, round_errors

from ..output import figures, progress
from ..output.figures import Axis, Chart, Curve
from ..runs import statements
from ..runs.statements import block_ends, deltas, of_some_rounds
from .deployment import Deployment
from .signal_to_noise import of_option

Points = list[tuple[float, float | None]]


def curves(deployment: Deployment, options: Iterable[Option], chosen: Option, *, states: bool) -> dict[str, Any]:
    """Returns what the figures of a plan's page show.

    Formal guarantee: each ε comes from `MechanismSetting.guarantee` at the planned noise: at another δ, or of the first
    rounds alone, each client taking part in them as often as it may, and never smaller than for fewer rounds. The
    last round and the planned δ have the ε of the plan. `None` is no finite ε.

    Args:
        deployment: The estimates.
        options: The mechanisms to show, all optimized.
        chosen: The recommended one, which alone has an ε over δ.
        states: Whether an ε may be named.

    Returns:
        `epsilon_over_delta`; and by name of the mechanism `epsilon_over_rounds` and `error_over_rounds`, which is the
        standard deviation of the noise in the sum of all mean updates so far, in clip norms.
    """
    shown = list(options)
    return {
        "epsilon_over_delta": _over_delta(deployment, chosen) if states else [],
        "epsilon_over_rounds": {each.name: _over_rounds(deployment, each) for each in shown} if states else {},
        "error_over_rounds": {each.name: _errors(deployment, each) for each in shown},
    }


def _over_delta(deployment: Deployment, option: Option) -> Points:
    assert option.mechanism is not None
    found = deployment.setting.guarantee(option.mechanism, option.figures["noise_multiplier"])
    return [(delta, finite(found.epsilon(delta))) for delta in deltas(deployment.delta)]


def _over_rounds(deployment: Deployment, option: Option) -> Points:
    mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
    assert mechanism is not None
    min_sep, most = deployment.resolved_min_sep, deployment.participation.max_participations
    found: Points = []
    # The first rounds are part of the whole release, whose bound can be tighter than theirs.
    largest, whole = 0.0, deployment.setting.guarantee(mechanism, sigma).epsilon(deployment.delta)
    for rounds in block_ends(deployment.rounds, min_sep):
        here = min(most, participations(rounds, min_sep))
        setting = dataclasses.replace(
            deployment.setting,
            rounds=rounds,
            participation=schema(min_sep, here, kind=deployment.kind),
            workload=None,
        )
        largest = max(largest, min(setting.guarantee(mechanism, sigma).epsilon(deployment.delta), whole))
        found.append((rounds, finite(largest)))
    return found


def _errors(deployment: Deployment, option: Option) -> Points:
    """Returns the noise of some rounds; none where that would take matrices that do not fit in memory."""
    assert option.mechanism is not None
    rounds = deployment.rounds
    try:
        found = round_errors(
            option.mechanism, rounds, restart_every=deployment.setting.searched_rounds, workload=deployment.workload
        )
    except InputValueError:
        return []
    scale = option.figures["noise_multiplier"] / deployment.clients_per_round
    return of_some_rounds(found, scale)


_POINTS = 13


def draw(deployment: Deployment, options: list[Option], path: str | os.PathLike) -> None:
    """Draws six panels, a line a mechanism.

    Args:
        deployment: What is known.
        options: The mechanisms; those that were not optimized are left out.
        path: Where the picture goes; its ending is the format.

    Raises:
        InputTypeError: If `path` is not a path.
        InputValueError: If the file cannot be written.
    """
    searched = [option for option in options if option.mechanism is not None]
    with figures.picture(path, size=(figures.PAGE, 5.0), rows=2, columns=3) as (drawn, grid):
        for axes, (chart, planned) in zip(grid.flat, _charts(deployment, searched), strict=True):
            figures.draw(axes, chart)
            axes.axvline(planned, color="black", linewidth=0.6)
            axes.set(title=chart.title)
        named = figures.setting(deployment.rounds, deployment.participation)
        drawn.suptitle(f"{named}; {deployment.clients_per_round:,} of {deployment.population:,} clients a round")
        figures.legend_below(drawn, grid[0, :1], 4)


def _charts(deployment: Deployment, options: Sequence[Option]) -> list[tuple[Chart, int]]:
    """Returns each chart, with the planned number on its horizontal axis."""
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    cohort = deployment.clients_per_round
    min_seps, lengths = _grid(max(1, b // 4), min(n, 4 * b)), _grid(max(2, n // 4), 2 * n)
    cohorts = _grid(max(1, cohort // 8), min(deployment.population, 8 * cohort))
    of_b = {b / 4: "b/4", b / 2: "b/2", b: f"b = {b:,}", 2 * b: "2b", 4 * b: "4b"}
    of_n = {n / 4: "n/4", n / 2: "n/2", n: f"n = {n:,}", 2 * n: "2n"}
    of_cohort = {each: f"{each:,}" for each in (cohorts[0], cohort, cohorts[-1])}
    values = {option.name: _values(deployment, option, min_seps, lengths, cohorts) for option in options}
    panels = [
        (f"k ≤ {k}", "RmsLoss", "min-sep (rounds)", min_seps, of_b, b),
        ("k as large as fits", "RmsLoss", "min-sep (rounds)", min_seps, of_b, b),
        (f"b = {b:,}, k as large as fits", "RmsLoss", "rounds", lengths, of_n, n),
        (f"k ≤ {k}", "MaxLoss", "min-sep (rounds)", min_seps, of_b, b),
        ("noise in proportion to cohort", "ρ (zCDP)", "clients a round", cohorts, of_cohort, cohort),
        (f"planned noise, b = {b:,}", "ρ (zCDP)", "rounds", lengths, of_n, n),
    ]
    return [
        (
            Chart(
                name=f"plan-{index}",
                title=title,
                x=Axis(label=label, log=True, ticks={at: name for at, name in ticks.items() if x[0] <= at <= x[-1]}),
                y=Axis(label=loss, log=True),
                curves=[Curve(name=name, points=list(zip(x, own[index], strict=True))) for name, own in values.items()],
            ),
            planned,
        )
        for index, (title, loss, label, x, ticks, planned) in enumerate(panels)
    ]


def _values(
    deployment: Deployment,
    option: Option,
    min_seps: Sequence[int],
    lengths: Sequence[int],
    cohorts: Sequence[int],
) -> list[Any]:
    """Returns the values of a mechanism in each panel."""
    mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
    assert mechanism is not None
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    error = errors(mechanism, n)
    fixed = np.array([_sensitivity(mechanism, n, each, min(k, participations(n, each))) for each in min_seps])
    often = np.array([_sensitivity(mechanism, n, each, participations(n, each)) for each in min_seps])
    # Noise in proportion to the cohort leaves the averaged update as it is.
    of_cohort = [
        _rho(mechanism, n, min(n, max(1, deployment.population // each)), sigma * each / deployment.clients_per_round)
        for each in cohorts
    ]
    return [
        fixed * error.rms,
        often * error.rms,
        [_rms_loss(mechanism, each, b) for each in lengths],
        fixed * error.max,
        of_cohort,
        [_rho(mechanism, each, b, sigma) for each in lengths],
    ]


def _grid(low: int, high: int) -> list[int]:
    return sorted({round(value) for value in np.geomspace(low, high, _POINTS)})


def _defined(mechanism: tff_mf.Mechanism, rounds: int) -> bool:
    return mechanism.max_rounds is None or rounds <= mechanism.max_rounds


def _sensitivity(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int, max_participations: int) -> float:
    return tff_mf.sensitivity(mechanism.cast_to_float32(), rounds, schema(min_sep, max_participations))


def _rms_loss(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    return tff_mf.rms_loss(mechanism, rounds, schema(min_sep, participations(rounds, min_sep)))


def _rho(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int, sigma: float) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    often = schema(min_sep, participations(rounds, min_sep))
    return tff_mf.zcdp_rho(mechanism, rounds, often, noise_multiplier=sigma)


_COHORTS = (0.25, 0.5, 1.0, 2.0, 4.0)
_ROUNDS = (0.5, 1.0, 2.0)
_MIN_SEPS = (0.25, 0.5, 1.0, 2.0)
_LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0)

_HEADER = ("mechanism", "σ", "ε", "ρ", "RmsLoss", "noise of the mean", "largest model that learns")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
    """What can be varied, each in rising order, with the planned value among the others.

    Attributes:
        clients_per_round: Cohorts.
        rounds: Numbers of rounds.
        min_sep: Min-seps b.
        level: Values of ε, or of σ where that is given.
        planned_level: The plan's level.
        by_epsilon: Whether `level` is ε.
    """

    clients_per_round: Sequence[int]
    rounds: Sequence[int]
    min_sep: Sequence[int]
    level: Sequence[float]
    planned_level: float
    by_epsilon: bool


def axes(deployment: Deployment, *, epsilon: float | None, noise_multiplier: float | None) -> Axes:
    """Returns the values around a plan's own.

    Example:
        >>> known = Deployment(population=3000, clients_per_round=100, rounds=96, delta=1e-6)
        >>> axes(known, epsilon=4.0, noise_multiplier=None).min_sep
        [7, 15, 30, 60]
    """
    level = epsilon if epsilon is not None else noise_multiplier
    assert level is not None
    most_rounds = math.floor(_ROUNDS[-1] * deployment.rounds)
    return Axes(
        clients_per_round=_around(deployment.clients_per_round, _COHORTS, deployment.population),
        rounds=_around(deployment.rounds, _ROUNDS, most_rounds),
        min_sep=_around(deployment.resolved_min_sep, _MIN_SEPS, most_rounds),
        level=sorted({level * times for times in _LEVELS}),
        planned_level=level,
        by_epsilon=epsilon is not None,
    )


def explored(
    deployment: Deployment,
    names: Iterable[str],
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    max_participations: int | None,
) -> dict[str, Any]:
    """Returns some mechanisms at every combination of values around a plan, as texts that can be shown.

    Formal guarantee: each row is of a mechanism that was optimized for the rounds and the participation of its point,
    and has the σ, ρ and ε of `options.options` there, rounded up. Nothing is interpolated: a point without figures has
    the reason instead.

    Args:
        deployment: The plan.
        names: Names of mechanisms, as `options.options` has them.
        epsilon: ε of the plan.
        noise_multiplier: σ of the plan, in place of ε.
        max_participations: k, if it was given; otherwise as many as fit at each point.

    Returns:
        `axes`, each with its name, label, values as texts, and index of the planned one; `header`, of the rows; and
        `points`, in the order of the axes with the last one fastest, each with `about` and `rows`.
    """
    around, names = axes(deployment, epsilon=epsilon, noise_multiplier=noise_multiplier), list(names)
    pairs = [(n, b) for n in around.rounds for b in around.min_sep]
    searched = {
        (n, b): _searched(deployment, names, n, b, max_participations)
        for n, b in progress.steps(pairs, len(pairs), "plan: points of the page")
    }
    points = [
        _point(deployment, searched[n, b], around, cohort, n, b, level, max_participations)
        for cohort in around.clients_per_round
        for n in around.rounds
        for b in around.min_sep
        for level in around.level
    ]
    return {"axes": _shown_axes(deployment, around), "header": list(_HEADER), "points": points}


def _around(value: int, factors: Sequence[float], most: int) -> list[int]:
    return sorted({value, *(found for each in factors if 1 <= (found := math.floor(each * value)) <= most)})


def _at(deployment: Deployment, cohort: int, rounds: int, min_sep: int, most: int | None) -> Deployment:
    return dataclasses.replace(
        deployment, clients_per_round=cohort, rounds=rounds, min_sep=min_sep, max_participations=most
    )


def _shown_axes(deployment: Deployment, around: Axes) -> list[dict[str, Any]]:
    """Returns the axes as texts; a level is what was given, and all of its digits are shown."""
    kind = "epsilon" if around.by_epsilon else "noise_multiplier"
    label = "largest ε" if around.by_epsilon else "noise multiplier σ"
    whole = {
        "clients_per_round": ("clients a round", around.clients_per_round, deployment.clients_per_round),
        "rounds": ("rounds n", around.rounds, deployment.rounds),
        "min_sep": ("separation b, in rounds", around.min_sep, deployment.resolved_min_sep),
    }
    found = [
        {"name": name, "label": label, "values": [f"{each:,}" for each in values], "planned": values.index(planned)}
        for name, (label, values, planned) in whole.items()
    ]
    levels = [repr(each).removesuffix(".0") for each in around.level]
    return [
        *found,
        {"name": kind, "label": label, "values": levels, "planned": around.level.index(around.planned_level)},
    ]


def _searched(
    deployment: Deployment, names: Sequence[str], rounds: int, min_sep: int, most: int | None
) -> list[options.Searched]:
    """Returns the mechanisms for rounds and a min-sep, which do not depend on the cohort, nor on ε."""
    try:
        # One client a round: then the population always suffices.
        here = _at(deployment, 1, rounds, min_sep, most)
        found = options.searched(here.setting, names, here.objective)
        return sorted(found, key=lambda each: names.index(each.name))
    except InputValueError:
        return []


def _point(
    deployment: Deployment,
    searched: Sequence[options.Searched],
    around: Axes,
    cohort: int,
    rounds: int,
    min_sep: int,
    level: float,
    most: int | None,
) -> dict[str, Any]:
    try:
        here = _at(deployment, cohort, rounds, min_sep, most)
    except InputValueError as error:
        return {"about": f"Not possible: {error}", "rows": []}
    rows = []
    for each in searched:
        try:
            rows.append(_row(here, each, **{"epsilon" if around.by_epsilon else "noise_multiplier": level}))
        except InputValueError as error:
            rows.append([each.name, str(error)])
    return {
        "about": f"{statements.bound_in(here.setting)}; of {here.population:,} clients, δ = {here.delta}",
        "rows": rows,
    }


def _row(
    deployment: Deployment,
    found: options.Searched,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> list[str]:
    if found.mechanism is None:
        return [found.name, found.note]
    figures = options.figures(
        deployment.setting, found, delta=deployment.delta, epsilon=epsilon, noise_multiplier=noise_multiplier
    )
    option = Option(name=found.name, mechanism=found.mechanism, figures=figures)
    largest = of_option(deployment, option, None, advise_epsilon=False)["largest_dimension"]
    error = figures["rms_loss"] / figures["sensitivity"] * figures["noise_multiplier"] / deployment.clients_per_round
    return [
        found.name,
        digits.upwards(figures["noise_multiplier"]),
        digits.upwards(figures["epsilon"]),
        digits.upwards(figures["zcdp_rho"]),
        digits.nearest(figures["rms_loss"]),
        digits.nearest(error),
        "any" if largest is None else f"{largest:,}",
    ]
