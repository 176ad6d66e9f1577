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
from ._scaling import check_fraction, scaled

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
    """The file of a comparison.

    Attributes:
        title: Name of the comparison; runs of one without have no published results.
        paper: The paper whose table it is.
        notes: What else is to be said of it.
        larger: Name of the next larger comparison of the same table.
        preset: The preset that all grids are laid over.
        run: Settings that all runs share.
        grid: Combinations of the settings that differ.
    """

    title: str | None = None
    paper: str | None = None
    notes: str | None = None
    larger: str | None = None
    preset: str | None = None
    run: _Run | None = None
    grid: Annotated[Sequence[dict[str, Any]], Meta(min_length=1)] = ({},)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A combination of a grid's values, over its preset and the settings that all runs share.

    Attributes:
        layer: The settings of the run.
        preset: The preset of its grid, or of the specification.
        label: Name of its mechanism in the table, or None for one made from the settings.
        optimize: Settings that differ while its mechanism is optimized.
        published: Results of the paper for it.
    """

    layer: Layer
    preset: Preset | None
    label: str | None
    optimize: Mapping[str, Any]
    published: Mapping[str, Any]


def read_grids(path: pathlib.Path) -> Specification:
    """Returns the content of a file."""
    return typed.convert(layers.read_toml(path), typed.file_of(Specification, RunSettings), str(path))


def points_of(content: Specification, where: str) -> Iterable[Point]:
    """Yields the points of a specification, grid after grid.

    Args:
        content: The file.
        where: Its path, for messages.
    """
    shared = Layer.of(typed.given(content.run), where)
    _load(content.preset, where)
    for grid in content.grid:
        own = {name: value for name, value in grid.items() if name in _Own.__struct_fields__}
        about = typed.convert(own, typed.file_of(_Own, RunSettings), f"{where} [[grid]]")
        varied = {name: value for name, value in grid.items() if name not in own}
        checked = typed.given(typed.convert(varied, typed.partial(RunSettings, listed=True), f"{where} [[grid]]"))
        preset = _load(about.preset or content.preset, where)
        for values in _combinations({name: checked[name] for name in varied}, f"{where} [[grid]]"):
            upper = layers.laid([shared, Layer.of(values, where)])
            layer = preset.over(upper) if preset else upper
            row = preset.row(layer.values) if preset else None
            published = row.published if row else {}
            yield Point(
                layer=layer,
                preset=preset,
                label=about.label,
                optimize=typed.given(about.optimize),
                published=published if about.published is None else about.published,
            )


def _load(name: str | None, where: str) -> Preset | None:
    with layers.sourced({"preset": where}):
        return None if name is None else layers.PRESETS.load(name)


def _combinations(grid: Mapping[str, Any], where: str) -> Iterable[dict[str, Any]]:
    values = [value if isinstance(value, list) else [value] for value in grid.values()]
    combinations = math.prod(map(len, values))
    if combinations > MOST_RUNS:
        raise InputValueError(f"{where} has {combinations} combinations; a comparison can have at most {MOST_RUNS}.")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*values)]


# Settings that are a column of the table or an axis of the plots; others that differ become part of the label.
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        name: Name of its folder: readable, and different for different settings.
        label: The mechanism with its options, the same for all seeds, rates and ε.
        layer: Its settings.
        optimize: Settings that differ while its mechanism is optimized.
        published: Results of the paper for it, by name.
        full_size: Its settings before `fraction` made them smaller.
    """

    name: str
    label: str
    layer: Layer
    optimize: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)
    full_size: Layer | None = None

    @property
    def settings(self) -> RunSettings:
        """Its settings, with defaults for those that are not given."""
        return layers.settings(self.layer)

    @property
    def optimized_for(self) -> RunSettings:
        """The settings that its mechanism is optimized for."""
        return _optimized_for(self.layer, self.optimize)

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


def read(
    path: pathlib.Path,
    data_of: Mapping[str, pathlib.Path] | None = None,
    *,
    dataset: str | None = None,
    fraction: float | None = None,
) -> list[PlannedRun]:
    """Returns the runs of a specification, with checked settings.

    Args:
        path: A TOML file with `[run]`, any number of `[[grid]]`, and perhaps `preset`. A list in a grid stands for each
            of its values, and the runs are all combinations.
        data_of: Files of the data sets, whose names become part of the run's name: other data make another run.
        dataset: Data set of all runs, in place of the file's.
        fraction: Part of the size at which the runs are done, see `docs/experiments.md`; None is full size.
    """
    if fraction is not None:
        check_fraction(fraction)
    content = read_grids(path)
    elsewhere = Layer.of({"dataset": dataset} if dataset is not None else {}, layers.FLAG)
    points = list(points_of(content, str(path)))
    full, found = [], []
    for point in points:
        full.append(layers.laid([point.layer, elsewhere]))
        with layers.sourced(layers.origins(point.preset, full[-1], path)):
            _check(layers.settings(full[-1], str(path)), path)
            found.append(full[-1] if fraction is None else scaled(full[-1], fraction))
            _check(layers.settings(found[-1]), path)
            _optimized_for(found[-1], point.optimize).check()
    return _named(points, found, full, data_of or {}, published=content.title is not None)


def _check(settings: RunSettings, path: pathlib.Path) -> None:
    if settings.epsilon is None and settings.noise_multiplier is None:
        raise InputValueError(f"{path}: epsilon and noise_multiplier are both missing: give one of them.")
    settings.check()
    named_data.check_dataset(settings.dataset)
    if settings.initial_model is not None:
        # Refuses a file that cannot be read, and names the key and the file that it is from.
        given(settings.initial_model, dataset=settings.dataset)


def _optimized_for(layer: Layer, optimize: Mapping[str, Any]) -> RunSettings:
    return layers.settings(layers.laid([layer, Layer.of(optimize, "optimize")]))


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


def _named(
    points: Sequence[Point],
    found: Sequence[Layer],
    full: Sequence[Layer],
    data_of: Mapping[str, pathlib.Path],
    *,
    published: bool,
) -> list[PlannedRun]:
    all_settings = [msgspec.structs.asdict(layers.settings(layer)) for layer in found]
    differing = [name for name in FIELDS if name not in _AXES and len({values[name] for values in all_settings}) > 1]
    runs: dict[str, PlannedRun] = {}
    for point, layer, before, values in zip(points, found, full, all_settings, strict=True):
        options = [f"{name.replace('_', ' ')} {values[name]}" for name in differing if values[name] is not None]
        options += [f"optimized for {name.replace('_', ' ')} {value}" for name, value in point.optimize.items()]
        label = point.label or ", ".join([pathlib.Path(values["mechanism"]).stem, *options])
        run = PlannedRun(
            name=_name(label, layer, point.optimize, data_of),
            label=label,
            layer=layer,
            optimize=point.optimize,
            published=point.published if published else {},
            full_size=before if layer is not before else None,
        )
        runs[run.name] = run
    _check_labels(runs.values())
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


def _check_labels(runs: Iterable[PlannedRun]) -> None:
    """Raises if the table could not tell two runs apart: labels that are given may be too few."""
    seen: dict[Any, str] = {}
    for run in runs:
        key = (run.label, run.privacy, run.settings.seed, run.settings.server_learning_rate)
        if key in seen:
            raise InputValueError(
                f"label={run.label!r} stands for two different runs with the same ε or σ, seed and server learning "
                f"rate; give each its own label."
            )
        seen[key] = run.name
