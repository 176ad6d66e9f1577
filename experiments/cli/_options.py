"""The vocabulary of the commands: an option has one name, type, default and meaning in all of them.

An option of a setting is a field of a run's record, in its words and with its default. Fields without an option of
their own are given by `--set`.
"""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import rich_click as click

import tff_mf
from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError

from ..output import typed
from ..runs.settings import AUTO, NONE, RunSettings, grid_of
from ..sampling import DEFAULT, SamplingSettings
from . import SHORTAGES

Function = Callable[..., Any]


def bits(text: str) -> int | str:
    """Returns the bits of a grid, or the word in their place, which is looked up when a command runs."""
    return int(text) if text.isdecimal() else text


# The name of something, which is looked up when a command runs.
NAME: dict[str, Any] = {"type": str, "metavar": "NAME"}
# Fields whose values are more than numbers and texts.
_TYPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("dataset", "mechanism", "sampling", "workload"), NAME),
    "grid": {"type": bits, "metavar": "BITS"},
}


def _of_fields(kind: type[typed.Record]) -> dict[str, dict[str, Any]]:
    """Returns the options of the fields of a record; an option that is not given is None, whatever the default is."""
    texts, types, options = typed.described(kind), typed.fields_of(kind), {}
    for field in msgspec.structs.fields(kind):
        is_flag = types[field.name][0] is bool
        how = {"is_flag": True, "flag_value": True, "default": None} if is_flag else {"type": types[field.name][0]}
        plain = field.required or field.default is None or is_flag
        text = texts.get(field.name, "") + ("" if plain else f"  [default: {field.default}]")
        options[field.name] = {**how, **_TYPES.get(field.name, {}), "help": text}
    return options


_OPTIONS: dict[str, dict[str, Any]] = {
    **_of_fields(RunSettings),
    "population": {
        "type": int,
        "help": "Number of clients that can take part; no guarantee is stated unless δ is below 1 / population.",
    },
    "dimension": {"type": int, "help": "Number of model parameters: what a grid costs depends on it."},
    "epochs": {"type": int, "help": "Number of passes over the examples."},
    "preset": {
        **NAME,
        "help": "Settings of a paper's experiment, which files and options override; see --show.",
    },
    "config": {
        "type": click.Path(),
        "metavar": "FILE",
        "help": "TOML file with a [run] table of settings, and `preset` if need be.",
    },
    "show": {
        "is_flag": True,
        "help": "Print all settings, what they mean and where each is from, and do nothing else.",
    },
    "without_epsilon": {"is_flag": True, "help": "Train although no ε can be stated."},
    "insecure_seed": {"type": int, "help": "Seed of the noise: TEST ONLY, there is no privacy then."},
    "resume": {"is_flag": True, "help": "Resume the run in --out, with all settings that it began with."},
    "out": {"metavar": "PATH", "help": "The file or the new folder to write."},
    "plot": {"metavar": "FILE", "help": "Draw it too: PNG, SVG or PDF by the ending."},
}

SAMPLING = ("sampling", "min_sep", "max_participations", "groups")
COHORTS = ("population", "clients_per_round")
LEVEL = ("epsilon", "noise_multiplier", "delta")

_MECHANISMS = (
    "FILE is an artifact, which `optimize` writes, or tree-full, tree-online, tree-vanilla, identity or "
    "production:NAME (b100, b400, b1000)."
)


class Command(click.RichCommand):
    """A command that refuses a path that cannot be used by the option that it was given with."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invokes the command."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            for name, value in ctx.params.items():
                own = isinstance(value, str) and value and str(error.filename).startswith(value)
                if own and error.errno not in SHORTAGES:
                    raise InputValueError(
                        f"{name}={value!r} cannot be used: {error.filename}: {error.strerror}; name another."
                    ) from error
            raise


def command(function: Function) -> click.Command:
    """Makes a command of a function that returns its answer, which is printed, with `--json` for programs."""

    @functools.wraps(function)
    def run(*, as_json: bool, **given: Any) -> None:
        answer = function(**given)
        if answer is not None:
            answer.show(as_json=as_json)

    text = "Print one JSON object and nothing else on stdout."
    return click.command(cls=Command)(click.option("--json", "as_json", is_flag=True, help=text)(run))


def options(*names: str, required: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Adds the options of these names, some of which a command requires."""

    def add(function: Function) -> Function:
        for name in reversed(names):
            how: dict[str, Any] = {**_OPTIONS[name], "required": name in required}
            function = click.option("--" + name.replace("_", "-"), name, **how)(function)
        return function

    return add


def assigned(*fields: str) -> Callable[[Function], Function]:
    """Adds `--set` for fields, whose values the command receives by name as it receives options."""

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def run(assigned: Sequence[str], **given: Any) -> Any:
            values = _assigned(assigned, fields)
            for name in values:
                if given.get(name) is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} and --set {name} do not go together: give one.")
            return function(**{**given, **values})

        text = f"A setting that has no option, as in a TOML file; may be repeated: {', '.join(fields)}."
        return click.option("--set", "assigned", metavar="NAME=VALUE", multiple=True, help=text)(run)

    return add


def _assigned(texts: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """Returns the values of --set by name: TOML, or a text if it is none; the last one counts, as of options."""
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not sign or not value:
            raise click.UsageError(f"--set={text!r} must be NAME=VALUE.")
        if name not in fields:
            meant = validation.did_you_mean(name, fields)
            raise click.UsageError(f"--set={text!r}: {name!r} is none of {', '.join(fields)}{meant}")
        try:
            values[name] = tomllib.loads(f"it = {value}")["it"]
        except ValueError:
            values[name] = value
    return values


def of_record(kind: type, *names: str, more: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Adds options for fields of a record, and --set for all fields and for `more`; not given is None."""
    fields = (field.name for field in msgspec.structs.fields(kind))
    return lambda function: assigned(*fields, *more)(options(*names)(function))


def of_training(kind: type, *names: str, more: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Adds the options of a command that trains, around those of `of_record`."""

    def add(function: Function) -> Function:
        own = of_record(kind, *names, more=more)(options("without_epsilon", "resume", "out")(function))
        return options("preset", "config", "show")(own)

    return add


def mechanism(function: Function) -> Function:
    """Adds the argument FILE, any name of a mechanism, and its description in the help."""
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_MECHANISMS}"
    return click.argument("file", metavar="FILE")(function)


def sampling_of(given: Mapping[str, Any]) -> SamplingSettings:
    """Returns how cohorts are drawn by the options of `SAMPLING`.

    There is no default for the parameters: single participation, the obvious one, would give the smallest ε.
    """
    parameters = {name: given[name] for name in SAMPLING[1:] if given[name] is not None}
    return SamplingSettings(sampling=given["sampling"] or DEFAULT, **parameters)


def grid_of_options(grid: int | str | None, dimension: int | None, cohort: int | None) -> tff_mf.Grid | None:
    """Returns the grid, which is meant by a dimension too; refuses one whose cost no dimension tells."""
    if grid == NONE or (grid is None and dimension is None):
        return None
    if dimension is None:
        raise click.UsageError(
            f"--dimension is missing: what --grid {grid} costs depends on the number of model parameters."
        )
    return grid_of(AUTO if grid is None else grid, dimension=dimension, cohort=cohort or 1)


def check_plot(file: str | None) -> None:
    """Refuses a file of --plot that cannot be written, or not by the packages that are installed."""
    if file is None:
        return
    required_packages.packages("--plot", "matplotlib")
    from .. import plots

    plots.checked_path(file)
