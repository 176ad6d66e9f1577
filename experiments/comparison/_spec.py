"""The file of a comparison, the runs that its lists stand for, and the cohorts that they are scaled to."""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from tff_mf.base.errors import InputValueError

from ..output import typed
from ..output.typed import Number, Record
from ..runs import layers
from ..runs.initial_model import given
from ..runs.layers import Layer, Preset
from ..runs.settings import FIELDS, RunSettings
from ..training.datasets import named_data

# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
_Run = TypeVar("_Run")
_Text = Annotated[str, Meta(min_length=1)]


class _Own(Record, Generic[_Run]):
    """What a grid says beside the values of settings."""

    preset: str | None = None
    label: _Text | None = None
    source: _Text | None = None
    optimize: _Run | None = None
    published: dict[str, Number] | None = None


class Specification(Record, Generic[_Run]):
    """The file of a comparison: settings that all runs share, and combinations of those that differ.

    Attributes:
        title: Name of the comparison; runs of one without have no published results.
        preset: The preset that all grids are laid over.
    """

    title: str | None = None
    paper: str | None = None
    notes: str | None = None
    preset: str | None = None
    run: _Run | None = None
    grid: Annotated[Sequence[dict[str, Any]], Meta(min_length=1)] = ({},)


def read_grids(path: pathlib.Path) -> Specification:
    """Returns the content of a file."""
    return typed.convert(layers.read_toml(path), typed.file_of(Specification, RunSettings), str(path))


def _points(content: Specification, where: str) -> Iterable[tuple["PlannedRun", Preset | None]]:
    """Yields a run without a name for each combination of a grid's values, and the grid's preset, grid after grid."""
    shared = Layer.of(typed.given(content.run), where)
    _load(content.preset, where)
    for grid in content.grid:
        own = {name: value for name, value in grid.items() if name in _Own.__struct_fields__}
        about = typed.convert(own, typed.file_of(_Own, RunSettings), f"{where} [[grid]]")
        varied = {name: value for name, value in grid.items() if name not in own}
        checked = typed.given(typed.convert(varied, typed.partial(RunSettings, listed=True), f"{where} [[grid]]"))
        preset = _load(about.preset or content.preset, where)
        listed = [checked[name] if isinstance(checked[name], list) else [checked[name]] for name in varied]
        if (combinations := math.prod(map(len, listed))) > MOST_RUNS:
            raise InputValueError(
                f"{where} [[grid]] has {combinations} combinations; a comparison can have at most {MOST_RUNS}."
            )
        for values in itertools.product(*listed):
            upper = layers.laid([shared, Layer.of(dict(zip(varied, values, strict=True)), where)])
            layer = preset.over(upper) if preset else upper
            row = preset.row(layer.values) if preset else None
            of_preset = row.published if row else {}
            run = PlannedRun(
                name="",
                label=about.label or "",
                layer=layer,
                optimize=typed.given(about.optimize),
                published=of_preset if about.published is None else about.published,
            )
            yield run, preset


def _load(name: str | None, where: str) -> Preset | None:
    with layers.sourced({"preset": where}):
        return None if name is None else layers.PRESETS.load(name)


