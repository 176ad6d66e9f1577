"""A plan at other cohorts, rounds, min-seps and levels of privacy, and its figures: every point is computed."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import digits
from tff_mf.planning import options
from tff_mf.planning.options import Option, participations, schema
from tff_mf.sensitivities.losses import round_errors

from ..output import progress
from ..runs import statements
from ..runs.curves import Points, block_ends, of_some_rounds, over_delta, over_rounds
from .deployment import Deployment, kind_of
from .signal_to_noise import of_option

_HEADER = ("mechanism", "σ", "ε", "ρ", "RmsLoss", "noise of the mean", "largest model that learns")


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
    shown, of = list(options), {}
    for each in (chosen, *shown) if states else ():
        assert each.mechanism is not None
        of[each.name] = deployment.setting.guarantee(each.mechanism, each.figures["noise_multiplier"])
    return {
        "epsilon_over_delta": over_delta(of[chosen.name], deployment.delta) if states else [],
        "epsilon_over_rounds": {each.name: _over_rounds(deployment, each, of[each.name]) for each in shown if states},
        "error_over_rounds": {each.name: _errors(deployment, each) for each in shown},
    }


def _over_rounds(deployment: Deployment, option: Option, whole: tff_mf.Guarantee) -> Points:
    mechanism, min_sep = option.mechanism, deployment.min_sep
    assert mechanism is not None

    def guarantee(rounds: int) -> tff_mf.Guarantee:
        most = min(deployment.setting.participation.max_participations, participations(rounds, min_sep))
        fits = schema(min_sep, most, kind=kind_of(deployment.setting.participation))
        first = dataclasses.replace(deployment.setting, rounds=rounds, participation=fits, workload=None)
        return first.guarantee(mechanism, option.figures["noise_multiplier"])

    return over_rounds(block_ends(deployment.setting.rounds, min_sep), guarantee, whole, deployment.delta)


def _errors(deployment: Deployment, option: Option) -> Points:
    """Returns the noise of some rounds; none where that would take matrices that do not fit in memory."""
    assert option.mechanism is not None
    rounds = deployment.setting.rounds
    try:
        found = round_errors(
            option.mechanism,
            rounds,
            restart_every=deployment.setting.searched_rounds,
            workload=deployment.setting.workload,
        )
    except InputValueError:
        return []
    scale = option.figures["noise_multiplier"] / deployment.clients_per_round
    return of_some_rounds(found, scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """What can be varied.

    Attributes:
        name: The argument that it is.
        label: What it is called.
        values: Its values in rising order.
        planned: The plan's own value, which is among them.
    """

    name: str
    label: str
    values: Sequence[Any]
    planned: float

    def as_dict(self) -> dict[str, Any]:
        """Returns the axis with its values as texts; a level is what was given, and all of its digits are shown."""
        texts = [f"{each:,}" if isinstance(each, int) else repr(each).removesuffix(".0") for each in self.values]
        index = list(self.values).index(self.planned)
        return {"name": self.name, "label": self.label, "values": texts, "planned": index}


def axes(deployment: Deployment, *, epsilon: float | None, noise_multiplier: float | None) -> list[Axis]:
    """Returns the values around a plan's own: cohorts, rounds, min-seps, and values of ε, or of σ where that is given.

    Example:
        >>> known = Deployment.of(population=3000, clients_per_round=100, rounds=96, delta=1e-6)
        >>> axes(known, epsilon=4.0, noise_multiplier=None)[2].values
        [7, 15, 30, 60]
    """
    name, label, level = "epsilon", "largest ε", epsilon
    if level is None:
        name, label, level = "noise_multiplier", "noise multiplier σ", noise_multiplier
    assert level is not None
    cohort, rounds, min_sep = deployment.clients_per_round, deployment.setting.rounds, deployment.min_sep
    factors = (0.25, 0.5, 1.0, 2.0, 4.0)
    found = (
        ("clients_per_round", "clients a round", _around(cohort, factors, deployment.population), cohort),
        ("rounds", "rounds n", _around(rounds, (0.5, 1.0, 2.0), 2 * rounds), rounds),
        ("min_sep", "separation b, in rounds", _around(min_sep, (0.25, 0.5, 1.0, 2.0), 2 * rounds), min_sep),
        (name, label, sorted({level * times for times in factors}), level),
    )
    return [Axis(name=each, label=text, values=values, planned=own) for each, text, values, own in found]


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
    cohorts, rounds, min_seps, levels = (each.values for each in around)
    pairs, found = list(itertools.product(rounds, min_seps)), {}
    # All points of a mechanism together: what its integers are bounded by is found once.
    for n, b in progress.steps(pairs, len(pairs), "plan: points of the page"):
        searched = _searched(deployment, names, n, b, max_participations)
        numbers = {"rounds": n, "min_sep": b, "max_participations": max_participations}
        for cohort, level in itertools.product(cohorts, levels):
            at = {around[-1].name: level}
            found[cohort, n, b, level] = _point(deployment, searched, at, clients_per_round=cohort, **numbers)
    points = [found[each] for each in itertools.product(cohorts, rounds, min_seps, levels)]
    return {"axes": [each.as_dict() for each in around], "header": list(_HEADER), "points": points}


def _around(value: int, factors: Sequence[float], most: int) -> list[int]:
    return sorted({value, *(found for each in factors if 1 <= (found := math.floor(each * value)) <= most)})


def _searched(
    deployment: Deployment, names: Sequence[str], rounds: int, min_sep: int, most: int | None
) -> list[options.Searched]:
    """Returns the mechanisms for rounds and a min-sep, which do not depend on the cohort, nor on ε."""
    try:
        # One client a round: then the population always suffices.
        here = deployment.at(clients_per_round=1, rounds=rounds, min_sep=min_sep, max_participations=most)
        found = options.searched(here.setting, names, here.objective)
        return sorted(found, key=lambda each: names.index(each.name))
    except InputValueError:
        return []


def _point(
    deployment: Deployment, searched: Sequence[options.Searched], level: Mapping[str, float], **numbers: Any
) -> dict[str, Any]:
    try:
        here = deployment.at(**numbers)
    except InputValueError as error:
        return {"about": f"Not possible: {error}", "rows": []}
    rows = []
    for each in searched:
        try:
            rows.append(_row(here, each, level))
        except InputValueError as error:
            rows.append([each.name, str(error)])
    return {
        "about": f"{statements.participation(here.setting)}; of {here.population:,} clients, δ = {here.delta}",
        "rows": rows,
    }


def _row(deployment: Deployment, found: options.Searched, level: Mapping[str, float]) -> list[str]:
    if found.mechanism is None:
        return [found.name, found.note]
    figures = options.figures(deployment.setting, found, delta=deployment.delta, **level)
    option = Option(name=found.name, mechanism=found.mechanism, figures=figures)
    largest, _ = of_option(deployment, option, None, advise_epsilon=False)
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
