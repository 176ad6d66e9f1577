"""Options and arguments of the commands: an option has the same name, type and meaning in each."""

import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import rich_click as click
from click.shell_completion import CompletionItem

from tff_mf.accounting import ADJACENCIES
from tff_mf.base import required_packages, validation
from tff_mf.planning import mechanism_names

from ..output.typed import fields_of
from ..runs.settings import ALGORITHMS, ALL, MODELS, PROPOSED, SERVER_OPTIMIZERS, VALIDATION_SPLITS, RunSettings
from ..runs.sizes import WORDS as GRID_WORDS
from ..sampling.settings import DEFAULT, PARAMETERS, SAMPLINGS
from ._flags import Flags

Command = Callable[..., Any]

_LONGEST_METAVAR = 16


class Words(click.ParamType):
    """One of a few words, which the shell completes; a wrong one is refused with the nearest.

    Args:
        words: The words. Of a function, which may know more of them when a command runs, they are checked on use.
        or_file: Whether the name of a file is valid too.
    """

    def __init__(self, words: Sequence[str] | Callable[[], Iterable[str]], *, or_file: bool = False) -> None:
        self.name = "name" if callable(words) else "word"
        self._words, self._or_file = words, or_file

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Returns the words if they are short."""
        listed = "" if callable(self._words) else "|".join(self._words)
        return f"[{listed}]" if 0 < len(listed) <= _LONGEST_METAVAR else self.name.upper()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns a value that may be valid."""
        if not callable(self._words) and value not in self._words:
            known = ", ".join(self._words)
            self.fail(f"{value!r} is none of {known}{validation.did_you_mean(str(value), self._words)}", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the words that begin like this, and the shell's files."""
        words = self._words() if callable(self._words) else self._words
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type="file")] if self._or_file else found


class NumberOr(click.ParamType):
    """A number, or a word in its place."""

    def __init__(self, number: click.ParamType, *words: str) -> None:
        self.name, self._number, self._words = number.name, number, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | int | str:
        """Returns the number, or the word."""
        if value in self._words:
            return value
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a valid {self.name} nor {' nor '.join(map(repr, self._words))}.", param, ctx
            )


def _specs() -> list[str]:
    from ..comparison import specs

    return specs.names()


WORKLOAD = Words(mechanism_names.WORKLOADS)
MECHANISM = Words(lambda: (*mechanism_names.names(), *mechanism_names.production()), or_file=True)
SPEC = Words(_specs)
GRID = NumberOr(click.INT, *GRID_WORDS)
DATASET = Words(lambda: ("pydoc", "stackoverflow", "synthetic", "sqlite:"), or_file=True)

_OPTIONS: dict[str, dict[str, Any]] = {
    "rounds": {"type": int, "help": "Number of rounds n."},
    "sampling": {
        "type": Words(SAMPLINGS),
        "help": f"How clients take part: {', '.join(SAMPLINGS)}; {DEFAULT} if not given. The six from poisson on also "
        "have an amplified ε, which holds only if cohorts are random and remain secret.",
    },
    "min_sep": {"type": int, "help": "Smallest difference b between two rounds in which one client takes part."},
    "max_participations": {"type": int, "help": "Largest number k of rounds in which one client takes part."},
    "groups": {"type": int, "help": "Number of groups of clients; of cyclic-poisson, as many as bands."},
    "participations": {
        "type": int,
        "help": "With random-allocation: number of rounds in which each client takes part.",
    },
    "epochs": {"type": int, "help": "With shuffled-epochs: number of epochs, in each of which clients are shuffled."},
    "hours": {"type": float, "help": "With timer: hours that a device waits; --min-sep rounds if not given."},
    "round_minutes": {"type": float, "help": "With --hours: minutes that a round takes on average."},
    "restart_every": {"type": int, "help": "Rounds after which the noise restarts; never if not given."},
    "adjacency": {
        "type": Words(ADJACENCIES),
        "default": "zero-out",
        "show_default": True,
        "help": "zero-out or replace-one.",
    },
    "workload": {
        "type": WORKLOAD,
        "help": "Workload of the losses: prefix_sum, momentum, learning_rates or momentum_with_rates; if not given, "
        "the FILE's, or prefix_sum.",
    },
    "momentum": {"type": float, "help": "Momentum of the workload."},
    "warmup": {"type": float, "help": "Fraction of the rounds over which the workload's learning rates rise."},
    "cooldown": {"type": float, "help": "Fraction of the rounds over which the workload's learning rates fall."},
    "objective": {
        "type": Words(("rms", "max")),
        "help": "Loss to minimize: by default rms, but max if only a BLT is optimized.",
    },
    "bands": {"type": int, "help": "Number b̂ of bands of a banded mechanism; --min-sep if not given."},
    "buffers": {"type": int, "help": "Number of buffers of a BLT; chosen by the optimizer if not given."},
    "population": {
        "type": int,
        "help": "Number of clients that can take part; no guarantee is stated unless δ is below 1 / population.",
    },
    "clients_per_round": {"type": int, "help": "Number of clients per round; of some samplings, on average."},
    "noise_multiplier": {"type": float, "help": "σ: standard deviation of Z divided by the clip norm."},
    "epsilon": {"type": float, "help": "Largest ε of the whole run."},
    "delta": {"type": float, "help": "δ of the guarantee; well below 1 / population."},
    "grid": {
        "type": GRID,
        "help": "What the integers of a run cost is included: bits of the clip norm, auto, or none for real numbers; "
        "auto if --dimension is given.",
    },
    "dimension": {"type": int, "help": "Number of model parameters: what a grid costs depends on it."},
    "out": {"metavar": "FILE", "help": "File of the artifact."},
    "config": {
        "type": click.Path(),
        "metavar": "FILE",
        "help": "TOML file with a [run] table of settings, and `preset` if need be.",
    },
    "show": {"is_flag": True, "help": "Print all settings and where each is from, and do not train."},
    "without_epsilon": {"is_flag": True, "help": "Train although no ε can be stated."},
    "resume": {"is_flag": True, "help": "Resume the run in --out, with all settings that it began with."},
    "threads": {
        "type": int,
        "help": "Threads inside an operation of its own worker, such as a matrix product; 1 if not given.",
    },
}

