"""Flags, arguments and output that several commands share: an option has the same name and meaning in each."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich_click as click

import tff_mf

from ..configuration import mechanism_names
from ..output import strict_json
from . import _screens, _types
from ._flags import Flags

Command = Callable[..., Any]

_OPTIONS: dict[str, dict[str, Any]] = {
    "rounds": {"type": int, "help": "Number of rounds n."},
    "min_sep": {"type": int, "help": "Smallest difference b between two rounds in which one client takes part."},
    "max_participations": {"type": int, "help": "Largest number k of rounds in which one client takes part."},
    "fixed_epochs": {
        "is_flag": True,
        "help": "Each client takes part once per epoch of --min-sep rounds, always at the same position.",
    },
    "restart_every": {"type": int, "help": "Rounds after which the noise restarts; never if not given."},
    "adjacency": {
        "type": _types.ADJACENCY,
        "default": "zero-out",
        "show_default": True,
        "help": "zero-out or replace-one.",
    },
    "workload": {
        "type": _types.WORKLOAD,
        "help": "Workload of the losses: prefix_sum, momentum, learning_rates or momentum_with_rates; if not given, "
        "that of a FILE, or prefix_sum.",
    },
    "momentum": {"type": float, "help": "Momentum of the workload."},
    "warmup": {"type": float, "help": "Fraction of the rounds over which the workload's learning rates rise."},
    "cooldown": {"type": float, "help": "Fraction of the rounds over which the workload's learning rates fall."},
    "objective": {
        "type": _types.OBJECTIVE,
        "help": "Loss to minimize: by default rms, but max if only a BLT is optimized.",
    },
    "bands": {"type": int, "help": "Number b̂ of bands of a banded mechanism; --min-sep if not given."},
    "buffers": {"type": int, "help": "Number of buffers of a BLT; chosen by the optimizer if not given."},
    "sampling": {
        "type": _types.AMPLIFIED,
        "help": "Also print figures amplified by sampling: poisson, cyclic_poisson or balls_in_bins. They "
        "hold only if cohorts are random and remain secret.",
    },
    "population": {
        "type": int,
        "help": "Number of clients that can take part; no guarantee is stated unless δ is below 1 / population.",
    },
    "clients_per_round": {"type": int, "help": "Number of clients per round; with --sampling, on average."},
    "noise_multiplier": {"type": float, "help": "σ: standard deviation of Z divided by the clip norm."},
    "epsilon": {"type": float, "help": "Largest ε of the whole run."},
    "delta": {"type": float, "help": "δ of the guarantee; well below 1 / population."},
    "grid": {
        "type": _types.GRID,
        "help": "What the integers of a run cost is included: bits of the clip norm, auto, or none for real numbers; "
        "auto if --dimension is given.",
    },
    "dimension": {"type": int, "help": "Number of model parameters: what a grid costs depends on it."},
    "out": {"metavar": "FILE", "help": "File of the artifact."},
}

UNIT_NORMS = "Columns of norm 1, or norms fitted to the participation, for RmsLoss alone."
PARTICIPATION = ("min_sep", "max_participations", "fixed_epochs")
SETTING = ("rounds", *PARTICIPATION, "restart_every", "adjacency")
WORKLOAD = ("workload", "momentum", "warmup", "cooldown", "objective")
SAMPLING = ("population", "sampling", "clients_per_round")
ON_GRID = ("grid", "dimension")

_MECHANISMS = (
    "FILE is an artifact, tree-full, tree-online, tree-vanilla, identity or production:NAME (b100, b400, b1000); or "
    "blt, banded, banded-toeplitz, banded-inverse or dense, which are optimized for the setting."
)


def help_of(name: str) -> str:
    """Returns the help of an option that several commands share."""
    return _OPTIONS[name]["help"]


def option(name: str, **more: Any) -> Callable[[Command], Command]:
    """Returns the option called `name`, with the settings that differ in a command."""
    return click.option("--" + name.replace("_", "-"), name, **{**_OPTIONS[name], **more})


def setting(*names: str, required: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Adds options, whose values the command receives as one argument, `flags`."""

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
    """Adds the argument FILE, any name of a mechanism, and its description in the help."""
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
    """Prints a result, as one JSON object or one line per entry.

    JSON has all digits, and null in place of an unbounded ε or ρ.

    Args:
        result: The values, by name.
        as_json: Whether to print JSON.
        words: Texts that replace entries where no JSON is printed; `None` leaves an entry out.
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
    """Prints texts as wide as the terminal, with empty lines between them; skips those that are empty or None."""
    for number, text in enumerate(filter(None, texts)):
        click.echo("\n" * bool(number) + "\n".join(_screens.folded(text)))


def show(rows: Sequence[tuple[str, str]]) -> None:
    """Prints labels with a text beside each; skips rows without a text."""
    for line in _screens.labelled(rows):
        click.echo(line)


def _jsonable(value: Any) -> Any:
    return strict_json.finite(value) if isinstance(value, float) else value
