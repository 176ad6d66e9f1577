"""Many training runs from one specification: each is resumed until it is done; then a table and two pictures.

`read` gives the runs that a file's lists stand for, `run_comparison` does those that are missing, and `blocks` says how
they ended.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import operator
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import scipy.stats
from msgspec import UNSET, Meta, UnsetType

import tff_mf
from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics.digits import percent

from . import reports
from .output import files, progress, typed
from .output.console import Block, Facts, Table, markdown
from .output.typed import Number, Record
from .runs import derived, folders, layers, statements
from .runs.initial_model import given
from .runs.layers import Layer, Preset
from .runs.metrics import read_metrics
from .runs.names import CHECKPOINTS, COHORTS, METRICS, REPORT, SUMMARY
from .runs.run_record import read_record
from .runs.settings import FIELDS, RunSettings
from .runs.statements import REFUSED, Claim
from .runs.summary import Summary
from .training.datasets import named_data

SPECS = pathlib.Path(__file__).parent / "specs"
RESULT, TABLE = "comparison.json", "comparison.md"
# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
_CONFIDENCE = 0.95
# With fewer seeds, intervals are too wide to be drawn.
_FEWEST_SEEDS = 3
_POLL_SECONDS, _SECONDS_BETWEEN_LINES, _PATIENCE_SECONDS = 0.2, 10.0, 30.0
# Settings that are a column of the table or an axis of the pictures; others that differ become part of the label.
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")
# Settings that a mechanism is optimized for, those of the server's optimizer only with a workload that has it.
_OPTIMIZED = ("mechanism", "buffers", "bands", "workload", "rounds", "restart_every", "unit_norms", "objective")
_OPTIMIZED_WITH_WORKLOAD = ("server_momentum", "server_warmup", "server_cooldown")
_PAPERS = "test_accuracy"
_BASELINE = "the most frequent word"
_CHOSEN = (
    "its best by smoothed validation accuracy (the mean of the evaluations in the last 400 rounds, or in the last "
    "fifth of the rounds if that is less)"
)

_Settings = TypeVar("_Settings")


def spec_names() -> list[str]:
    """Returns the names of the specifications of the papers' tables, and of the demo, in order.

    Example:
        >>> "banded-table-4" in spec_names()
        True
    """
    return sorted(path.stem for path in SPECS.glob("*.toml"))


def spec_path(name: str) -> pathlib.Path:
    """Returns the file of the specification called `name`.

    Example:
        >>> spec_path("banded-table-4").name
        'banded-table-4.toml'
    """
    if name not in spec_names():
        meant = validation.did_you_mean(name, spec_names(), always=True)
        raise InputValueError(f"spec={name!r} is none of {', '.join(spec_names())}{meant}")
    return SPECS / f"{name}.toml"


class _Own(Record, Generic[_Settings]):
    """What a grid says beside the values of settings."""

    preset: str | None = None
    label: Annotated[str, Meta(min_length=1)] | None = None
    source: Annotated[str, Meta(min_length=1)] | None = None
    optimize: _Settings | None = None
    published: dict[str, Number] | None = None


class Specification(Record, Generic[_Settings]):
    """The file of a comparison: settings that all runs share, and combinations of those that differ.

    Attributes:
        title: Name of the comparison; runs of one without have no published results.
        paper: The paper and its table.
        notes: What a reader of the results should know.
        preset: The preset that all grids are laid over.
    """

    title: str | None = None
    paper: str | None = None
    notes: str | None = None
    preset: str | None = None
    run: _Settings | None = None
    grid: Annotated[Sequence[dict[str, Any]], Meta(min_length=1)] = ({},)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        name: Name of its folder: readable, and different for different settings.
        label: The mechanism with its options, the same for all seeds, rates and ε.
        layer: Its settings, each with where it is from.
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
        """The settings that its mechanism is optimized for."""
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
    content = _content(path)
    texts = {"title": content.title, "paper": content.paper, "notes": content.notes}
    return {key: " ".join(text.split()) for key, text in texts.items() if text}


def read(
    path: pathlib.Path, data_of: Mapping[str, pathlib.Path] | None = None, *, dataset: str | None = None
) -> list[PlannedRun]:
    """Returns the runs of a specification, with checked settings: all combinations of what its grids list.

    Args:
        path: The TOML file.
        data_of: Files of the data sets, whose names become part of the run's name: other data make another run.
        dataset: Data set of all runs, in place of the file's.
    """
    content = _content(path)
    elsewhere = Layer.of({"dataset": dataset} if dataset is not None else {}, layers.FLAG)
    runs = []
    for run, preset in _combinations(content, str(path)):
        layer = layers.laid([run.layer, elsewhere])
        with layers.sourced(layers.origins(preset, layer, path)):
            _check(layers.settings(layer, str(path)), path)
            runs.append(dataclasses.replace(run, layer=layer, published=run.published if content.title else {}))
            runs[-1].optimized_for.check()
    return _named(runs, data_of or {})


def _content(path: pathlib.Path) -> Specification:
    return typed.convert(layers.read_toml(path), typed.file_of(Specification, RunSettings), str(path))


def _combinations(content: Specification, where: str) -> Iterator[tuple[PlannedRun, Preset | None]]:
    """Yields a run without a name for each combination of a grid's values, and the grid's preset, grid after grid."""
    shared = Layer.of(typed.given(content.run), where)
    _preset(content.preset, where)
    for grid in content.grid:
        own = {name: value for name, value in grid.items() if name in _Own.__struct_fields__}
        beside = typed.convert(own, typed.file_of(_Own, RunSettings), f"{where} [[grid]]")
        varied = {name: value for name, value in grid.items() if name not in own}
        checked = typed.given(typed.convert(varied, typed.partial(RunSettings, listed=True), f"{where} [[grid]]"))
        preset = _preset(beside.preset or content.preset, where)
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
            yield (
                PlannedRun(
                    name="",
                    label=beside.label or "",
                    layer=layer,
                    optimize=typed.given(beside.optimize),
                    published=of_preset if beside.published is None else beside.published,
                ),
                preset,
            )


def _preset(name: str | None, where: str) -> Preset | None:
    with layers.sourced({"preset": where}):
        return None if name is None else layers.PRESETS.load(name)


def _check(settings: RunSettings, path: pathlib.Path) -> None:
    if settings.epsilon is None and settings.noise_multiplier is None:
        raise InputValueError(f"{path}: epsilon and noise_multiplier are both missing: give one of them.")
    settings.check()
    named_data.check_dataset(settings.dataset)
    if settings.initial_model is not None:
        # Refuses a file that cannot be read, and names the key and the file that it is from.
        given(settings.initial_model, dataset=settings.dataset)


def _named(runs: Sequence[PlannedRun], data_of: Mapping[str, pathlib.Path]) -> list[PlannedRun]:
    """Returns each run once, with its name and label."""
    all_values = [msgspec.structs.asdict(run.settings) for run in runs]
    differing = [name for name in FIELDS if name not in _AXES and len({values[name] for values in all_values}) > 1]
    named: dict[str, PlannedRun] = {}
    for run, values in zip(runs, all_values, strict=True):
        options = [f"{name.replace('_', ' ')} {values[name]}" for name in differing if values[name] is not None]
        options += [f"optimized for {name.replace('_', ' ')} {value}" for name, value in run.optimize.items()]
        label = run.label or ", ".join([pathlib.Path(values["mechanism"]).stem, *options])
        name = _name(label, run, values, data_of)
        named[name] = dataclasses.replace(run, name=name, label=label)
    told_apart: set[Any] = set()
    for run in named.values():
        key = (run.label, run.privacy, run.settings.seed, run.settings.server_learning_rate)
        if key in told_apart:
            # The table could not: labels that are given may be too few.
            raise InputValueError(
                f"label={run.label!r} stands for two different runs with the same ε or σ, seed and server learning "
                f"rate; give each its own label."
            )
        told_apart.add(key)
    # All runs of one seed come before the next seed, so that partial results can be compared.
    return sorted(named.values(), key=lambda run: run.settings.seed)


def _name(label: str, run: PlannedRun, values: dict[str, Any], data_of: Mapping[str, pathlib.Path]) -> str:
    data = data_of.get(values["dataset"])
    known = {**values, "dataset": data.name if data else values["dataset"]}
    if values["initial_model"] is not None:
        known["initial_model"] = given(values["initial_model"], dataset=values["dataset"]).sha256
    noise = f"eps{values['epsilon']:g}" if values["epsilon"] is not None else f"sigma{values['noise_multiplier']:g}"
    rate = values["server_learning_rate"]
    parts = [label, noise, f"rate{rate:g}" if isinstance(rate, float) else f"rate-{rate}", f"seed{values['seed']}"]
    return f"{_slug('-'.join(parts))}-{_digest([known, run.optimize])}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    child: str,
    jobs: int = 1,
    dataset: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> "ComparisonResult":
    """Does the runs of a specification that are not done, and writes the table and the pictures.

    Each run is a process, with a folder in `out/runs/`. It is done when its `report.json` is there and its keys are
    deleted; a run that was interrupted goes on after its newest checkpoint, and no released round is run again. Each
    mechanism is optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if it does not exist. Several specifications may share it.
        child: Name of the module that each run executes as a process. It takes the process that it ends with, a file to
            lock, and the arguments of `tff-mf`.
        jobs: Number of runs at a time.
        dataset: Data set of all runs, in place of the specification's.
        say: Called with messages of one line about the progress.

    Returns:
        The content of `comparison.json`.
    """
    validation.whole("jobs", jobs)
    datasets = {run.settings.dataset for run in read(spec, dataset=dataset)}
    folders.continued_folder(out)
    data_of = {name: named_data.data_file(name).absolute() for name in sorted(datasets)}
    planned = read(spec, data_of, dataset=dataset)
    for name in ("runs", "configurations", "mechanisms", "logs"):
        (out / name).mkdir(exist_ok=True)
    with files.held(out / ".lock", lambda: say("waiting for another comparison in this folder to end")):
        artifacts = {run.name: _artifact(run, out / "mechanisms", say) for run in planned}

        def command_of(run: PlannedRun) -> list[str]:
            return _command(run, artifacts[run.name], data_of[run.settings.dataset], out, child)

        failed = run_missing(planned, command_of, out, at_once=jobs, say=say)
        finished = [_finished(run, artifacts[run.name], out) for run in planned if is_done(out, run.name)]
        result = result_of(finished, planned=len(planned), failed=failed, about=about(spec))
        if result.levels:
            pictures = draw(result, out, title=_setting(planned))
            result = msgspec.structs.replace(result, pictures=[path.name for path in pictures])
        files.write_atomically(out / TABLE, markdown(blocks(result, name=out.name)))
        files.write_atomically(out / RESULT, json.dumps(result.as_json(), indent=2) + "\n")
        return result


def is_done(out: pathlib.Path, name: str) -> bool:
    """Returns whether a run is done: whether it has its report, and has deleted its keys, which it does last."""
    folder = out / "runs" / name
    secrets = folder / CHECKPOINTS
    keys = (secrets / COHORTS).exists() or checkpoint_files.saved_rounds(secrets)
    return (folder / REPORT).is_file() and not keys


def artifact_name(settings: RunSettings) -> str:
    """Returns the name of the file of the mechanism that is optimized for some settings."""
    fields = _OPTIMIZED + (() if settings.workload == "prefix-sum" else _OPTIMIZED_WITH_WORKLOAD)
    values = [(field, getattr(settings, field)) for field in fields]
    slug = _slug(pathlib.Path(settings.mechanism).stem)
    return f"{slug}-{_digest([*values, repr(settings.participation())])}.safetensors"


def _artifact(run: PlannedRun, folder: pathlib.Path, say: Callable[[str], None]) -> pathlib.Path:
    """Returns the artifact of a run, which is made if it is missing."""
    path = folder / artifact_name(run.optimized_for)
    if not path.is_file():
        say(f"optimizing {run.label}")
        tff_mf.save(run.optimized_for.build_mechanism(), path)
    return path


def _command(run: PlannedRun, artifact: pathlib.Path, data: pathlib.Path, out: pathlib.Path, child: str) -> list[str]:
    """Writes the settings of a run, and returns the command that does it, or goes on with it where it was stopped.

    A run that was begun is never begun anew: its rounds would be released twice, with other noise.
    """
    folder = out / "runs" / run.name
    lock = folder.with_name(f".{run.name}.lock")
    # A run of an earlier comparison, which was killed, may be about to end in this folder.
    with files.held(lock):
        resume = ["--resume"] if folders.has_files(folder) else []
    own = Layer.of({"mechanism": str(artifact.absolute()), "dataset": f"sqlite:{data}"}, "comparison")
    file = out / "configurations" / f"{run.name}.toml"
    files.write_atomically(file, layers.as_toml(layers.laid([run.layer, own]).values))
    # Not -m alone, which would look for the package in the current folder first.
    parts = [sys.executable, "-P", "-m", child, os.getpid(), lock]
    # A spec that names σ asks for no ε.
    flags = ["--without-epsilon"] if run.privacy[0] == "noise_multiplier" else []
    return [*map(str, parts), "train", "--force", "--config", str(file), "--out", str(folder), *resume, *flags]


def run_missing(
    planned: Sequence[PlannedRun],
    command_of: Callable[[PlannedRun], list[str]],
    out: pathlib.Path,
    *,
    at_once: int,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Does the runs that are not done, and returns the last line of each that failed, by its name.

    If this is interrupted, it ends the running ones first. `command_of` is called right before a run starts, and `say`
    with messages of one line about the progress.
    """
    left = [run for run in planned if not is_done(out, run.name)]
    logs = {run.name: out / "logs" / f"{run.name}.txt" for run in left}
    say(f"{len(planned)} runs, {len(planned) - len(left)} done already")
    failed: dict[str, str] = {}
    waiting, running, start = list(left), dict[subprocess.Popen, PlannedRun](), time.monotonic()
    told, told_at = set[tuple[str, str]](), start

    def end(name: str, status: int) -> None:
        ended = len(left) - len(waiting) - len(running)
        minutes = (time.monotonic() - start) / ended * (len(left) - ended) / 60
        # Runs that go on say themselves how long they take.
        remaining = f", {minutes:.0f} min left" if waiting else ""
        if is_done(out, name):
            summary = typed.read(out / "runs" / name / SUMMARY, Summary, "summary")
            outcome = f"test accuracy {100 * summary.accuracy:.2f} %"
        else:
            failed[name] = _last_line(logs[name]) or f"ended with status {status}"
            outcome = f"FAILED: {failed[name]}"
        say(f"{ended} of {len(left)}{remaining}: {name}: {outcome}")
        progress.step()

    with progress.bar("compare", len(left)):
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    run = waiting.pop(0)
                    running[_started(command_of(run), logs[run.name])] = run
                time.sleep(_POLL_SECONDS)
                for process in [process for process in running if _has_ended(process)]:
                    end(running.pop(process).name, _reaped(process))
                if time.monotonic() > told_at + _SECONDS_BETWEEN_LINES:
                    # Each run says how far it is in its log.
                    lines = {run.name: _last_line(logs[run.name]) for run in running.values()}
                    for name, line in lines.items():
                        if line and (name, line) not in told:
                            say(f"{name}: {line}")
                    told.update(lines.items())
                    told_at = time.monotonic()
        finally:
            for process in running:
                process.terminate()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            for process in running:
                while not _has_ended(process) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                _reaped(process)
    return failed


