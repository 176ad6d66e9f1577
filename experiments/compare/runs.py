"""The runs of a comparison: what a specification lists, and the processes that do those which are missing."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.base.errors import InputValueError

from ..data import check_dataset
from ..output import console, files, typed
from ..output.typed import Number, Record
from ..runs import folders
from ..runs.names import CHECKPOINTS, COHORTS, REPORT, REPORT_TEXT, SUMMARY
from ..runs.results import Summary
from ..runs.settings import FLAG, PRESETS, SQLITE, Layer, NamedFiles, RunSettings, as_toml, laid, read_toml

# The specifications of the papers' tables, and of the demo.
SPECS = NamedFiles(path=pathlib.Path(__file__).parents[1] / "specs", field="spec")
# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
_POLL_SECONDS, _SECONDS_BETWEEN_LINES, _PATIENCE_SECONDS = 0.2, 10.0, 30.0
# Settings that are a column of the table or an axis of the pictures; others that differ become part of the label.
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")
# Settings that a mechanism is optimized for, beside the participation.
_OPTIMIZED = (
    *("mechanism", "buffers", "bands", "unit_norms", "objective", "workload", "rounds", "restart_every"),
    *("server_momentum", "server_warmup", "server_cooldown"),
)
_TRAIN = "import sys; from tff_mf.experiments.cli import main; sys.argv[0] = 'tff-mf'; main()"


class _Own(Record):
    """What a grid says beside the values of settings."""

    preset: str | None = None
    label: Annotated[str, Meta(min_length=1)] | None = None
    source: Annotated[str, Meta(min_length=1)] | None = None
    optimize: dict[str, Any] = msgspec.field(default_factory=dict)
    published: dict[str, Number] | None = None


class Specification(Record):
    """The file of a comparison: settings that all runs share, and combinations of those that differ.

    Attributes:
        title: Name of the comparison; runs of one without have no published results.
        paper: The paper and its table.
        notes: What a reader of the results should know.
        preset: The preset that all grids are laid over.
        search: Settings that are drawn at random for each run, in place of a grid: see `search`.
    """

    title: str | None = None
    paper: str | None = None
    notes: str | None = None
    preset: str | None = None
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    grid: Annotated[Sequence[dict[str, Any]], Meta(min_length=1)] = ({},)
    search: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        label: The mechanism with its options, the same for all seeds, rates and ε.
        settings: Its settings.
        optimized_for: The settings that its mechanism is optimized for.
        published: Results of the paper for it, by name.
        name: Name of its folder: readable, and different for different settings.
    """

    label: str
    settings: RunSettings
    optimized_for: RunSettings
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)
    name: str = ""

    @property
    def privacy(self) -> tuple[str, float]:
        """Which of ε and σ is fixed, and its value."""
        if self.settings.epsilon is not None:
            return "epsilon", self.settings.epsilon
        return "noise_multiplier", self.settings.noise_multiplier or 0.0


def read(
    path: pathlib.Path, data_of: Mapping[str, pathlib.Path] | None = None, *, dataset: str | None = None
) -> list[PlannedRun]:
    """Returns the runs of a specification, with checked settings: all combinations of what its grids list.

    Args:
        path: The TOML file.
        data_of: Files of the data sets, whose names become part of the run's name: other data make another run.
        dataset: Data set of all runs, in place of the file's.
    """
    content = content_of(path)
    for name, value in content.run.items():
        if isinstance(value, list):
            raise InputValueError(f"{path} [run]: {name}={value!r} is a list, and all runs share this: use [[grid]].")
    elsewhere = Layer.of({} if dataset is None else {"dataset": dataset}, FLAG)
    runs = [run for grid in content.grid for run in _runs_of(grid, content, elsewhere, path)]
    for run in runs:
        if (run.settings.search is None) != (content.search is None):
            raise InputValueError(
                f"{path}: search={run.settings.search!r}, the mean number of runs, goes with a table [search] of what "
                "each draws, since runs that are all compared are no search: give both or neither."
            )
    if content.search is not None and len(runs) > 1:
        raise InputValueError(f"{path}: [search] draws its settings, and {len(runs)} runs are listed: give no lists.")
    return _named(runs, data_of or {})


def content_of(path: pathlib.Path) -> Specification:
    """Returns what a specification says."""
    return typed.convert(read_toml(path), Specification, str(path))