UNIT_NORMS = "Columns of norm 1, or norms fitted to the participation, for RmsLoss alone."
PARTICIPATION = ("sampling", *PARAMETERS)
SETTING = ("rounds", *PARTICIPATION, "restart_every", "adjacency")
WORKLOAD = ("workload", "momentum", "warmup", "cooldown", "objective")
COHORTS = ("population", "clients_per_round")
ON_GRID = ("grid", "dimension")
# Of the guarantee of a mechanism.
GUARANTEE = (*SETTING, *WORKLOAD, "bands", "buffers", *COHORTS, *ON_GRID)

_MECHANISMS = (
    "FILE is an artifact, tree-full, tree-online, tree-vanilla, identity or production:NAME (b100, b400, b1000); or "
    "blt, banded, banded-toeplitz, banded-inverse or dense, which are optimized for the setting."
)


def option(name: str, **more: Any) -> Callable[[Command], Command]:
    """Returns the option called `name`, with the settings that differ in a command."""
    return click.option("--" + name.replace("_", "-"), name, **{**_OPTIONS[name], **more})


def setting(*names: str, required: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Adds options, whose values the command receives as one argument, `flags`."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            flags = Flags.of({name: given.pop(name) for name in names})
            return command(flags=flags, **given)

        added: Command = run
        for name in reversed(names):
            added = option(name, **({"required": True} if name in required else {}))(added)
        return added

    return add


def mechanism(command: Command) -> Command:
    """Adds the argument FILE, any name of a mechanism, and its description in the help."""
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{_MECHANISMS}"
    return click.argument("file", metavar="FILE", type=MECHANISM)(command)


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")


def html_page(file: str | None) -> pathlib.Path | None:
    """Returns the file of --html, which can be written by the packages that are installed; None without it."""
    if file is None:
        return None
    required_packages.packages("--html", "jinja2", "matplotlib")
    from ..output.present import html

    return html.check_page(file)


def check_plot(file: str | None) -> None:
    """Refuses a file of --plot that cannot be written, or not by the packages that are installed."""
    if file is None:
        return
    required_packages.packages("--plot", "matplotlib")
    from ..output import figures

    figures.checked_path(file)


HELP = {
    "dataset": "`pydoc` (made on first use), `stackoverflow` (downloaded on first use), `synthetic` (of its size, for "
    "dry runs), or `sqlite:FILE`.",
    "mechanism": "blt, banded, banded-toeplitz, banded-inverse, dense (optimized for the run), tree-full, tree-online, "
    "tree-vanilla, identity, production:NAME or a FILE.",
    "workload": "What the mechanism is optimized for: prefix_sum, momentum, learning_rates or momentum_with_rates.",
    "buffers": "Buffers of an optimized blt; chosen by the optimizer if not given.",
    "bands": "Bands of an optimized banded kind; --min-sep if not given.",
    "unit_norms": UNIT_NORMS,
    "clients_per_round": "Clients that train in a round.",
    "cohort": "Clients that a round stands for, simulated by --clients-per-round.",
    "sampling": f"How cohorts are drawn: {', '.join(SAMPLINGS)}.",
    "secret_cohorts": "Cohorts from the system's randomness, logged nowhere: ε is amplified by --sampling.",
    "dropout": "Probability that a chosen client does not report.",
    "epsilon": "ε that the whole run may reach; or give --noise-multiplier.",
    "noise_multiplier": "σ: standard deviation of Z over the clip norm, for the cohort.",
    "grid": "Updates, sums and noise as integers: bits of the clip norm, auto, or none for floating point, whose low "
    "bits can give clients away.",
    "clip_norm": "Bound on the L2 norm of a client's update; the first one, with --adaptive-clipping.",
    "adaptive_clipping": "Part of the updates that shall be below the clip norm, which adapts at each restart; needs "
    "--restart-every and --adaptive-count-stddev.",
    "adaptive_count_stddev": "With --adaptive-clipping: standard deviation of the noise of each round's count, for the "
    "cohort; the counts are part of ε.",
    "adaptive_learning_rate": "With --adaptive-clipping: how fast the clip norm follows, as an exponent.",
    "zeroing": "Updates with an entry larger than this are set to zero.",
    "algorithm": "fed_avg, or fed_sgd: clients send the mean gradient over their examples.",
    "initial_model": "The model.safetensors of another run's folder, to start from: public, or accounted for by you.",
    "model": "lstm (the papers') or conv.",
    "vocab_size": "Most frequent words to know.",
    "embedding_size": "Width of the word embedding.",
    "units": "LSTM units, or filters of conv.",
    "client_learning_rate": "Learning rate of the clients' SGD.",
    "client_epochs": "Passes over its sentences that a client makes in a round.",
    "batch_size": "Sentences in a batch of a client.",
    "max_examples": "Sentences a client uses at most in one round.",
    "server_optimizer": "sgdm, or dp_ftrl: its momentum starts anew when the noise does.",
    "server_learning_rate": f"Learning rate of the server's SGD, or `{PROPOSED}`: from the noise, by a regression.",
    "server_momentum": "Momentum of the server's SGD.",
    "server_warmup": "Part of the rounds over which the server's rate rises.",
    "server_cooldown": "Part of the rounds over which the server's rate falls.",
    "evaluate_every": "Rounds between evaluations on validation sentences.",
    "evaluation_examples": "Validation sentences to evaluate on.",
    "validation_split": "Where they are from: heldout, or test: the first of the test clients, as in the papers.",
    "test_examples": f"Test sentences that the final model is measured on, or `{ALL}`.",
    "seed": "Seed of cohorts and initial model, never of noise.",
    "tensorboard": "Write metrics for TensorBoard too.",
    "reference_model": "Whether clients compute with TFF's own model: the same up to rounding, and half as fast.",
}
# Types of the fields of a run that are more than numbers and texts.
_RUN_TYPES = {
    "dataset": DATASET,
    "mechanism": MECHANISM,
    "initial_model": click.Path(),
    "algorithm": Words(ALGORITHMS),
    "model": Words(MODELS),
    "server_optimizer": Words(SERVER_OPTIMIZERS),
    "server_learning_rate": NumberOr(click.FLOAT, PROPOSED),
    "validation_split": Words(VALIDATION_SPLITS),
    "test_examples": NumberOr(click.INT, ALL),
}
_PAIRS = {
    "unit_norms": "--unit-norms/--free-norms",
    "reference_model": "--reference-model/--fast-model",
    "secret_cohorts": "--secret-cohorts/--logged-cohorts",
}
# What is set, and never unset.
_FLAGS = ("tensorboard",)


def of_fields(
    kind: type, *, helps: Mapping[str, str], types: Mapping[str, click.ParamType]
) -> Callable[[Command], Command]:
    """Returns a decorator that adds an option for each field of a configuration; what is not given is None.

    Args:
        kind: The class of the configuration.
        helps: The help of options, without the default; other commands have the same if it is missing.
        types: Types of fields that are more than numbers and texts, and differ from other commands'.
    """

    def add(command: Command) -> Command:
        of_kind = fields_of(kind)
        for field in reversed(msgspec.structs.fields(kind)):
            shared = _OPTIONS.get(field.name, {})
            shown = "" if field.default is None or field.name in _FLAGS else f"  [default: {field.default}]"
            if field.required:
                shown = "  [required]"
            flag = _PAIRS.get(field.name, "--" + field.name.replace("_", "-"))
            its_type = types.get(field.name) or shared.get("type") or of_kind[field.name][0]
            how: dict[str, Any] = {"is_flag": True, "flag_value": True} if field.name in _FLAGS else {"type": its_type}
            text = helps.get(field.name) or shared["help"]
            command = click.option(flag, field.name, default=None, help=text + shown, **how)(command)
        return command

    return add


of_run = of_fields(RunSettings, helps=HELP, types=_RUN_TYPES)