def _started(command: list[str], path: pathlib.Path) -> subprocess.Popen:
    # In its own session: an interrupt reaches this process only, and the TFF worker of a killed run can be ended.
    # Its result is read from its folder; its log has how far it is, and why it failed.
    nothing = subprocess.DEVNULL
    with path.open("wb") as log:
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=log, start_new_session=True)


def _has_ended(process: subprocess.Popen) -> bool:
    # Not `poll`, which would free the process's number, by which its group is ended.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reaped(process: subprocess.Popen) -> int:
    """Ends what is left of a process and of those that it started, and returns its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run: what the table and the pictures show of it.

    Attributes:
        label: The mechanism with its options.
        privacy: Which of ε and σ was fixed, and its value.
        seed: Its seed.
        rate: Learning rate of the server.
        effective_rmse: L_e of figure 11.
        accuracy: On test sentences.
        baseline: What always the most frequent word would reach on them; None in a run that did not measure it.
        validation_accuracy: In the mean of the last evaluations (`runs.metrics.smoothed`).
        history: Round and accuracy of each evaluation on validation sentences.
        test_sentences: Number of test sentences.
        claim: Its guarantee.
        published: Results of the paper for it, by name.
    """

    label: str
    privacy: tuple[str, float]
    seed: int
    rate: float
    effective_rmse: float
    accuracy: float
    baseline: float | None = None
    validation_accuracy: float
    history: Sequence[tuple[int, float]]
    test_sentences: int
    claim: Claim
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _finished(run: PlannedRun, artifact: pathlib.Path, out: pathlib.Path) -> Finished:
    folder = out / "runs" / run.name
    summary = typed.read(folder / SUMMARY, Summary, "summary")
    record = read_record(folder)
    return Finished(
        label=run.label,
        privacy=run.privacy,
        seed=run.settings.seed,
        rate=float(record.training.server_learning_rate),
        effective_rmse=derived.rmse_of_plan(record.plan(tff_mf.load(artifact))),
        accuracy=summary.accuracy,
        baseline=summary.baseline_accuracy,
        validation_accuracy=summary.validation_accuracy_smoothed,
        history=read_metrics(folder / METRICS).accuracies,
        test_sentences=summary.test_sentences,
        claim=reports.read(folder / REPORT).claim,
        published=run.published,
    )