# Settings that are a column of the table or an axis of the plots; others that differ become part of the label.
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        name: Name of its folder: readable, and different for different settings.
        label: The mechanism with its options, the same for all seeds, rates and ε.
        optimize: Settings that differ while its mechanism is optimized.
        published: Results of the paper for it, by name.
    """

    name: str
    label: str
    layer: Layer
    optimize: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> RunSettings:
        """Its settings, with defaults for those that are not given."""
        return layers.settings(self.layer)

    @property
    def optimized_for(self) -> RunSettings:
        return layers.settings(layers.laid([self.layer, Layer.of(self.optimize, "optimize")]))

    @property
    def privacy(self) -> tuple[str, float]:
        """Which of ε and σ is fixed, and its value."""
        settings = self.settings
        if settings.epsilon is not None:
            return "epsilon", settings.epsilon
        return "noise_multiplier", settings.noise_multiplier or 0.0


def about(path: pathlib.Path) -> dict[str, str]:
    """Returns what a specification says about itself: `title`, `paper` and `notes`, as far as it has them."""
    content = read_grids(path)
    texts = {"title": content.title, "paper": content.paper, "notes": content.notes}
    return {key: " ".join(text.split()) for key, text in texts.items() if text}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """What a comparison will do.

    Attributes:
        runs: Number of runs.
        rounds: Rounds of all runs together.
        client_updates: Updates of clients in all rounds of all runs.
    """

    runs: int
    rounds: int
    client_updates: int


def size(path: pathlib.Path, *, dataset: str | None = None) -> Size:
    """Returns what the runs of a specification will do, by their settings, which are checked."""
    settings = [run.settings for run in read(path, dataset=dataset)]
    return Size(
        runs=len(settings),
        rounds=sum(run.rounds for run in settings),
        client_updates=sum(run.rounds * run.clients_per_round for run in settings),
    )


def read(
    path: pathlib.Path,
    data_of: Mapping[str, pathlib.Path] | None = None,
    *,
    dataset: str | None = None,
) -> list[PlannedRun]:
    """Returns the runs of a specification, with checked settings: all combinations of what its grids list.

    Args:
        path: The TOML file.
        data_of: Files of the data sets, whose names become part of the run's name: other data make another run.
        dataset: Data set of all runs, in place of the file's.
    """
    content = read_grids(path)
    elsewhere = Layer.of({"dataset": dataset} if dataset is not None else {}, layers.FLAG)
    found = []
    for run, preset in _points(content, str(path)):
        layer = layers.laid([run.layer, elsewhere])
        with layers.sourced(layers.origins(preset, layer, path)):
            _check(layers.settings(layer, str(path)), path)
            published = {} if content.title is None else run.published
            found.append(dataclasses.replace(run, layer=layer, published=published))
            found[-1].optimized_for.check()
    return _named(found, data_of or {})


def _check(settings: RunSettings, path: pathlib.Path) -> None:
    if settings.epsilon is None and settings.noise_multiplier is None:
        raise InputValueError(f"{path}: epsilon and noise_multiplier are both missing: give one of them.")
    settings.check()
    named_data.check_dataset(settings.dataset)
    if settings.initial_model is not None:
        # Refuses a file that cannot be read, and names the key and the file that it is from.
        given(settings.initial_model, dataset=settings.dataset)


def shared_setting(planned: Iterable[PlannedRun]) -> str:
    """Returns n, b and k of the runs as the titles of pictures show them, with ranges where runs differ."""
    all_settings = [run.settings for run in planned]
    parts = []
    schemas = [run.participation() for run in all_settings]
    for symbol, found in (
        ("n", {run.rounds for run in all_settings}),
        ("b", {schema.min_sep for schema in schemas if schema.max_participations > 1}),
        ("k", {schema.max_participations for schema in schemas}),
    ):
        if found:
            least, most = min(found), max(found)
            parts.append(f"{symbol} = " + (f"{least:,}" if least == most else f"{least:,} to {most:,}"))
    return ", ".join(parts)


def shared_min_sep(planned: Iterable[PlannedRun]) -> int | None:
    """Returns b if all runs have the same, otherwise None."""
    found = {run.settings.participation().min_sep for run in planned}
    return found.pop() if len(found) == 1 else None


def _named(found: Sequence[PlannedRun], data_of: Mapping[str, pathlib.Path]) -> list[PlannedRun]:
    all_settings = [msgspec.structs.asdict(run.settings) for run in found]
    differing = [name for name in FIELDS if name not in _AXES and len({values[name] for values in all_settings}) > 1]
    runs: dict[str, PlannedRun] = {}
    for run, values in zip(found, all_settings, strict=True):
        options = [f"{name.replace('_', ' ')} {values[name]}" for name in differing if values[name] is not None]
        options += [f"optimized for {name.replace('_', ' ')} {value}" for name, value in run.optimize.items()]
        label = run.label or ", ".join([pathlib.Path(values["mechanism"]).stem, *options])
        name = _name(label, run.layer, run.optimize, data_of)
        runs[name] = dataclasses.replace(run, name=name, label=label)
    told_apart: set[Any] = set()
    for run in runs.values():
        key = (run.label, run.privacy, run.settings.seed, run.settings.server_learning_rate)
        if key in told_apart:
            # The table could not: labels that are given may be too few.
            raise InputValueError(
                f"label={run.label!r} stands for two different runs with the same ε or σ, seed and server learning "
                f"rate; give each its own label."
            )
        told_apart.add(key)
    # All runs of one seed come before the next seed, so that partial results can be compared.
    return sorted(runs.values(), key=lambda run: run.settings.seed)


def _name(label: str, layer: Layer, optimize: Mapping[str, Any], data_of: Mapping[str, pathlib.Path]) -> str:
    settings = layers.settings(layer)
    values = msgspec.structs.asdict(settings)
    data = data_of.get(values["dataset"])
    known = {**values, "dataset": data.name if data else values["dataset"]}
    if settings.initial_model is not None:
        known["initial_model"] = given(settings.initial_model, dataset=settings.dataset).sha256
    known_by = json.dumps([known, optimize], sort_keys=True)
    noise = f"eps{values['epsilon']:g}" if values["epsilon"] is not None else f"sigma{values['noise_multiplier']:g}"
    rate = values["server_learning_rate"]
    parts = [label, noise, f"rate{rate:g}" if isinstance(rate, float) else f"rate-{rate}", f"seed{values['seed']}"]
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts))
    return f"{slug}-{hashlib.sha256(known_by.encode()).hexdigest()[:8]}"