def _runs_of(
    grid: Mapping[str, Any], content: Specification, elsewhere: Layer, path: pathlib.Path
) -> Iterator[PlannedRun]:
    """Yields a run without a name for each combination of a grid's values."""
    where = f"{path} [[grid]]"
    own = {name: value for name, value in grid.items() if name in _Own.__struct_fields__}
    beside = typed.convert(own, _Own, where)
    varied = {name: value for name, value in grid.items() if name not in own}
    listed = typed.some(varied, RunSettings, where, listed=True)
    values = [value if isinstance(value, list) else [value] for value in listed.values()]
    if (combinations := math.prod(map(len, values))) > MOST_RUNS:
        raise InputValueError(f"{where} has {combinations} combinations; a comparison can have at most {MOST_RUNS}.")
    shared = Layer.of(typed.some(content.run, RunSettings, f"{path} [run]"), str(path))
    searched = Layer.of(typed.some(beside.optimize, RunSettings, f"{where} [optimize]"), "optimize")
    name = beside.preset or content.preset
    preset = None if name is None else PRESETS.load(name)
    for combination in itertools.product(*values):
        upper = laid([shared, Layer.of(dict(zip(listed, combination, strict=True)), str(path))])
        layer = preset.over(upper) if preset else upper
        row = preset.row_of(layer.values) if preset else None
        layer = laid([layer, elsewhere])
        published = (row.published if row else {}) if beside.published is None else beside.published
        settings = layer.settings(where=str(path))
        if settings.epsilon is None and settings.noise_multiplier is None:
            raise InputValueError(f"{path}: epsilon and noise_multiplier are both missing: give one of them.")
        settings.check()
        check_dataset(settings.dataset)
        run = PlannedRun(
            label=beside.label or "",
            settings=settings,
            optimized_for=laid([layer, searched]).settings(),
            published=published if content.title else {},
        )
        run.optimized_for.check()
        yield run


def _named(runs: Sequence[PlannedRun], data_of: Mapping[str, pathlib.Path]) -> list[PlannedRun]:
    """Returns each run once, with its name and label."""
    values_of = [msgspec.structs.asdict(run.settings) for run in runs]
    fields = RunSettings.__struct_fields__
    differing = [name for name in fields if name not in _AXES and len({values[name] for values in values_of}) > 1]
    named: dict[str, PlannedRun] = {}
    told_apart: dict[tuple[Any, ...], str] = {}
    for run, values in zip(runs, values_of, strict=True):
        options = [f"{name.replace('_', ' ')} {values[name]}" for name in differing if values[name] is not None]
        label = run.label or ", ".join([pathlib.Path(values["mechanism"]).stem, *options])
        if values["dataset"] in data_of:
            values["dataset"] = data_of[values["dataset"]].name
        noise, level = run.privacy
        seed, rate = run.settings.seed, run.settings.server_learning_rate
        words = f"{label} {noise} {level:g} rate {rate} seed {seed}"
        name = f"{_slug(words)}-{_digest([values, msgspec.structs.asdict(run.optimized_for)])}"
        named[name] = dataclasses.replace(run, name=name, label=label)
        # The table could not tell them apart: labels that are given may be too few.
        if told_apart.setdefault((label, run.privacy, seed, rate), name) != name:
            raise InputValueError(
                f"label={label!r} stands for two different runs with the same ε or σ, seed and server learning "
                f"rate; give each its own label."
            )
    # All runs of one seed come before the next seed, so that partial results can be compared.
    return sorted(named.values(), key=lambda run: run.settings.seed)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def is_done(out: pathlib.Path, name: str) -> bool:
    """Returns whether a run is done: whether it has its report, and has deleted its keys, which it does last."""
    folder = out / "runs" / name
    secrets = folder / CHECKPOINTS
    keys = (secrets / COHORTS).exists() or checkpoint_files.saved_rounds(secrets)
    return (folder / REPORT).is_file() and (folder / REPORT_TEXT).is_file() and not keys