class AtALevel(Record, kw_only=True):
    """An entry that belongs to one level of noise: either of the two is given.

    Attributes:
        epsilon: The ε that was fixed.
        noise_multiplier: The σ that was fixed.
    """

    epsilon: Number | UnsetType = UNSET
    noise_multiplier: Number | UnsetType = UNSET

    @property
    def privacy(self) -> tuple[str, float]:
        """Which of the two was fixed, and its value."""
        if not isinstance(self.epsilon, UnsetType):
            return "epsilon", self.epsilon
        assert not isinstance(self.noise_multiplier, UnsetType)
        return "noise_multiplier", self.noise_multiplier

    @property
    def level(self) -> str:
        """The level of noise in words.

        Example:
            >>> AtALevel(epsilon=2.0).level
            'ε = 2'
        """
        return statements.level(*self.privacy)


class LevelResult(AtALevel, kw_only=True, omit_defaults=True):
    """A mechanism at one level of noise, at the best of its rates.

    Attributes:
        mechanism: The mechanism with its options.
        accuracy: Mean accuracy on test sentences over seeds.
        half_width_95: Half the width of its 95 % interval; `None` of one seed.
        baseline_accuracy: What always the most frequent word would reach.
        seeds: Number of seeds.
        accuracy_by_seed: Accuracy on test sentences by seed.
        accuracy_over_rounds: Rounds and validation accuracies by seed.
        server_learning_rate: The best rate.
        rate_at_edge: Whether it is the smallest or the largest that was tried.
        test_sentences: Numbers of test sentences of its runs.
        validation_accuracy_by_rate: Mean validation accuracy of every rate that was tried.
        effective_rmse: L_e of figure 11.
        claim: The guarantee of its runs.
        published: Results of the paper, by name.
    """

    mechanism: str
    accuracy: Number
    half_width_95: Number | None
    baseline_accuracy: Number | UnsetType = UNSET
    seeds: int
    accuracy_by_seed: dict[str, Number]
    accuracy_over_rounds: dict[str, list[tuple[int, Number]]]
    server_learning_rate: Number
    rate_at_edge: bool
    test_sentences: list[int]
    validation_accuracy_by_rate: dict[str, Number]
    effective_rmse: Number
    claim: Claim
    published: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def learned(self) -> bool:
        """Whether it is better than one guess for all words, as far as that was measured."""
        return self.accuracy > (self.baseline_accuracy or 0.0)

    @property
    def may_do_better(self) -> bool:
        """Whether a better rate may lie beyond those that were tried."""
        return self.rate_at_edge and len(self.validation_accuracy_by_rate) > 1


