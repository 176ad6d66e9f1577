"""A comparison as a file: settings that all runs share, and grids of those that differ."""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.errors import InputTypeError, InputValueError

from ..configuration import layers, presets, toml_file
from ..configuration.layers import Layer
from ..configuration.run import FIELDS, RunConfiguration, checked_value
from ..configuration.settings import MEASURING
from ..datasets import named_data
from ..output import files

_KEYS = ("preset", "run", "grid")
# A small file can ask for more runs than fit in memory.
_MOST_RUNS = 10_000
# Settings that are a column of the table or an axis of the plots; others that differ become part of the label.
# Settings that came later, with their defaults: they are left out of a run's name, so that finished runs keep theirs.
_LATER = {
    field.name: field.default
    for field in dataclasses.fields(RunConfiguration)
    if field.name
    in (
        *("restart_every", "adaptive_clipping", "adaptive_count_stddev", "adaptive_learning_rate", "server_optimizer"),
        *("participation_schema", "unit_norms", "objective", "initial_model"),
        *MEASURING,
    )
}
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        name: Name of its folder: readable, and different for different settings.
        label: The mechanism with its options, the same for all seeds, rates and ε.
        layer: Its settings.
    """

    name: str
    label: str
    layer: Layer

    @property
    def configuration(self) -> RunConfiguration:
        """Its settings, with defaults for those that are not given."""
        return layers.configuration(self.layer)

    @property
    def privacy(self) -> tuple[str, float]:
        """Which of ε and σ is fixed, and its value."""
        configuration = self.configuration
        if configuration.epsilon is not None:
            return "epsilon", configuration.epsilon
        return "noise_multiplier", configuration.noise_multiplier or 0.0


def read(path: pathlib.Path, data_of: Mapping[str, pathlib.Path] | None = None) -> list[PlannedRun]:
    """Returns the runs of a specification, with checked settings.

    Args:
        path: A TOML file with `[run]`, any number of `[[grid]]`, and perhaps `preset`. A list in a grid stands for each
            of its values, and the runs are all combinations.
        data_of: Files of the data sets, whose names become part of the run's name: other data make another run.

    Raises:
        InputError: If the file is wrong; the message names the key, the file and the nearest known key.
    """
    content = layers.read_toml(path)
    layers.check_keys(content, _KEYS, str(path))
    shared = Layer.of(layers.checked_run(content.get("run", {}), f"{path} [run]"), str(path))
    name = toml_file.preset_name(content, str(path))
    with layers.sourced({"preset": str(path)}):
        preset = presets.load(name) if name is not None else None
    points = [point for grid in _grids(content, path) for point in _points(grid, f"{path} [[grid]]")]
    found = []
    for point in points:
        upper = layers.laid([shared, Layer.of(point, str(path))])
        found.append(preset.over(upper) if preset else upper)
    for layer in found:
        with layers.sourced(toml_file.origins(preset, layer, path)):
            _check(layers.configuration(layer, str(path)), path)
    return _named(found, data_of or {})


def _check(configuration: RunConfiguration, path: pathlib.Path) -> None:
    if configuration.epsilon is None and configuration.noise_multiplier is None:
        raise InputValueError(f"{path}: epsilon and noise_multiplier are both missing: give one of them.")
    configuration.check()
    named_data.check_dataset(configuration.dataset)


def shared_setting(planned: Iterable[PlannedRun]) -> str:
    """Returns n, b and k of the runs as the titles of pictures show them, with ranges where runs differ."""
    configurations = [run.configuration for run in planned]
    parts = []
    for symbol, name in (("n", "rounds"), ("b", "min_sep"), ("k", "max_participations")):
        values = sorted({value for run in configurations if (value := getattr(run, name)) is not None})
        if values:
            parts.append(
                f"{symbol} = " + (f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}")
            )
    return ", ".join(parts)


def shared_min_sep(planned: Iterable[PlannedRun]) -> int | None:
    """Returns b if all runs have the same, otherwise None."""
    found = {run.configuration.min_sep for run in planned}
    return found.pop() if len(found) == 1 else None


def _grids(content: Mapping[str, Any], path: pathlib.Path) -> Sequence[Any]:
    grids = content.get("grid", [{}])
    if not isinstance(grids, list) or not grids:
        raise InputTypeError(f"{path}: grid={grids!r} must be tables, each written [[grid]].")
    return grids


def _points(grid: Any, where: str) -> Iterable[dict[str, Any]]:
    layers.check_keys(layers.checked_table(grid, where), FIELDS, where)
    values = []
    for name, given in grid.items():
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise InputValueError(f"{where}: {name}=[] has no value; remove it or give one.")
        values.append([checked_value(name, value, where) for value in listed])
    combinations = math.prod(map(len, values))
    if combinations > _MOST_RUNS:
        raise InputValueError(f"{where} has {combinations} combinations; a comparison can have at most {_MOST_RUNS}.")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*values)]


def _named(found: Sequence[Layer], data_of: Mapping[str, pathlib.Path]) -> list[PlannedRun]:
    configurations = [dataclasses.asdict(layers.configuration(layer)) for layer in found]
    differing = [name for name in FIELDS if name not in _AXES and len({values[name] for values in configurations}) > 1]
    runs: dict[str, PlannedRun] = {}
    for layer, values in zip(found, configurations, strict=True):
        options = [f"{name.replace('_', ' ')} {values[name]}" for name in differing if values[name] is not None]
        label = ", ".join([pathlib.Path(values["mechanism"]).stem, *options])
        data = data_of.get(values["dataset"])
        known = {name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]}
        if known.get("participation_schema") is None and isinstance(
            layers.configuration(layer).participation(), tff_mf.FixedEpoch
        ):
            # An earlier release accounted for the same settings as MinSep, with more noise.
            known["participation_schema"] = "fixed_epoch"
        if values["initial_model"] is not None:
            known["initial_model"] = files.file_hash(pathlib.Path(values["initial_model"]))
        known_by = json.dumps([known, data.name if data else values["dataset"]], sort_keys=True)
        noise = f"eps{values['epsilon']:g}" if values["epsilon"] is not None else f"sigma{values['noise_multiplier']:g}"
        rate = values["server_learning_rate"]
        parts = [label, noise, f"rate{rate:g}" if isinstance(rate, float) else f"rate-{rate}", f"seed{values['seed']}"]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts))
        name = f"{slug}-{hashlib.sha256(known_by.encode()).hexdigest()[:8]}"
        runs[name] = PlannedRun(name=name, label=label, layer=layer)
    # All runs of one seed come before the next seed, so that partial results can be compared.
    return sorted(runs.values(), key=lambda run: run.configuration.seed)
