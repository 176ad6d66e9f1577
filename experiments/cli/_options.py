"""Flags, arguments and output that several commands share: an option reads and means the same wherever it is."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

import tff_mf

from ..configuration import mechanism_names
from . import _screens, _types
from ._flags import Flags

Command = Callable[..., Any]

_OPTIONS: dict[str, dict[str, Any]] = {
    "rounds": {"type": int, "help": "Number of rounds n."},
    "min_sep": {"type": int, "help": "Smallest separation b of two rounds that one client takes part in."},
    "max_participations": {"type": int, "help": "Largest number k of rounds that one client takes part in."},
    "fixed_epochs": {
        "is_flag": True,
        "help": "Clients come once an epoch of --min-sep rounds, always in the same place.",
    },
    "restart_every": {"type": int, "help": "Rounds after which noise starts anew; never, if not given."},
    "adjacency": {
        "type": _types.ADJACENCY,
        "default": "zero-out",
        "show_default": True,
        "help": "zero-out or replace-one.",
    },
    "workload": {
        "type": _types.WORKLOAD,
        "help": "What losses are for: prefix_sum, momentum, learning_rates or momentum_with_rates; prefix_sum if not "
        "given, or what a FILE was made for.",
    },
    "momentum": {"type": float, "help": "Momentum of the workload."},
    "warmup": {"type": float, "help": "Part of the rounds over which the workload's learning rates rise."},
    "cooldown": {"type": float, "help": "Part of the rounds over which the workload's learning rates fall."},
    "objective": {
        "type": _types.OBJECTIVE,
        "help": "Loss to minimize; rms if not given, but max where a single BLT is looked for.",
    },
    "bands": {"type": int, "help": "Number b̂ of diagonals of a banded kind; --min-sep if not given."},
    "buffers": {"type": int, "help": "Number of buffers of a BLT; chosen by the optimizer if not given."},
    "sampling": {
        "type": _types.AMPLIFIED,
        "help": "State amplification by sampling too: poisson or cyclic_poisson. It holds only where cohorts are drawn "
        "at random, in secret, and nobody ever learns them.",
    },
    "population": {
        "type": int,
        "help": "Clients that can take part: no guarantee is stated unless δ is below 1 / population.",
    },
    "clients_per_round": {"type": int, "help": "Clients of a round; with --sampling, on average."},
    "noise_multiplier": {"type": float, "help": "σ: standard deviation of Z over the clip norm."},
    "epsilon": {"type": float, "help": "ε that the whole run may reach."},
    "delta": {"type": float, "help": "δ of the guarantee; well below 1 / population."},
    "out": {"metavar": "FILE", "help": "Where the artifact goes."},
}

PARTICIPATION = ("min_sep", "max_participations", "fixed_epochs")
SETTING = ("rounds", *PARTICIPATION, "restart_every", "adjacency")
WORKLOAD = ("workload", "momentum", "warmup", "cooldown", "objective")
SAMPLING = ("population", "sampling", "clients_per_round")

_MECHANISMS = (
    "FILE is an artifact, tree-full, tree-online, identity or production:NAME (b100, b400, b1000); or blt, banded, "
    "banded-toeplitz, banded-inverse or dense, which is then optimized for the setting."
)


def help_of(name: str) -> str:
    """Returns the help of an option that several commands share."""
    return _OPTIONS[name]["help"]


def option(name: str, **more: Any) -> Callable[[Command], Command]:
    """Returns the option called `name`, with what differs in a command."""
    return click.option("--" + name.replace("_", "-"), name, **{**_OPTIONS[name], **more})


def setting(*names: str, required: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Adds options of these names, whose values the command gets as one argument, `flags`."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            flags = Flags(**{name: given.pop(name) for name in names})
            return command(flags=flags, **given)

        added: Command = run
        for name in reversed(names):
            added = option(name, **({"required": True} if name in required else {}))(added)
        return added

    return add


def mechanism(command: Command) -> Command:
    """Adds the argument FILE, any name of a mechanism, and says in the help what it may be."""
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{_MECHANISMS}"
    return click.argument("file", metavar="FILE", type=_types.MECHANISM)(command)


fixed_epochs = option("fixed_epochs")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")


def participation_options(command: Command) -> Command:
    """Adds --min-sep and --max-participations."""
    return option("min_sep")(option("max_participations")(command))


def participation(
    min_sep: int | None, max_participations: int | None, *, fixed_epochs: bool = False
) -> tff_mf.Participation:
    """Returns the schema of the flags, which is never guessed: see `Flags.participation`."""
    flags = Flags(min_sep=min_sep, max_participations=max_participations, fixed_epochs=fixed_epochs)
    return flags.participation()


def load_mechanism(file: str, rounds: int | None = None) -> tff_mf.Mechanism:
    """Returns the mechanism of an artifact, of `identity`, of `production:NAME`, or of a tree over so many rounds."""
    return mechanism_names.load(file, rounds)


def report(
    result: Mapping[str, Any],
    *,
    as_json: bool,
    words: Mapping[str, Any] | None = None,
    below: Sequence[str] = (),
) -> None:
    """Prints a result, as one JSON object or as a line an entry.

    JSON has all digits, and no infinity: an unbounded ε or ρ is printed as null.

    Args:
        result: What there is to say, by name.
        as_json: Whether it is read by a program.
        words: What people read in place of an entry; `None` leaves it out.
        below: Paragraphs after the entries.
    """
    if as_json:
        click.echo(json.dumps({name: _jsonable(value) for name, value in result.items()}, allow_nan=False))
        return
    for line in _screens.entries({**result, **(words or {})}):
        click.echo(line)
    if below:
        click.echo()
        paragraphs(*below)


def paragraphs(*texts: str | None) -> None:
    """Prints texts as wide as the terminal, with an empty line between two; one that is empty or None says nothing."""
    for number, text in enumerate(filter(None, texts)):
        click.echo("\n" * bool(number) + "\n".join(_screens.folded(text)))


def show(rows: Sequence[tuple[str, str]]) -> None:
    """Prints labels with a text beside each; a row without a text says nothing."""
    for line in _screens.labelled(rows):
        click.echo(line)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value