class Gap(AtALevel, kw_only=True):
    """The difference in accuracy of two mechanisms at one level of noise.

    Attributes:
        better: The mechanism that is ahead.
        worse: The other one.
        gap: Mean difference over the seeds that both have.
        half_width_95: Half the width of its 95 % interval; `None` of one seed.
        seeds: Number of these seeds.
        neighbours: Whether no third mechanism is between them.
    """

    better: str
    worse: str
    gap: Number
    half_width_95: Number | None
    seeds: int
    neighbours: bool


class ComparisonResult(Record, kw_only=True, omit_defaults=True):
    """The content of `comparison.json`.

    Attributes:
        specification: What the specification says of itself.
        runs_planned: Number of runs.
        runs_done: Number of runs that are done.
        runs_failed: The last line of each run that failed, by its name.
        levels: Mechanisms at each level of noise, best first.
        gaps: Differences of any two of them.
        pictures: Names of the pictures.
    """

    specification: dict[str, Any] = msgspec.field(default_factory=dict)
    runs_planned: int
    runs_done: int
    runs_failed: dict[str, str]
    levels: list[LevelResult]
    gaps: list[Gap]
    pictures: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `comparison.json`."""
        return msgspec.to_builtins(self)


def result_of(
    finished: Sequence[Finished], *, planned: int, failed: Mapping[str, str], about: Mapping[str, Any] | None = None
) -> ComparisonResult:
    """Returns the content of `comparison.json`, without pictures.

    Args:
        finished: The runs that are done.
        planned: Number of runs.
        failed: The last line of each run that failed, by its name.
        about: What the specification says of itself.
    """
    best = levels(finished)
    return ComparisonResult(
        specification=dict(about or {}),
        runs_planned=planned,
        runs_done=len(finished),
        runs_failed=dict(failed),
        levels=best,
        gaps=gaps(best),
    )


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its 95 % interval by Student's t; None for a single value.

    Example:
        >>> mean, half = mean_and_half_width([1.0, 2.0, 3.0])
        >>> f"{mean:.1f} {half:.3f}"
        '2.0 2.484'
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)
    return mean, float(quantile * statistics.stdev(values) / math.sqrt(len(values)))


def levels(finished: Sequence[Finished]) -> list[LevelResult]:
    """Returns each mechanism at each level of privacy, its rate chosen by mean validation accuracy, best first.

    Rates are compared over the seeds that all of them have in common; if there are none, over the seeds of each. They
    are compared by smoothed accuracy, as in Choquette-Choo et al. (2023), table 6.
    """
    best = []
    key = operator.attrgetter("privacy", "label")
    for _, group in itertools.groupby(sorted(finished, key=key), key=key):
        by_rate: dict[float, dict[int, Finished]] = {}
        for run in group:
            by_rate.setdefault(run.rate, {})[run.seed] = run
        common = set.intersection(*(set(runs) for runs in by_rate.values()))
        tried = {
            rate: statistics.fmean(
                run.validation_accuracy for seed, run in runs.items() if seed in common or not common
            )
            for rate, runs in by_rate.items()
        }
        rate = max(tried, key=lambda rate: tried[rate])
        best.append(_level([by_rate[rate][seed] for seed in sorted(by_rate[rate])], tried))
    return sorted(best, key=lambda level: (level.privacy, -level.accuracy))


def _level(runs: Sequence[Finished], tried: Mapping[float, float]) -> LevelResult:
    """Returns the result of one mechanism by its runs with the best rate, one per seed."""
    first = runs[0]
    mean, half = mean_and_half_width([run.accuracy for run in runs])
    baselines = [run.baseline for run in runs if run.baseline is not None]
    return LevelResult(
        **{first.privacy[0]: first.privacy[1]},
        mechanism=first.label,
        accuracy=mean,
        half_width_95=half,
        baseline_accuracy=statistics.fmean(baselines) if baselines else UNSET,
        seeds=len(runs),
        accuracy_by_seed={str(run.seed): run.accuracy for run in runs},
        accuracy_over_rounds={str(run.seed): list(run.history) for run in runs},
        server_learning_rate=first.rate,
        rate_at_edge=first.rate in (min(tried), max(tried)),
        test_sentences=sorted({run.test_sentences for run in runs}),
        validation_accuracy_by_rate={f"{rate:.6g}": value for rate, value in sorted(tried.items())},
        effective_rmse=first.effective_rmse,
        # A run that has no guarantee speaks for all.
        claim=next((run.claim for run in runs if run.claim.state == REFUSED), first.claim),
        published=dict(first.published),
    )


def gaps(best: Sequence[LevelResult]) -> list[Gap]:
    """Returns the difference in accuracy of any two mechanisms at one level of privacy, over their common seeds."""
    result = []
    for (above, better), (below, worse) in itertools.combinations(enumerate(best), 2):
        one, other = better.accuracy_by_seed, worse.accuracy_by_seed
        common = sorted(one.keys() & other.keys())
        if better.privacy != worse.privacy or not common:
            continue
        mean, half = mean_and_half_width([one[seed] - other[seed] for seed in common])
        result.append(
            Gap(
                epsilon=better.epsilon,
                noise_multiplier=better.noise_multiplier,
                better=better.mechanism,
                worse=worse.mechanism,
                gap=mean,
                half_width_95=half,
                seeds=len(common),
                neighbours=below == above + 1,
            )
        )
    return result


def blocks(result: ComparisonResult, *, name: str = "", written: Sequence[str] = ()) -> list[Block]:
    """Returns a comparison in words."""
    spec, best = result.specification, result.levels
    # Unknown if no run is done.
    numbers = sorted({number for level in best for number in level.test_sentences})
    measured = " to ".join(f"{number:,}" for number in dict.fromkeys([*numbers[:1], *numbers[-1:]]))
    sentences = f"{measured} sentences of test clients".lstrip()
    chosen = (
        _CHOSEN if any(len(level.validation_accuracy_by_rate) != 1 for level in best) else "the only one tried here"
    )
    done = (
        f"{result.runs_done} of {result.runs_planned} runs are done. Accuracy is over known words, on {sentences}, "
        f"with a 95 % interval over seeds; each mechanism's rate is {chosen}."
    )
    ahead = _ahead(result.gaps)
    said: list[Block] = [f"# Comparison: {spec.get('title', name)}".removesuffix(": "), f"**{ahead}**" if ahead else ""]
    said += [spec.get("paper", ""), spec.get("notes", ""), done]
    if best:
        said += ["## Accuracy, %", *_accuracies(best), "## Rates and errors", *_rates(best)]
        said += ["## Differences", _differences(result.gaps)]
    said += ["## What it rests on", _assumptions(result)]
    if best:
        said += ["## Guarantees, or the reason why there is none", _guarantees(best)]
    return [*said, Facts([("written", ", ".join(written))])] if written else said


def _ahead(differences: Iterable[Gap]) -> str:
    """Returns which mechanism is ahead at each level of noise, and whether its interval says so."""
    first: dict[str, Gap] = {}
    for gap in differences:
        first.setdefault(gap.level, gap)
    said = []
    for level, gap in first.items():
        half = gap.half_width_95
        unsure = ", of one seed" if half is None else "" if half < gap.gap else ", which does not tell them apart"
        said.append(f"{level}: {gap.better} over {gap.worse} by {percent(gap.gap, half)} points{unsure}")
    return "; ".join(said)


def _accuracies(best: Sequence[LevelResult]) -> list[Block]:
    """Returns the accuracy of each mechanism at each level of noise, as the papers' tables have it."""
    columns = list(dict.fromkeys(level.level for level in best))
    cells = {(level.mechanism, level.level): _accuracy(level) for level in best}
    names = dict.fromkeys(level.mechanism for level in best)
    rows = [[name, *(cells.get((name, column), "–") for column in columns)] for name in names]
    baselines = {level.level: level.baseline_accuracy for level in best if level.baseline_accuracy}
    if baselines:
        shown = [percent(baselines[column], None) if column in baselines else "–" for column in columns]
        rows.append([_BASELINE, *shown])
    notes = {
        "In parentheses: in the paper.": any(_PAPERS in level.published for level in best),
        f"* did not learn: not better than always {_BASELINE}.": not all(level.learned for level in best),
    }
    return [Table(["noise for", *columns], rows), " ".join(text for text, holds in notes.items() if holds)]


