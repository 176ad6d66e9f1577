"""`tff-mf plan`: all mechanisms for a deployment, and the recommended one."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import msgspec
import rich_click as click

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.planning import compare
from tff_mf.planning.compare import Option

from ..output import console
from ..output.console import Block, Facts, Table
from ..runs import folders, signal_to_noise, statements
from ..runs.settings import AUTO, NONE, PAPERS_DIMENSION, grid_of
from ..sampling import DEFAULT, SamplingSettings, parameters_of
from . import _options, _screens
from ._screens import Answer

# Samplings that mechanisms are compared for.
_TAKEN = (DEFAULT, "single", "fixed-epochs")
_LOSSES = "Losses compare mechanisms at equal privacy."


@_options.command
@_options.options(
    *(*_options.COHORTS, "rounds", "sampling", "min_sep", "max_participations"),
    *(*_options.LEVEL, "grid", "dimension"),
    required=("population", "clients_per_round", "rounds", "delta"),
)
@click.option("--thorough", is_flag=True, help="Also optimize mechanisms that take minutes.")
@_options.options("out", "plot")
def plan(thorough: bool, out: str | None, plot: str | None, **given: Any) -> Answer:
    """Compare all mechanisms before a run, and recommend one.

    If not given, --min-sep is as large as the population allows, and --max-participations follows from it. Losses are
    comparable at equal privacy. What a wrong estimate costs, such as clients that come twice as often, `tff-mf account`
    says.

    --out writes the plan of the recommended mechanism to a folder, which `tff_mf.Plan.load` reads, for
    `private_fed_avg`, Flower and Keras. --plot draws each mechanism's loss over its memory. What secret cohorts amplify
    is planned by `tff_mf.plan`.
    """
    min_sep, setting = _setting(**given)
    _options.check_plot(plot)
    if out is not None:
        if given["dimension"] is None and given["grid"] != NONE:
            raise InputValueError(
                f"out={out!r} needs dimension, the number of the model's parameters, on which the noise of a grid "
                "depends; or grid='none'."
            )
        folders.check_new(pathlib.Path(out))
    with console.bar("plan", None) as advance:
        planned = tff_mf.plan(**setting, thorough=thorough, progress=lambda name: advance(1, name))
    assert planned.chosen is not None
    name = planned.chosen.name
    least = tff_mf.least_loss(planned.rounds, planned.participation, "rms") or None
    if out is not None:
        planned.save(out)
    if plot is not None:
        from .. import plots

        plots.draw_comparison(planned, name, least, plot)
    dimension = given["dimension"]
    signal = None if dimension is None else signal_to_noise.of_plan(planned, dimension)
    if signal is not None and signal.hopeless:
        click.echo(signal_to_noise.warning(signal), err=True)
    claim = statements.of_plan(planned, population=planned.population)
    facts = {
        **{name: given[name] for name in _options.COHORTS},
        **_screens.described(planned.rounds, planned.participation),
        "min_sep": min_sep,
        "delta": planned.delta,
        "recommended": name,
        "claim": msgspec.to_builtins(claim),
        "signal": None if signal is None else dataclasses.asdict(signal),
        "numbers": {
            "grid": None if planned.grid is None else dataclasses.asdict(planned.grid),
            "dimension": planned.dimension,
        },
        "mechanisms": [
            {
                "name": option.name,
                "note": option.note,
                **finite(option.figures),
                "memory_bytes": _bytes(option, dimension),
            }
            for option in planned.options
        ],
        "least_loss": least,
    }
    refused, of_epsilon = claim.state == statements.REFUSED, given["epsilon"] is not None
    learns = "" if signal is None else signal_to_noise.warning(signal)
    rows = [*_rows(planned, learns, dimension), ("written", ", ".join(filter(None, (out, plot))))]
    bound = "" if least is None else f" No mechanism's RmsLoss is below {digits.downwards(least)}."
    words: list[Block] = [
        "# Plan",
        f"{name}: {statements.line(claim)}",
        Facts(rows),
        "## Mechanisms",
        _table(planned.options, refused=refused, of_epsilon=of_epsilon, dimension=dimension),
        f"{_LOSSES}{bound}",
        "\n".join(f"- {option.name}: {option.note}." for option in planned.options if option.note),
    ]
    if claim.not_checked:
        often = statements.bound_to(planned.participation)
        rests_on = (f"something enforces the participation, {often}", *claim.not_checked)
        words += ["## What it rests on", "\n".join(f"- {text}" for text in rests_on)]
    return Answer(statements.without_epsilon(facts) if refused else facts, words)


def _rows(planned: tff_mf.Plan, learns: str, dimension: int | None) -> list[tuple[str, str]]:
    """Returns what was planned, and why, in labelled lines."""
    assert planned.chosen is not None
    numbers = "floats; figures hold for real numbers only, and --grid auto closes that gap"
    if planned.grid is not None:
        assumed = " (--dimension)" if dimension is None else ""
        parameters = f"{planned.dimension:,} parameters{assumed}"
        numbers = f"integers of {planned.grid.bits} bits, for {parameters}: figures include their cost"
    clients = f"{planned.clients_per_round:,} of {planned.population:,} clients a round"
    return [
        ("setting", f"{clients}, {planned.rounds:,} rounds, {statements.bound_to(planned.participation)}"),
        ("why", planned.why.removeprefix(f"{planned.chosen.name}: ")),
        ("learns", learns),
        ("numbers", numbers),
        ("note", statements.uncustomary_delta(planned.delta, planned.population)),
    ]


def _setting(
    *,
    population: int,
    clients_per_round: int,
    rounds: int,
    sampling: str | None,
    min_sep: int | None,
    max_participations: int | None,
    grid: int | str | None,
    dimension: int | None,
    **level: float | None,
) -> tuple[int, dict[str, Any]]:
    """Returns the min-sep, and the arguments of `tff_mf.plan`.

    Clients come as far apart and as often as they can, unless something is given.

    Raises:
        InputError: If the population does not allow what is given.
    """
    word = sampling or DEFAULT
    if word not in _TAKEN:
        raise InputValueError(f"sampling={word!r} is none of {', '.join(_TAKEN)}; tff_mf.plan accepts others.")
    numbers = {"min_sep": min_sep, "max_participations": max_participations}
    given = {name: value for name, value in numbers.items() if value is not None}
    # What is not given follows from the population; the rest is checked.
    SamplingSettings(sampling=word, **{**dict.fromkeys(parameters_of(word), 1), **given})
    compare.widest(population, clients_per_round=clients_per_round, rounds=rounds)
    most_apart = population // clients_per_round
    apart = most_apart if min_sep is None else min_sep
    if apart > most_apart:
        raise InputValueError(
            f"min_sep={apart} with clients_per_round={clients_per_round} needs {apart * clients_per_round} clients, "
            f"and population={population}: take at most min_sep={most_apart}."
        )
    apart = min(apart, rounds)
    as_often = compare.participations(rounds, apart)
    most = 1 if word == "single" else min(max_participations or as_often, as_often)
    kind = tff_mf.FixedEpoch if word == "fixed-epochs" else tff_mf.MinSep
    for_model = PAPERS_DIMENSION if dimension is None else dimension
    integers = grid_of(AUTO if grid is None else grid, dimension=for_model, cohort=clients_per_round)
    return apart, {
        **level,
        "rounds": rounds,
        "sampling": compare.schema(apart, most, kind=kind),
        "clients_per_round": clients_per_round,
        "population": population,
        "grid": integers,
        "dimension": None if integers is None else for_model,
    }


def _bytes(option: Option, dimension: int | None) -> int | None:
    """Returns the bytes of the copies of a model that a mechanism keeps, in float32."""
    return None if dimension is None or option.mechanism is None else 4 * option.figures["memory_rows"] * dimension


def _table(options: Sequence[Option], *, refused: bool, of_epsilon: bool, dimension: int | None) -> Table:
    """Returns the table of mechanisms; without a stated guarantee, no column has an ε."""
    rows = []
    for option in options:
        if option.mechanism is None:
            continue
        figures = option.figures
        epsilon = "–" if refused else digits.upwards(figures["epsilon"])
        size = _bytes(option, dimension)
        memory = str(figures["memory_rows"]) if size is None else f"{digits.nearest(size / 1e6, 3)} MB"
        rows.append(
            [
                option.name,
                digits.nearest(figures["rms_loss"]),
                digits.nearest(figures["max_loss"]),
                digits.upwards(figures["noise_multiplier"]) if of_epsilon else epsilon,
                memory,
            ]
        )
    header = ["", "RmsLoss", "MaxLoss", "σ" if of_epsilon else "ε", "copies" if dimension is None else "memory"]
    return Table(header, rows)
