"""The settings of a run: what presets, files and flags become, what a plan is made of, and what `run.json` keeps."""

import dataclasses
import json
import math
import os
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms.grid import check_rows as check_noise_rows
from tff_mf.planning import MechanismSetting, by_name, check_level, check_restarts, checked_cohort
from tff_mf.problem.grids import FEWEST_BITS, MOST_BITS

from ..output import console, files, typed
from ..output.typed import Count, Number, Part, Positive, Record, Size, Whole, check_same
from ..sampling import DEFAULT, PARAMETERS, SAMPLINGS, SECRET, SamplingSettings, parameters_of
from .names import PLAN, RUN_JSON, SETTINGS_TOML
from .signal_to_noise import proposed_rate

# The data sets that are known by a word, of which the first is the default, and what may precede a file of another.
EMBEDDED, SQLITE = ("pydoc", "stackoverflow"), "sqlite:"
# Where a value is from that was typed.
FLAG = "flag"
# What a field takes away from the layers below it.
_REPLACES = {
    "mechanism": ("buffers", "bands", "unit_norms", "objective", "workload"),
    "epsilon": ("noise_multiplier",),
    "noise_multiplier": ("epsilon",),
}
AUTO, NONE = "auto", "none"
# Parameters of the model of the papers' StackOverflow experiments.
PAPERS_DIMENSION = 4_050_748
# Words that the convolution sees at once.
KERNEL_WORDS = 3
# As many as TFF's task adds to the words: padding, unknown, beginning and end of a sentence.
_SPECIAL_WORDS = 4
_OF_MECHANISM = ("buffers", "bands", "unit_norms", "objective")
ALL, PROPOSED = "all", "proposed"
# The default. Runs at a fraction of the size use it in place of `all`, whose number is not known yet.
TEST_EXAMPLES = 20_000
# Fields whose values are files, or known names.
FILES = ("mechanism", "dataset")
# Of a plan, as the settings have them.
_AS_IN_PLAN = ("rounds", "delta", "clip_norm", "restart_every")
# NumPy's and Python's generators, which TFF seeds, take 32 bits.
_Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
# TensorFlow makes room at once for a whole batch, and for all examples that it shuffles.
_Batch = Annotated[int, Meta(ge=1, le=2**20)]
_Shuffled = Annotated[int, Meta(ge=1, le=2**24)]
_Evaluated = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_MeanRuns = Annotated[float, Meta(ge=1, le=1000)]