def _accuracy(level: LevelResult) -> str:
    paper = level.published.get(_PAPERS)
    shown = percent(level.accuracy, level.half_width_95) + ("" if level.learned else "*")
    return shown if paper is None else f"{shown} ({paper:.2f})"


def _rates(best: Sequence[LevelResult]) -> list[Block]:
    more = [{name: value for name, value in level.published.items() if name != _PAPERS} for level in best]
    header = ["noise for", "mechanism", "seeds", "server's rate", "rates tried", "effective RMSE"]
    rows = []
    for level, published in zip(best, more, strict=True):
        rate = f"{level.server_learning_rate:.4g}{' (edge)' if level.may_do_better else ''}"
        tried = len(level.validation_accuracy_by_rate)
        rows.append(
            [level.level, level.mechanism, str(level.seeds), rate, str(tried), f"{level.effective_rmse:.4g}"]
            + [", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in published.items())] * any(more)
        )
    note = "(edge): the best rate is the smallest or largest tried, so that a better one may lie beyond."
    table = Table([*header, *["in the paper"] * any(more)], rows, names=2)
    return [table, note if any(level.may_do_better for level in best) else ""]


def _differences(differences: Iterable[Gap]) -> Block:
    rows = [
        [gap.level, gap.better, gap.worse, percent(gap.gap, gap.half_width_95), str(gap.seeds)]
        for gap in differences
        if gap.neighbours
    ]
    if not rows:
        return "None: no two mechanisms have the same noise and a seed in common."
    return Table(["noise for", "better", "worse", "gap, points", "seeds"], rows, names=3)


def _assumptions(result: ComparisonResult) -> str:
    said = [
        f"choice of settings: {statements.CHOICE_OF_SETTINGS}; where the clients are real, all runs of this page count",
        "reports: the report of each run, report.md in its folder, was read: it states what its ε rests on",
        "one measure: all rows are compared on the same test clients, with the same seeds",
    ]
    if result.runs_failed:
        failed = "; ".join(f"{name}: {why}" for name, why in result.runs_failed.items())
        said.append(f"failed runs: they are left out for a reason that does not favor a mechanism: {failed}")
    return "\n".join(f"- {text}" for text in said)


def _guarantees(best: Sequence[LevelResult]) -> str:
    """Returns each statement once, with the level and the mechanisms that it is about."""
    said: dict[tuple[str, str], list[str]] = {}
    for level in best:
        said.setdefault((level.level, statements.line(level.claim)), []).append(level.mechanism)
    return "\n".join(f"- {level}, {'; '.join(names)}: {line}" for (level, line), names in said.items())


def _setting(planned: Iterable[PlannedRun]) -> str:
    """Returns n, b and k of the runs as the titles of pictures show them, with ranges where runs differ."""
    settings = [run.settings for run in planned]
    schemas = [run.participation() for run in settings]
    numbers = {
        "n": {run.rounds for run in settings},
        "b": {schema.min_sep for schema in schemas if schema.max_participations > 1},
        "k": {schema.max_participations for schema in schemas},
    }
    ranges = {symbol: (min(values), max(values)) for symbol, values in numbers.items() if values}
    return ", ".join(
        f"{symbol} = {least:,}" + ("" if least == most else f" to {most:,}") for symbol, (least, most) in ranges.items()
    )


def draw(result: ComparisonResult, folder: pathlib.Path, *, title: str) -> list[pathlib.Path]:
    """Writes the two pictures, accuracy over rounds and over ε (or σ), to `folder` and returns their paths."""
    # Here, since Matplotlib takes a second to load.
    from . import plots

    best = result.levels
    looks = plots.styles(level.mechanism for level in best)
    over_rounds, over_privacy = (folder / f"accuracy-over-{what}.png" for what in ("rounds", "privacy"))
    columns = list(dict.fromkeys(level.level for level in best))
    size = (plots.COLUMN * max(1.0, 0.92 * len(columns)), 3.3)
    with plots.picture(over_rounds, size=size, columns=len(columns), sharey=True) as (whole, panels):
        for axes, column in zip(panels[0], columns, strict=True):
            for level in (level for level in best if level.level == column):
                _draw_over_rounds(axes, level, looks[level.mechanism])
            axes.set(title=f"Noise for {column}", xlabel="round", xlim=(0, None), ylim=(0, None))
        panels[0, 0].set_ylabel("validation accuracy, known words (%)")
        several = any(level.seeds > 1 for level in best)
        whole.suptitle(f"{title}; {'each seed (thin) and their mean' if several else 'one seed'}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2 * len(columns))

    has_intervals = all(level.seeds >= _FEWEST_SEEDS for level in best)
    kinds = list(dict.fromkeys(level.privacy[0] for level in best))
    size = (plots.COLUMN * max(1.0, 0.92 * len(kinds)), 3.3)
    with plots.picture(over_privacy, size=size, columns=len(kinds), sharey=True) as (whole, panels):
        for axes, kind in zip(panels[0], kinds, strict=True):
            drawn = [level for level in best if level.privacy[0] == kind]
            for index, (name, look) in enumerate(looks.items()):
                own = [level for level in drawn if level.mechanism == name]
                _draw_over_privacy(axes, own, look, index - (len(looks) - 1) / 2, has_intervals)
            values = sorted({level.privacy[1] for level in drawn})
            if values[0] > 0:
                axes.set_xscale("log")
            plots.ticks_at(axes.xaxis, {value: f"{value:g}" for value in values})
            axes.margins(x=0.5 if len(values) == 1 else 0.1, y=0.1)
            axes.set(xlabel={"epsilon": "ε", "noise_multiplier": "noise multiplier σ"}[kind], ylim=(0, None))
        panels[0, 0].set_ylabel("test accuracy, known words (%)")
        shown = "mean and 95 % interval over seeds" if has_intervals else "too few seeds for an interval"
        whole.suptitle(f"{title}; {shown}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2 * len(kinds))
    return [over_rounds, over_privacy]


def _draw_over_rounds(axes: Any, level: LevelResult, look: Any) -> None:
    by_round: dict[int, list[float]] = {}
    for history in level.accuracy_over_rounds.values():
        if level.seeds > 1:
            axes.plot([at for at, _ in history], [100 * value for _, value in history], **look.faint())
        for number, value in history:
            by_round.setdefault(number, []).append(100 * value)
    means = {number: statistics.fmean(values) for number, values in sorted(by_round.items())}
    # A marker on an axis is whole.
    every = max(1, len(means) // 8)
    axes.plot(list(means), list(means.values()), label=level.mechanism, markevery=every, clip_on=False, **look.line())


def _draw_over_privacy(axes: Any, own: Sequence[LevelResult], look: Any, place: float, has_intervals: bool) -> None:
    if not own:
        return
    # Side by side, so that intervals do not cover one another.
    at = [level.privacy[1] * 1.035**place for level in own]
    means = [100 * level.accuracy for level in own]
    halves = [100 * (level.half_width_95 or 0.0) if has_intervals else 0.0 for level in own]
    # An accuracy is from 0 to 100.
    below = [min(half, mean) for half, mean in zip(halves, means, strict=True)]
    above = [min(half, 100 - mean) for half, mean in zip(halves, means, strict=True)]
    axes.errorbar(at, means, yerr=[below, above], capsize=2, elinewidth=0.7, label=own[0].mechanism, **look.line())
