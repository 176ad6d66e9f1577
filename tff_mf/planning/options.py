"""Mechanisms compared in the setting of a run, before anything is run, and a recommendation."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism, Tree
from tff_mf.numerics import digits
from tff_mf.planning import mechanism_names
from tff_mf.planning._noise import check_level
from tff_mf.planning.setting import MechanismSetting
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.sensitivities import SensitivityResult
from tff_mf.sensitivities.losses import Errors

# Cost of a search as rounds times squared bands: this many take about a second.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7
_ROUNDS_OF_A_QUICK_DENSE_SEARCH = 128
# As much time as a round of a BLT with scaled columns takes.
_PRODUCTS_OF_A_SCALED_ROUND = 2**12
# Times the cost with unit norms.
_COST_OF_FITTED_NORMS = 5
# Of a banded matrix for MaxLoss, beside one for RmsLoss.
_COST_OF_MAX_LOSS = 5

# Losses within this factor are taken to be equal: then the losses in the cases of wrong estimates decide.
AS_GOOD = 1.1


# A banded matrix whose column norms are fitted to the participation.
_FITTED = "banded, fitted"
# What is never recommended, and why.
_SCALED = (
    "its columns are fitted to this participation, to exactly so many rounds and to one loss: the other may be larger, "
    "and plan never recommends it without amplification"
)
_FITTED_NORMS = {
    _FITTED: "--mechanism banded --set unit_norms=false, its column norms fitted to this participation and to one "
    "loss: the other may be larger, and plan never recommends it without amplification",
    "scaled-blt": _SCALED,
}

_NO_ERROR = Errors(math.inf, math.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A mechanism in a setting, with noise.

    Attributes:
        name: Its name for `tff-mf optimize` or `tff-mf train`; `note` has the flags of one that has no name.
        mechanism: The mechanism; `None` if it was not optimized.
        note: Why it was not optimized, or what it is for; or empty.
        figures: Columns of the table; an unbounded ε is infinite.
        if_wrong: ε at the same noise if an estimate is wrong, by case; infinite for rounds that C is not defined for,
            or that its integers are not bounded for.
        loss_if_wrong: The objective's loss in the same cases, which compares mechanisms at equal privacy.
    """

    name: str
    mechanism: Mechanism | None
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
        sensitivity: Its sensitivity as it runs; `None` if it was not optimized.
        error: Its RmsError and MaxError.
        note: Why it was not optimized, or empty.
    """

    name: str
    mechanism: Mechanism | None
    sensitivity: SensitivityResult | None = None
    error: Errors = _NO_ERROR
    note: str = ""


def widest(population: int, *, clients_per_round: int, rounds: int) -> Participation:
    """Returns the schema in which clients come as far apart as their number allows, and as often as fits.

    Args:
        population: Clients N that can take part.
        clients_per_round: Clients of a round.
        rounds: Number of rounds n.

    Example:
        >>> widest(342_477, clients_per_round=1000, rounds=2052)
        MinSep(min_sep=342, max_participations=6)
        >>> widest(342_477, clients_per_round=100, rounds=2052)
        SingleParticipation()

    Raises:
        InputTypeError: If an argument is not a whole number.
        InputValueError: If an argument is below 1, or a cohort has more clients than there are.
    """
    for name, value in (("population", population), ("clients_per_round", clients_per_round), ("rounds", rounds)):
        validation.whole(name, value)
    if clients_per_round > population:
        raise InputValueError(
            f"clients_per_round={clients_per_round} is more than population={population}: take fewer."
        )
    min_sep = min(population // clients_per_round, rounds)
    return schema(min_sep, participations(rounds, min_sep))


def participations(rounds: int, min_sep: int) -> int:
    """Returns how often a client takes part that does so whenever it may: ⌈n / b⌉."""
    return -(-rounds // min_sep)


def schema(min_sep: int, max_participations: int, *, kind: type[MinSep] | type[FixedEpoch] = MinSep) -> Participation:
    """Returns the schema of these two numbers."""
    if max_participations == 1:
        return SingleParticipation()
    return kind(min_sep=min_sep, max_participations=max_participations)


def cases(setting: MechanismSetting, min_sep: int | None = None) -> dict[str, MechanismSetting]:
    """Returns the settings of cases in which an estimate is wrong, by case.

    Clients then come as often as fits. A client that comes once has no b of its own: `min_sep` is what was expected.
    """
    rounds, min_sep = setting.rounds, setting.separation if min_sep is None else min_sep
    longer = rounds + rounds // 2
    several = {
        "half_min_sep": (rounds, max(1, min_sep // 2)),
        "twice_min_sep": (rounds, min(2 * min_sep, rounds)),
        "half_as_many_rounds_again": (longer, min_sep),
    }
    kind = FixedEpoch if isinstance(setting.participation, FixedEpoch) else MinSep
    return {
        name: dataclasses.replace(setting, rounds=n, participation=schema(b, participations(n, b), kind=kind))
        for name, (n, b) in several.items()
    }


def options(
    setting: MechanismSetting,
    *,
    delta: float,
    objective: str = "rms",
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    dimension: int | None = None,
    min_sep: int | None = None,
    thorough: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Option]:
    """Returns every mechanism in a setting, the one with the least loss first.

    Args:
        setting: The setting of the run.
        delta: δ.
        objective: The loss to compare by, "rms" or "max".
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ, in place of ε.
        dimension: Number of model parameters, for the memory in bytes.
        min_sep: b that the cases of wrong estimates start from; the setting's if not given.
        thorough: Whether searches of minutes are made.
        progress: Called with the name of each mechanism when it is done.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or not exactly one of `epsilon` and `noise_multiplier` given.
    """
    check_level(epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta)
    if dimension is not None:
        validation.whole("dimension", dimension)
    level = {"delta": delta, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    found = []
    for name, search, too_slow in _searches(setting, objective):
        if too_slow and not thorough:
            found.append(Option(name=name, mechanism=None, note=too_slow))
            continue
        start = time.perf_counter()
        try:
            mechanism = search()
            seconds = time.perf_counter() - start
            option = _at(setting, objective, name, mechanism, level, cases(setting, min_sep))
            copies = setting.copies(mechanism, option.figures["noise_multiplier"])
            about = {
                "memory_rows": copies,
                "memory_bytes": None if dimension is None else 4 * copies * dimension,
                "seconds": seconds,
            }
            note = _FITTED_NORMS.get(name, "")
            found.append(dataclasses.replace(option, figures=option.figures | about, note=note))
        except InputValueError as error:
            # A limit of one mechanism does not concern the others: the table names it.
            found.append(Option(name=name, mechanism=None, note=str(error)))
        if progress is not None:
            progress(name)
    return sorted(found, key=lambda option: option.figures.get(f"{objective}_loss", math.inf))


def searched(setting: MechanismSetting, names: Collection[str], objective: str = "rms") -> list[Searched]:
    """Returns the mechanisms of some names in a setting; slow searches are left out, and say so.

    Args:
        setting: The setting of the run.
        names: Names, as `options` gives them.
        objective: The loss to minimize, "rms" or "max".
    """
    found = []
    for name, search, too_slow in _searches(setting, objective):
        if name not in names:
            continue
        if too_slow:
            found.append(Searched(name=name, mechanism=None, note=too_slow))
            continue
        try:
            mechanism = search()
            found.append(_in(setting, name, mechanism))
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
    assert found.sensitivity is not None
    if epsilon is not None:
        sigma = setting.noise_multiplier(found.mechanism, epsilon=epsilon, delta=delta)
    else:
        assert noise_multiplier is not None
        sigma = noise_multiplier
    guarantee, sens = setting.guarantee(found.mechanism, sigma, found.sensitivity), found.sensitivity.value
    return {
        "rms_loss": sens * found.error.rms,
        "max_loss": sens * found.error.max,
        "sensitivity": sens,
        "noise_multiplier": sigma,
        "zcdp_rho": guarantee.zcdp_rho,
        "epsilon": guarantee.epsilon(delta),
    }


def recommend(found: list[Option], objective: str = "rms", measure: str = "loss") -> tuple[Option, str]:
    """Returns the mechanism to take, and why.

    Of those whose loss is within a tenth of the least, both as planned and in the worst case if an estimate is
    wrong, the one that keeps the least state; of equal ones, that with the least loss. Column norms that are fitted to
    the participation, which lower one loss at the expense of the other, are left out.

    Args:
        found: Every mechanism, the one with the least loss first.
        objective: The loss to compare by, "rms" or "max".
        measure: "loss", or "error", in clip norms, where noise is not in proportion to a sensitivity.

    Raises:
        InputValueError: If there is no mechanism for these numbers.
    """
    counts, name = f"{objective}_{measure}", f"{objective.capitalize()}{measure.capitalize()}"
    searched = [option for option in found if option.mechanism is not None and option.name not in _FITTED_NORMS]
    if not searched:
        raise InputValueError(f"There is no mechanism for these numbers: {found[0].name}: {found[0].note}")
    best = searched[0].figures[counts]
    close = [option for option in searched if option.figures[counts] <= AS_GOOD * best]
    least_worst = min(map(_worst, close))
    pool = [option for option in close if _worst(option) <= AS_GOOD * least_worst]
    # A dense matrix keeps no rows because all rows so far are drawn again in each round, which takes longer.
    chosen = min(pool, key=lambda each: (each.name == "dense", each.figures["memory_rows"], each.figures[counts]))
    less = [each.name for each in found if each.name in _FITTED_NORMS and each.figures.get(counts, math.inf) < best]
    without = f", without {' and '.join(less)}" if less else ""
    loss, rows = chosen.figures[counts], chosen.figures["memory_rows"]
    reasons = [
        f"its {name}, {digits.nearest(loss)}, is the least found{without}"
        if loss == best
        else f"its {name}, {digits.nearest(loss)}, is within {100 * (loss / best - 1):.1f} % of the least found "
        f"({searched[0].name}{without})"
    ]
    if 0 < least_worst < math.inf:
        stuck = [option.name for option in close if math.isinf(_worst(option))]
        reasons.append("it can run longer than planned" + (f", which {stuck[0]} cannot" if stuck else ""))
    more = [option for option in pool if option.figures["memory_rows"] > rows]
    copies = f"it keeps {rows or 'no'} {'copies' if rows > 1 else 'copy'} of the model as state"
    reasons.append(copies + (f", {more[0].name} {more[0].figures['memory_rows']}" if more else ""))
    return chosen, f"{chosen.name}: {'; '.join(reasons)}."


def _in(setting: MechanismSetting, name: str, mechanism: Mechanism) -> Searched:
    sens = setting.sensitivity(mechanism.cast_to_float32())
    return Searched(name=name, mechanism=mechanism, sensitivity=sens, error=setting.errors(mechanism))


def _worst(option: Option) -> float:
    return max(option.loss_if_wrong.values(), default=0.0)


def _searches(setting: MechanismSetting, objective: str) -> Iterator[tuple[str, Callable[[], Mechanism], str]]:
    """Yields names, searches, and why a search is skipped unless `thorough`."""
    n = setting.searched_rounds
    bands = min(setting.separation, n)
    buffers = min(4, max(1, n - 1))

    def search(name: str, **options: Any) -> Callable[[], Mechanism]:
        if "objective" in mechanism_names.searched()[name].options:
            options["objective"] = objective
        return lambda: _optimized(name, setting, options)

    def slow(products: float) -> str:
        seconds = products / _PRODUCTS_OF_A_QUICK_SEARCH
        return f"not searched, takes about {seconds:.0f} s: --thorough" if seconds > 1 else ""

    products = n * bands**2 * (_COST_OF_MAX_LOSS if objective == "max" else 1)
    dense_slow = "not searched, takes minutes or more: --thorough"
    yield "identity", Identity, ""
    yield "blt", search("blt", buffers=buffers), ""
    # From 4 on, pairs of buffers are searched too, which takes seconds.
    scaled = search("scaled-blt", buffers=min(3, buffers))
    yield "scaled-blt", scaled, slow(n * _PRODUCTS_OF_A_SCALED_ROUND)
    yield "banded", search("banded", bands=bands), slow(products)
    if setting.searched_participation.max_participations > 1:
        yield (
            _FITTED,
            search("banded", bands=bands, unit_norms=False),
            slow(_COST_OF_FITTED_NORMS * products),
        )
    yield "banded-toeplitz", search("banded-toeplitz", bands=bands), ""
    yield "dense", search("dense"), dense_slow if n > _ROUNDS_OF_A_QUICK_DENSE_SEARCH else ""
    for variant in ("full", "online", "vanilla"):
        yield f"tree-{variant}", lambda variant=variant: Tree(n, variant=variant), ""


def _optimized(name: str, setting: MechanismSetting, options: dict[str, Any]) -> Mechanism:
    if "workload" in mechanism_names.searched()[name].options:
        options["workload"] = setting.searched_workload
    schema = setting.searched_participation
    return mechanism_names.search(name, rounds=setting.searched_rounds, participation=schema, **options)


def _at(
    setting: MechanismSetting,
    objective: str,
    name: str,
    mechanism: Mechanism,
    level: dict[str, Any],
    others: dict[str, MechanismSetting],
) -> Option:
    found = _in(setting, name, mechanism)
    planned = figures(setting, found, **level)
    sigma = planned["noise_multiplier"]
    wrong, losses = {}, {}
    for case, other in others.items():
        wrong[case] = losses[case] = math.inf
        if mechanism.max_rounds is not None and mechanism.max_rounds < other.searched_rounds:
            continue
        sens = other.sensitivity(mechanism.cast_to_float32())
        # On a grid, a mechanism may have fewer rounds than C.
        with contextlib.suppress(InputValueError):
            wrong[case] = other.guarantee(mechanism, sigma, sens).epsilon(level["delta"])
            in_case = found.error if other.rounds == setting.rounds else other.errors(mechanism)
            losses[case] = sens.value * getattr(in_case, objective)
    return Option(name=name, mechanism=mechanism, figures=planned, if_wrong=wrong, loss_if_wrong=losses)
