"""The vocabulary of the commands: an option has one name, type, default and meaning in all of them.

An option of a setting is a field of a run's record, in its words and with its default. Fields without an option of
their own are given by `--set`.
"""

import functools
import inspect
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from tff_mf.base import required_packages, validation
from tff_mf.planning import by_name

from ..output import typed
from ..output.typed import Count
from ..runs.derived import WORDS as GRID_WORDS
from ..runs.settings import FIELDS, RunSettings
from ..sampling.settings import SAMPLINGS
from ._boundary import Command as Command
from ._flags import Flags

Function = Callable[..., Any]

_LONGEST_METAVAR = 16


class Words(click.ParamType):
    """One of a few words; a wrong one is refused with the nearest."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Returns the words if they are short."""
        listed = "|".join(self._words)
        return f"[{listed}]" if len(listed) <= _LONGEST_METAVAR else "WORD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns a value that is valid."""
        if value not in self._words:
            meant = validation.did_you_mean(str(value), self._words)
            self.fail(f"{value!r} is none of {', '.join(self._words)}{meant}", param, ctx)
        return value


class _Bits(click.ParamType):
    """Bits of a grid, or a word in their place."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Returns the number, or the word."""
        if value in GRID_WORDS:
            return value
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a valid integer nor {' nor '.join(map(repr, GRID_WORDS))}.", param, ctx)


# The name of something, which is looked up when a command runs.
NAME: dict[str, Any] = {"type": str, "metavar": "NAME"}

# Fields of a run whose values are more than numbers and texts.
_TYPES: dict[str, dict[str, Any]] = {
    "dataset": NAME,
    "mechanism": NAME,
    "sampling": {"type": Words(SAMPLINGS)},
    "workload": {"type": Words(by_name.WORKLOADS)},
    "grid": {"type": _Bits()},
}


def _of_run() -> dict[str, dict[str, Any]]:
    """Returns the options of the fields of a run; an option that is not given is None, whatever the default is."""
    texts, found = typed.described(RunSettings), {}
    for field in msgspec.structs.fields(RunSettings):
        kind = FIELDS[field.name][0]
        how = {"is_flag": True, "flag_value": True, "default": None} if kind is bool else {"type": kind}
        plain = field.required or field.default is None or kind is bool
        text = texts.get(field.name, "") + ("" if plain else f"  [default: {field.default}]")
        found[field.name] = {**how, **_TYPES.get(field.name, {}), "help": text}
    return found


