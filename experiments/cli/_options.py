"""Flags, arguments and output that several commands share."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

import tff_mf

from .. import mechanisms
from . import _types

rounds = click.option("--rounds", type=int, required=True, help="Number of rounds n.")
min_sep = click.option("--min-sep", type=int, help="Smallest separation b of two rounds that one client takes part in.")
max_participations = click.option(
    "--max-participations", type=int, help="Largest number k of rounds that one client takes part in."
)
delta = click.option("--delta", type=float, required=True, help="δ of the guarantee; well below 1 / population.")
population = click.option(
    "--population",
    type=int,
    help="Clients that can take part: no guarantee is stated unless δ is below 1 / population.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
mechanism_argument = click.argument("file", metavar="FILE", type=_types.ARTIFACT)


def participation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --min-sep and --max-participations."""
    return min_sep(max_participations(command))


fixed_epochs = click.option(
    "--fixed-epochs", is_flag=True, help="Clients come once an epoch of --min-sep rounds, always in the same place."
)


def participation(
    min_sep: int | None, max_participations: int | None, *, fixed_epochs: bool = False
) -> tff_mf.Participation:
    """Returns the schema of the flags.

    It is never guessed: single participation, the guess that would be at hand, gives the smallest ε.
    """
    if max_participations == 1 and min_sep is None and not fixed_epochs:
        return tff_mf.SingleParticipation()
    missing = [
        flag for flag, value in (("--min-sep", min_sep), ("--max-participations", max_participations)) if value is None
    ]
    if missing or min_sep is None or max_participations is None:
        raise click.UsageError(
            f"{' and '.join(missing)} missing: say how often a client may take part, "
            "for single participation with --max-participations 1."
        )
    schema = tff_mf.FixedEpoch if fixed_epochs else tff_mf.MinSep
    return schema(min_sep=min_sep, max_participations=max_participations)


def participation_to_optimize_for(
    min_sep: int | None, max_participations: int | None, *, fixed_epochs: bool = False
) -> tff_mf.Participation:
    """Returns the schema of the flags, single participation if none is given: no guarantee hangs on it."""
    if min_sep is None and max_participations is None and not fixed_epochs:
        return tff_mf.SingleParticipation()
    return participation(min_sep, max_participations, fixed_epochs=fixed_epochs)


def load_mechanism(file: str) -> tff_mf.Mechanism:
    """Returns the mechanism of an artifact, of `identity`, or of `production:NAME`."""
    return mechanisms.load(file)


def report(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints a result, as one JSON object or as a line an entry.

    JSON has no infinity; an unbounded ε or ρ is printed as null.
    """
    if as_json:
        click.echo(json.dumps({name: _jsonable(value) for name, value in result.items()}, allow_nan=False))
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        # All digits: a shorter ε, or a shorter noise multiplier that somebody copies, could be a smaller one.
        click.echo(f"{name.replace('_', ' '):{width}}  {value}")


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value