class PrivacySettings(Record, kw_only=True):
    """The settings of every private training, of clients or of examples, that its mechanism and noise follow from.

    Attributes:
        delta: δ of the guarantee; well below 1 / population.
        mechanism: `blt`, `scaled-blt`, `banded`, `banded-toeplitz` or `dense`, optimized for the run;
            `tree-full`, `tree-online`, `tree-vanilla`, `identity`, `production:NAME`, or a file.
        buffers: Buffers of an optimized `blt`; chosen by the optimizer if not given.
        bands: Bands of an optimized banded kind; min-sep if not given.
        unit_norms: Whether the columns of a `banded` have norm 1; if false, their norms are fitted to the
            participation.
        objective: Loss to minimize, `rms` or `max`; by default `max` for a BLT, `rms` for all others.
        workload: Workload of the losses, for which the mechanism is optimized: `prefix-sum`, `momentum`,
            `learning-rates` or `momentum-with-rates`.
        min_sep: Smallest difference b between two rounds of one client.
        groups: Number of groups of clients; of `cyclic-poisson`, as many as bands.
        epsilon: Largest ε of the whole run; or a noise multiplier.
        noise_multiplier: σ: standard deviation of Z divided by the clip norm, for the cohort.
        clip_norm: Bound ζ on the L2 norm of a client's update.
    """

    delta: Number
    mechanism: str = "blt"
    buffers: Size | None = None
    bands: Size | None = None
    unit_norms: bool | None = None
    objective: str | None = None
    workload: str = "prefix-sum"
    min_sep: Whole | None = None
    groups: Whole | None = None
    epsilon: Number | None = None
    noise_multiplier: Number | None = None
    clip_norm: Number = 1.0

    def __post_init__(self) -> None:
        # Of what is not read from a file, msgspec checks nothing by itself; it knows no scalars of NumPy.
        values = msgspec.structs.asdict(self).items()
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values}
        typed.convert(plain, typed.partial(type(self)))
        validation.clip_norm(self.clip_norm)

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting that the mechanism is optimized for."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuses a mechanism or a level of noise that does not go with the other settings."""
        check_level(epsilon=self.epsilon, noise_multiplier=self.noise_multiplier, delta=self.delta)
        setting = self.mechanism_setting()
        by_name.check(
            self.mechanism, rounds=setting.searched_rounds, workload=setting.searched_workload, **self._options
        )

    def build_mechanism(self) -> tff_mf.Mechanism:
        """Returns the mechanism, for one restart if there are restarts, optimized if it is of such a kind."""
        with console.search() as report:
            return self.mechanism_setting().named(self.mechanism, **self._options, progress=report)

    def write(self, folder: pathlib.Path) -> None:
        """Writes all settings to the folder of a run: `--config` repeats it, whatever the defaults are."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        files.write_atomically(folder / SETTINGS_TOML, as_toml(values))

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_MECHANISM}


class RunSettings(PrivacySettings, kw_only=True):
    """All settings of a run of `tff-mf train`. An option has the name of its field, and its help is what stands below.

    Defaults of the model come from the papers' StackOverflow experiments. A value that no run can have is refused when
    the settings are made; `check` refuses a mechanism that does not fit them.

    Attributes:
        rounds: Number of rounds n.
        clients_per_round: Clients in a round; for some samplings on average.
        dataset: `pydoc` (made on first use), `stackoverflow` (downloaded on first use), or `sqlite:FILE`.
        restart_every: Rounds after which the noise restarts; never if not given.
        cohort: Clients that a round stands for, simulated by the clients of a round; the same if not given.
        clients_per_person: The most clients that one person can have: above 1, ε of a person is stated too.
        sampling: How clients take part: `min-sep`, `single` or `fixed-epochs`; or, amplified if cohorts are random and
            secret, `poisson`, `cyclic-poisson`, `balls-in-bins` or `b-min-sep`.
        max_participations: Largest number k of rounds of one client.
        secret_cohorts: Draw cohorts from the system's randomness, and neither log nor release them, so that the
            sampling amplifies ε; otherwise they follow from the seed, and are logged.
        grid: Bits of the clip norm in the integers that updates, sums and noise are; `auto`, or `none` for floating
            point, whose low bits can give clients away.
        zeroing: Updates with an entry of larger magnitude are set to zero; `None` zeroes none. The bound is fixed: each
            client's update is judged by itself, so that the sensitivity stays the same.
        algorithm: `fed-avg`: clients train, and send what changed; or `fed-sgd`: they send the mean gradient over
            their examples, in a single pass.
        model: `lstm`, the recurrent model of the papers, or `conv`, a causal convolution over the last three words,
            which learns faster and costs a fraction.
        vocab_size: Most frequent words to know.
        embedding_size: Width of the word embedding.
        units: LSTM units, or filters of the convolution.
        client_learning_rate: Rate of the clients' SGD; `fed-sgd` has none.
        client_epochs: Passes over its sentences that a client makes in one round.
        batch_size: Examples in a batch.
        max_examples: Sentences a client uses at most in one round.
        server_optimizer: `sgdm`: SGD with momentum; or `dp-ftrl`: steps from the model of the last restart along the
            sum of all updates since, so that the momentum restarts with the noise. Without restarts they are the same.
        server_learning_rate: Rate of the server's optimizer: a number, or `proposed`: from the noise, by the regression
            of the banded MF paper.
        server_momentum: Momentum of the server's optimizer, and of a workload with momentum, in [0, 1).
        server_warmup: Part of the rounds over which the server's rate rises from a twentieth, at the start.
        server_cooldown: Part of the rounds over which the server's rate falls to a twentieth, at the end.
        evaluate_every: Rounds between two evaluations; the last round is always evaluated.
        evaluation_examples: Validation sentences, on which the model is evaluated.
        validation_split: Where they are from: `heldout`, clients for validation only, or `test`: the first sentences
            of the test clients, which are then left out of the test, as in the papers.
        test_examples: Test sentences that the final model is measured on, once: a number, or `all`.
        seed: Seed of cohorts and initial model, never of noise.
        search: Mean number of runs of a search on clients that train, of which this is one: ε is then of the best, if
            nothing of the others is ever published.
        search_runs: How the number of runs is distributed: `logarithmic`, `geometric` or `poisson`.

    Example:
        >>> RunSettings(rounds=8, clients_per_round=2, delta=1e-6, min_sep=4, max_participations=2).participation()
        MinSep(min_sep=4, max_participations=2)
    """

    rounds: Whole
    clients_per_round: Whole
    dataset: str = EMBEDDED[0]
    restart_every: Whole | None = None
    cohort: Whole | None = None
    clients_per_person: Count = 1
    sampling: str = DEFAULT
    max_participations: Whole | None = None
    secret_cohorts: bool = False
    grid: Whole | str = AUTO
    zeroing: Positive | None = None
    algorithm: str = "fed-avg"
    model: str = "lstm"
    vocab_size: Size = 10_000
    embedding_size: Size = 96
    units: Size = 670
    client_learning_rate: Positive = 1.0
    client_epochs: Size = 1
    batch_size: _Batch = 16
    max_examples: _Shuffled = 256
    server_optimizer: str = "sgdm"
    server_learning_rate: Positive | str = 1.0
    server_momentum: Part = 0.95
    server_warmup: Part = 0.15
    server_cooldown: Part = 0.25
    evaluate_every: Size = 25
    evaluation_examples: _Evaluated = 2000
    validation_split: str = "heldout"
    test_examples: Size | str = TEST_EXAMPLES
    seed: _Seed = 0
    search: _MeanRuns | None = None
    search_runs: str = "logarithmic"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, words in _WORDS.items():
            validation.one_of(name, getattr(self, name), words)
        for pair in _GOES_WITH:
            self._check_pair(*pair)
        for name, word in (("test_examples", ALL), ("server_learning_rate", PROPOSED)):
            value = getattr(self, name)
            if isinstance(value, str) and value != word:
                raise InputValueError(f"{name}={value!r} must be a number or {word!r}.")
        # Refuses its parameters.
        self.sampling_settings()
        if self.secret_cohorts and self.sampling not in SECRET:
            raise InputValueError(
                f"secret_cohorts does not go with sampling={self.sampling!r}, which secrecy does not amplify: take "
                f"{', '.join(SECRET)}, or leave it out."
            )
        if self.secret_cohorts and self.cohort not in (None, self.clients_per_round):
            raise InputValueError(
                f"cohort={self.cohort!r} does not go with secret_cohorts, whose ε is that of the clients_per_round="
                f"{self.clients_per_round} that train: leave one out."
            )

    def _check_pair(self, name: str, words: Sequence[Any], other: str, only: Any, why: str) -> None:
        """Raises if a value would have no effect beside another one, or no theorem here covers the two."""
        value, chosen = getattr(self, other), getattr(self, name)
        if chosen in words and value != only:
            beside = name if chosen is True else f"{name}={chosen!r}"
            remedy = "leave one out" if only is None or chosen is True else f"set it to {only!r}"
            raise InputValueError(f"{other}={value!r} does not go with {beside}, {why}; {remedy}.")

    def check(self) -> None:
        """Refuses what can be refused before anything is optimized, trained or written."""
        check_restarts(self.rounds, self.restart_every, None)
        if self.chosen_grid() is not None and self.mechanism == "dense":
            # Before a search of hours.
            bands = self.mechanism_setting().searched_rounds
            check_noise_rows("dense", bands=bands, dimension=self.dimension)
        super().check()

    @property
    def dimension(self) -> int:
        """Number of the model's parameters with its whole vocabulary, without TensorFlow."""
        words, width, units = self.vocab_size + _SPECIAL_WORDS, self.embedding_size, self.units
        if self.model == "conv":
            return words * width + (KERNEL_WORDS * width + 1) * units + (units + 1) * words
        return words * width + 4 * (width + units + 1) * units + (units + 1) * width + (width + 1) * words

    def chosen_grid(self) -> tff_mf.Grid | None:
        """Returns the grid that the settings stand for; `None` for floating point."""
        cohort = checked_cohort(self.clients_per_round, self.cohort)
        return grid_of(self.grid, dimension=self.dimension, cohort=cohort)

    def sampling_settings(self) -> SamplingSettings:
        """Returns how cohorts are drawn.

        There is no default for its numbers: single participation, the obvious one, gives the smallest ε.
        """
        return SamplingSettings(**{name: getattr(self, name) for name in SamplingSettings.__struct_fields__})

    def participation(self) -> tff_mf.Participation:
        """Returns the schema that the guarantee is for: every pattern of rounds that the sampling allows a client."""
        return self.sampling_settings().schema(self.rounds)

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting of the whole run that its mechanism is optimized for."""
        workload = by_name.workload(
            self.workload,
            rounds=self.rounds,
            momentum=self.server_momentum,
            warmup=self.server_warmup,
            cooldown=self.server_cooldown,
        )
        return MechanismSetting(
            rounds=self.rounds,
            participation=self.participation(),
            restart_every=self.restart_every,
            workload=workload,
        )

    def privacy_plan(self, mechanism: tff_mf.Mechanism, insecure_seed: int | None = None) -> tff_mf.Plan:
        """Returns the guarantee of a run with `mechanism`."""
        grid = self.chosen_grid()
        if grid is not None and mechanism.max_rounds is not None and mechanism.kind in ("dense", "structured"):
            check_noise_rows(mechanism.kind, bands=mechanism.max_rounds, dimension=self.dimension)
        return tff_mf.plan(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.participation(),
            delta=self.delta,
            clients_per_round=self.clients_per_round,
            cohort=self.cohort,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            insecure_seed=insecure_seed,
            restart_every=self.restart_every,
            grid=grid,
            dimension=None if grid is None else self.dimension,
            clip_norm=self.clip_norm,
            search=self.chosen_search(),
        )

    def chosen_search(self) -> tff_mf.Search | None:
        """Returns the search that the run is one of, if any."""
        return None if self.search is None else tff_mf.Search(mean=self.search, shape=_SHAPES[self.search_runs])

    def chosen_rate(self, privacy: tff_mf.Plan) -> float:
        """Returns the server's rate; for "proposed", the rate that follows from the noise of `privacy`."""
        if not isinstance(self.server_learning_rate, str):
            return self.server_learning_rate
        return proposed_rate(privacy)

    def resolved(self, plan: Any, server_learning_rate: float) -> "RunSettings":
        """Returns the settings with numbers in place of ε and of words: those that train, and that a resumed run has.

        Args:
            plan: The plan of the run, or the claim in its `run.json`.
            server_learning_rate: The rate that "proposed" came to.
        """
        for name in _AS_IN_PLAN:
            if getattr(self, name) != getattr(plan, name):
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} of the settings differs from the plan, which has "
                    f"{getattr(plan, name)!r}: make the plan of these settings, with RunSettings.privacy_plan."
                )
        numbers: dict[str, Any] = {"epsilon": None, "server_learning_rate": server_learning_rate}
        numbers["grid"] = NONE if plan.grid_bits is None else plan.grid_bits
        numbers |= {name: getattr(plan, name) for name in ("noise_multiplier", "clients_per_round", "cohort")}
        return msgspec.structs.replace(self, **numbers)