_OPTIONS: dict[str, dict[str, Any]] = {
    **_of_run(),
    "population": {
        "type": int,
        "help": "Number of clients that can take part; no guarantee is stated unless δ is below 1 / population.",
    },
    "epochs": {"type": int, "help": "Number of passes over the examples."},
    "dimension": {"type": int, "help": "Number of model parameters: what a grid costs depends on it."},
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

SETTING = ("rounds", "sampling", "min_sep", "max_participations")
COHORTS = ("population", "clients_per_round")
# Of the guarantee of a mechanism.
GUARANTEE = (*SETTING, "workload", "bands", "buffers", *COHORTS, "grid", "dimension")
# Given by --set.
MORE = (
    *("groups", "hours", "round_minutes", "restart_every", "adjacency"),
    *("objective", "server_momentum", "server_warmup", "server_cooldown"),
)

_MECHANISMS = (
    "FILE is an artifact, tree-full, tree-online, tree-vanilla, identity or production:NAME (b100, b400, b1000); or "
    "blt, scaled-blt, banded, banded-toeplitz or dense, which are optimized for the setting."
)


class _MoreSettings(RunSettings, kw_only=True):
    """What `--set` gives to commands that plan no run, beside the settings of one.

    Attributes:
        adjacency: zero-out, or replace-one, which doubles the sensitivity.
        diagonals: Number h of diagonals of the decoder that a structured mechanism keeps exactly.
        rank: Rank r of its rest: noise needs h + r rows of memory.
        approximates: A file, or any name of a mechanism.
    """

    adjacency: Literal["zero-out", "replace-one"] = "zero-out"
    diagonals: Count | None = None
    rank: Count | None = None
    approximates: str | None = None


def answers(function: Function) -> Function:
    """Adds `--json`, and prints the answer that a command returns."""

    @functools.wraps(function)
    def run(*, as_json: bool, **given: Any) -> None:
        answer = function(**given)
        if answer is not None:
            answer.show(as_json=as_json)

    text = "Print one JSON object and nothing else on stdout."
    return click.option("--json", "as_json", is_flag=True, help=text)(run)


def command(**more: Any) -> Callable[[Function], click.Command]:
    """Makes a command of a function that returns its answer."""
    return lambda function: click.command(cls=Command, **more)(answers(function))


def option(name: str, **more: Any) -> Callable[[Function], Function]:
    """Returns the option called `name`, which a command may require, or have another default place for."""
    return click.option("--" + name.replace("_", "-"), name, **{**_OPTIONS[name], **more})


class SetOption(click.RichOption):
    """`--set`, which gives the fields without an option of their own."""

    def __init__(self, *args: Any, fields: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.fields = fields


def assigned(*fields: str) -> Callable[[Function], Function]:
    """Adds `--set` for fields, whose values the command receives by name, as it receives options."""

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def run(assigned: Sequence[str], **given: Any) -> Any:
            values = _assigned(assigned, fields)
            for name in values:
                if given.get(name) is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} and --set {name} do not go together: give one.")
            return function(**{**given, **values})

        with_option = {each.name for each in getattr(function, "__click_params__", ())}
        rest = [name for name in fields if name not in with_option]
        text = f"A setting that has no option, as in a TOML file; may be repeated: {', '.join(rest)}."
        how = {"cls": SetOption, "fields": fields, "metavar": "NAME=VALUE", "multiple": True, "help": text}
        return click.option("--set", "assigned", **how)(run)

    return add


def _assigned(texts: Sequence[str], fields: Sequence[str]) -> dict[str, Any]:
    """Returns the values of --set by name: TOML, or a text if it is none; the last one counts, as of options."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not sign or not value:
            raise click.UsageError(f"--set={text!r} must be NAME=VALUE.")
        if name not in fields:
            meant = validation.did_you_mean(name, fields)
            raise click.UsageError(f"--set={text!r}: {name!r} is none of {', '.join(fields)}{meant}")
        try:
            found[name] = tomllib.loads(f"it = {value}")["it"]
        except ValueError:
            found[name] = value
    return found


def setting(*names: str, required: Sequence[str] = (), more: Sequence[str] = MORE) -> Callable[[Function], Function]:
    """Adds options, and --set for more fields, whose values the command receives as one argument, `flags`."""

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def run(**given: Any) -> Any:
            values = {name: given.pop(name, None) for name in (*names, *more)}
            typed.convert(
                {name: values[name] for name in more if values[name] is not None}, typed.partial(_MoreSettings), "--set"
            )
            return function(flags=Flags.of(values), **given)

        added: Function = assigned(*more)(run) if more else run
        for name in reversed(names):
            added = option(name, **({"required": True} if name in required else {}))(added)
        return added

    return add


def mechanism(function: Function) -> Function:
    """Adds the argument FILE, any name of a mechanism, and its description in the help."""
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_MECHANISMS}"
    return click.argument("file", metavar="FILE")(function)


def check_plot(file: str | None) -> None:
    """Refuses a file of --plot that cannot be written, or not by the packages that are installed."""
    if file is None:
        return
    required_packages.packages("--plot", "matplotlib")
    from .. import plots

    plots.checked_path(file)


def check_together(alone: Mapping[str, Collection[str]]) -> None:
    """Refuses parameters beside an option that leaves out the usual work; `alone` has those that it goes with."""
    context = get_current_context()
    flags = {param.name or "": max(param.opts, key=len) for param in context.command.params}
    given = [name for name in flags if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    for name, goes_with in alone.items():
        others = [flags[other] for other in given if other != name and other not in goes_with]
        if name in given and others:
            raise click.UsageError(f"{others[0]} does not go with {flags[name]}: leave one of them out.")


def of_record(kind: type, *names: str, more: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Adds options for fields of a record, and --set for all others and for `more`; not given is None."""

    def add(function: Function) -> Function:
        for name in reversed(names):
            function = option(name)(function)
        return assigned(*(each.name for each in msgspec.structs.fields(kind)), *more)(function)

    return add