def configure(run: PlannedRun, data: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the settings of a run, with the artifact of its mechanism, which is made if it is missing."""
    for name in ("runs", "configurations", "mechanisms", "logs"):
        (out / name).mkdir(exist_ok=True)
    searched = run.optimized_for
    values = [*(getattr(searched, field) for field in _OPTIMIZED), repr(searched.participation())]
    artifact = out / "mechanisms" / f"{_slug(pathlib.Path(searched.mechanism).stem)}-{_digest(values)}.safetensors"
    if not artifact.is_file():
        console.say(f"compare: optimizing {run.label}")
        tff_mf.save(searched.build_mechanism(), artifact)
    settings = {name: value for name, value in msgspec.structs.asdict(run.settings).items() if value is not None}
    # The options of the search go with its name.
    own = {"mechanism": str(artifact.absolute()), "dataset": f"{SQLITE}{data}"}
    text = as_toml(laid([Layer.of(settings, ""), Layer.of(own, "")]).values)
    files.write_atomically(out / "configurations" / f"{run.name}.toml", text)


def _command(run: PlannedRun, out: pathlib.Path) -> list[str]:
    """Returns the command that does a run, or goes on with it where it was stopped.

    A run that was begun is never begun anew: its rounds would be released twice, with other noise.
    """
    folder, file = out / "runs" / run.name, out / "configurations" / f"{run.name}.toml"
    resume = ["--resume"] if folders.has_files(folder) else []
    # A spec that names σ asks for no ε.
    flags = ["--without-epsilon"] if run.privacy[0] == "noise_multiplier" else []
    # -P, so that the current folder is not where packages are looked for.
    begin = [sys.executable, "-P", "-c", _TRAIN, "train", "--force"]
    return [*begin, "--config", str(file), "--out", str(folder), *resume, *flags]


def run_missing(
    waiting: Sequence[PlannedRun], out: pathlib.Path, *, at_once: int, lock: int, say: Callable[[str], None]
) -> dict[str, str]:
    """Does runs that are not done, and returns the last line of each that failed, by its name.

    If this is interrupted, it ends the running ones first. `lock` is a file that the processes keep open.
    """
    waiting, total, start = list(waiting), len(waiting), time.monotonic()
    running: dict[subprocess.Popen, str] = {}
    failed: dict[str, str] = {}
    told, told_at = dict[str, str](), start
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                run = waiting.pop(0)
                running[_started(_command(run, out), _log(out, run.name), lock)] = run.name
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if process.poll() is not None]:
                name = running.pop(process)
                _end_group(process)
                if is_done(out, name):
                    outcome = f"test accuracy {100 * summary_of(out / 'runs' / name).accuracy:.2f} %"
                else:
                    failed[name] = _last_line(_log(out, name)) or f"ended with status {process.returncode}"
                    outcome = f"FAILED: {failed[name]}"
                ended = total - len(waiting) - len(running)
                minutes = (time.monotonic() - start) / ended * (total - ended) / 60
                # Runs that go on say themselves how long they take.
                left = f", {minutes:.0f} min left" if waiting else ""
                say(f"{ended} of {total}{left}: {name}: {outcome}")
                console.step()
            if time.monotonic() > told_at + _SECONDS_BETWEEN_LINES:
                # Each run says how far it is in its log.
                lines = {name: _last_line(_log(out, name)) for name in running.values()}
                for name, line in lines.items():
                    if line and line != told.get(name):
                        say(f"{name}: {line}")
                told, told_at = lines, time.monotonic()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_SECONDS)
            _end_group(process)
    return failed


def _started(command: list[str], log: pathlib.Path, lock: int) -> subprocess.Popen:
    """Starts a run, whose result is read from its folder, and whose log has how far it is, and why it failed."""
    nothing, guard = subprocess.DEVNULL, shutil.which("setpriv")
    if guard is not None:
        # The system ends the run if this process is killed, where util-linux is installed.
        command = [guard, "--pdeathsig", "TERM", *command]
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=file,
            pass_fds=[lock],
            # An interrupt reaches this process only, and the TFF worker of a killed run can be ended.
            start_new_session=True,
        )


def _end_group(process: subprocess.Popen) -> None:
    """Ends what is left of a process and of those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _log(out: pathlib.Path, name: str) -> pathlib.Path:
    return out / "logs" / f"{name}.txt"


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def summary_of(folder: pathlib.Path) -> Summary:
    """Returns how good the model of the run in a folder is."""
    return typed.read(folder / SUMMARY, Summary, "summary")