# η of the distribution of a number of runs.
_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
# The words that a field can be.
_WORDS = {
    "algorithm": ("fed-avg", "fed-sgd"),
    "model": ("lstm", "conv"),
    "server_optimizer": ("sgdm", "dp-ftrl"),
    "validation_split": ("heldout", "test"),
    "search_runs": tuple(_SHAPES),
}
_CONSTANT = "which weights all updates since the last restart by the present rate, and needs a constant one"
_ONE_GRADIENT = "with which a client sends one gradient and takes no steps of its own"
# Words of a field, another field, its one value that goes with them, and why no other does.
_GOES_WITH: Sequence[tuple[str, Sequence[Any], str, Any, str]] = (
    ("server_optimizer", ("dp-ftrl",), "server_warmup", 0, _CONSTANT),
    ("server_optimizer", ("dp-ftrl",), "server_cooldown", 0, _CONSTANT),
    ("algorithm", ("fed-sgd",), "client_epochs", 1, _ONE_GRADIENT),
    ("algorithm", ("fed-sgd",), "client_learning_rate", 1.0, _ONE_GRADIENT),
    ("secret_cohorts", (True,), "restart_every", None, "with which no theorem here covers it"),
    ("secret_cohorts", (True,), "search", None, "with which no theorem here covers it"),
    ("search", (None,), "search_runs", "logarithmic", "and nothing is drawn"),
    (
        *("secret_cohorts", (True,), "epsilon", None),
        "with which σ depends on the number of clients: `tff-mf account --epsilon` finds a noise_multiplier with "
        "--sampling and --population",
    ),
)


def grid_of(grid: int | str, *, dimension: int, cohort: int) -> tff_mf.Grid | None:
    """Returns the grid that a setting stands for; `None` for "none", floating point.

    It has the room of `tff_mf.Grid.with_room`.

    Example:
        >>> grid_of("auto", dimension=4_050_748, cohort=6500)
        Grid(bits=16, max_clients=13000)
    """
    if grid == NONE:
        return None
    try:
        clients = tff_mf.Grid.with_room(dimension=1, cohort=cohort).max_clients
    except InputValueError as error:
        raise InputValueError(
            f"clients_per_round, or cohort={cohort}, is too large for exact sums on a grid: take fewer clients, or "
            f"grid={NONE!r}."
        ) from error
    if grid == AUTO:
        return tff_mf.Grid.with_room(dimension=dimension, cohort=cohort)
    if isinstance(grid, str):
        raise InputValueError(f"grid={grid!r} must be a number of bits, {AUTO!r} or {NONE!r}.")
    if not FEWEST_BITS <= grid <= MOST_BITS:
        raise InputValueError(f"grid={grid} must be at least {FEWEST_BITS} and at most {MOST_BITS} bits, or a word.")
    return tff_mf.Grid(bits=grid, max_clients=clients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Values of some fields, each with its source.

    Attributes:
        values: Values by field.
        sources: The preset, file or flag that each is from, by field.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> "Layer":
        """Returns a layer whose values all have one source."""
        return cls(values=dict(values), sources=dict.fromkeys(values, source))

    def settings(self, kind: type[Any] | None = None, where: str = "") -> Any:
        """Returns the settings of a kind, of a run if not given, with defaults for the fields that are left out."""
        return typed.convert(self.values, kind or RunSettings, where)

    def shown(self, kind: type[Record]) -> dict[str, dict[str, Any]]:
        """Returns value and source of every field, in the order of the settings, defaults included."""
        return {
            field.name: {
                "value": self.values.get(field.name, None if field.required else field.default),
                "source": self.sources.get(field.name, "missing" if field.required else "default"),
            }
            for field in msgspec.structs.fields(kind)
        }

    def placed(self, fields: Sequence[str] = FILES) -> "Layer":
        """Returns a layer whose files have absolute paths, so that it means the same in every folder."""
        values = dict(self.values)
        for name in fields:
            value = values.get(name)
            if not isinstance(value, str) or value in (*by_name.names(), *by_name.production(), *EMBEDDED):
                continue
            prefix = SQLITE if value.startswith(SQLITE) else ""
            path = os.path.abspath(value.removeprefix(prefix))
            # What is no file is refused later, as it was typed.
            if os.path.exists(path):
                values[name] = prefix + path
        return dataclasses.replace(self, values=values)

    def resumed(self, folder: pathlib.Path, kind: type[Record]) -> "Layer":
        """Returns all settings that the run in `folder` began with, if these values are among them."""
        path = folder / SETTINGS_TOML
        if not path.is_file():
            # They are written first.
            if (folder / RUN_JSON).is_file() or (folder / PLAN).is_file():
                raise InputValueError(
                    f"out={str(folder)!r} lacks {SETTINGS_TOML}, the settings of its run: restore it, or name the "
                    "folder of a run of this command."
                )
            return self
        try:
            _, begun = _read(path, kind)
        except InputValueError as error:
            raise InputValueError(f"out={str(folder)!r} holds no run of this command: {error}") from error
        check_same(self.values, {name: begun.values.get(name) for name in self.values}, run=str(folder))
        return begun


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Returns the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputValueError(f"{path}: cannot be read ({error.strerror}): name an existing TOML file.") from error
    except ValueError as error:
        raise InputValueError(f"{path}: is not TOML ({error}).") from error
    except RecursionError:
        raise InputValueError(f"{path}: nests too deeply.") from None


def laid(layers: Sequence[Layer]) -> Layer:
    """Returns the layers as one; later layers override earlier ones.

    A layer that names a mechanism removes the options of the earlier one, and a layer that names a sampling the
    parameters of the earlier one that it does not take. A layer with ε removes an earlier noise multiplier, and the
    other way round.

    Example:
        >>> laid([Layer.of({"rounds": 8, "seed": 1}, "file"), Layer.of({"seed": 2}, "flag")]).sources
        {'rounds': 'file', 'seed': 'flag'}
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for name in layer.values:
            for replaced in (*_REPLACES.get(name, ()), *(_left_out(values, layer) if name == "sampling" else ())):
                values.pop(replaced, None)
                sources.pop(replaced, None)
        values.update(layer.values)
        sources.update(layer.sources)
    return Layer(values=values, sources=sources)


def _left_out(values: Mapping[str, Any], layer: Layer) -> list[str]:
    """Returns the parameters of the sampling so far that the sampling of a layer does not take."""
    before, after = values.get("sampling", DEFAULT), layer.values["sampling"]
    # A word that does not exist is refused later, with its source.
    taken = parameters_of(after) if after in SAMPLINGS else PARAMETERS
    return [name for name in parameters_of(before) if name not in taken] if before in SAMPLINGS else []


class Row(Record):
    """A row of a paper's table: settings that belong together, and the results published for them.

    Attributes:
        when: Fields and values that the row is for.
        run: Fields that then have other values.
        published: Results of the paper for the row.
        source: Where in the paper the row is.
    """

    when: dict[str, Any]
    source: str
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    published: dict[str, Any] = msgspec.field(default_factory=dict)


class Preset(Record):
    """Settings of an experiment, as its file has them; `extends` names another, over which they are laid.

    Attributes:
        title: One line about the experiment.
        paper: The paper it is from.
        notes: Assumptions, and deviations from the paper.
        run: Values by field.
        sources: Where each of them is from.
        row: Lines of the paper's tables.
        name: Name of the preset, by its file.
    """

    title: str
    paper: str = ""
    notes: str = ""
    extends: str | None = None
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    row: Sequence[Row] = ()
    name: str = ""

    @property
    def layer(self) -> "Layer":
        """Values and their sources."""
        return Layer(values=self.run, sources=self.sources)

    def over(self, upper: "Layer") -> "Layer":
        """Returns the preset overridden by `upper`; a row that fits the result overrides the preset and not `upper`."""
        result = laid([self.layer, upper])
        row = self.row_of(result.values)
        return result if row is None else laid([self.layer, Layer.of(row.run, row.source), upper])

    def row_of(self, values: Mapping[str, Any]) -> Row | None:
        """Returns the first row whose conditions hold for `values`, or None.

        A row is for the preset's own mechanism unless it names another: settings chosen for one do not suit the next.
        """
        own = {"mechanism": self.run["mechanism"]}
        return next((row for row in self.row if {**own, **row.when}.items() <= values.items()), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedFiles:
    """A folder of TOML files, each with a name that users type.

    Attributes:
        path: The folder.
        field: What a name is of.
    """

    path: pathlib.Path
    field: str

    def names(self) -> list[str]:
        """Returns the names, in order."""
        return sorted(path.stem for path in self.path.glob("*.toml"))

    def file(self, name: str) -> pathlib.Path:
        """Returns the file with a name."""
        if name not in self.names():
            meant = validation.did_you_mean(name, self.names(), always=True)
            raise InputValueError(f"{self.field}={name!r} is none of {', '.join(self.names())}{meant}")
        return self.path / f"{name}.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetFolder(NamedFiles):
    """A folder of presets, all for one class of settings, `kind`."""

    kind: type[Record]
    field: str = "preset"

    def load(self, name: str) -> Preset:
        """Returns the preset called `name`."""
        preset = typed.convert(read_toml(self.file(name)), Preset, f"preset {name}")
        preset = msgspec.structs.replace(preset, name=name, notes=" ".join(preset.notes.split()))
        if preset.extends is None:
            return preset
        base = self.load(preset.extends)
        whole = laid([base.layer, preset.layer])
        texts = {"paper": preset.paper or base.paper, "notes": preset.notes or base.notes}
        return msgspec.structs.replace(preset, run=whole.values, sources=whole.sources, **texts)


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "presets", kind=RunSettings)


class _SettingsFile(Record):
    """The settings of a run, and the name of the preset that they are laid over."""

    run: dict[str, Any] = msgspec.field(default_factory=dict)
    preset: str | None = None


def _read(path: pathlib.Path, kind: type[Record]) -> tuple[str | None, Layer]:
    """Returns the preset that a TOML file names, and its settings."""
    content = typed.convert(read_toml(path), _SettingsFile, str(path))
    return content.preset, Layer.of(typed.some(content.run, kind, f"{path} [run]"), str(path))


def resolve(
    preset: str | None,
    config: str | os.PathLike[str] | None,
    flags: Mapping[str, Any],
    *,
    folder: PresetFolder = PRESETS,
) -> tuple[Preset | None, Layer]:
    """Returns the preset and all values: flags go before the file, and the file before the preset.

    Args:
        preset: Name of a preset; it comes before the one that the file names.
        config: A TOML file with a `[run]` table and, if need be, the name of a `preset`.
        flags: Values of flags; None where a flag was not given.
        folder: The presets, all of the kind of settings that is resolved.
    """
    upper = Layer.of({name: value for name, value in flags.items() if value is not None}, FLAG)
    named = None
    if config is not None:
        named, lower = _read(pathlib.Path(config), folder.kind)
        upper = laid([lower, upper])
    if preset is None and named is None:
        return None, upper
    chosen = folder.load(preset or str(named))
    return chosen, chosen.over(upper)


def as_toml(values: Mapping[str, Any]) -> str:
    """Returns a `[run]` table with `values`.

    Example:
        >>> print(as_toml({"rounds": 8, "dataset": "pydoc"}), end="")
        [run]
        rounds = 8
        dataset = "pydoc"
    """
    # Of texts, numbers and truth values, what JSON writes is TOML.
    return "[run]\n" + "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
