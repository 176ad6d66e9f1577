"""Many training runs from one specification: each is resumed until it is done; then a table and two pictures.

`read` gives the runs that a file's lists stand for, `run_comparison` does those that are missing, and `page` says how
they ended.
"""

import contextlib
import ctypes
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import scipy.stats
from msgspec import Meta

import tff_mf
from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics.digits import percent

from .. import reports
from ..data import check_dataset, data_file
from ..output import console, files, typed
from ..output.typed import Number, Record
from ..runs import folders, statements
from ..runs.folders import read_record
from ..runs.names import CHECKPOINTS, COHORTS, METRICS, REPORT, REPORT_TEXT, SUMMARY
from ..runs.results import Summary, read_metrics
from ..runs.settings import FLAG, PRESETS, SQLITE, Layer, NamedFiles, RunSettings, as_toml, laid, read_toml
from ..runs.statements import REFUSED, Claim

# The specifications of the papers' tables, and of the demo.
SPECS = NamedFiles(path=pathlib.Path(__file__).parents[1] / "specs", field="spec")
RESULT, TABLE = "comparison.json", "comparison.md"
# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
# With fewer seeds, intervals are too wide to say anything.
_FEWEST_SEEDS = 3
_POLL_SECONDS, _SECONDS_BETWEEN_LINES, _PATIENCE_SECONDS = 0.2, 10.0, 30.0
# Settings that are a column of the table or an axis of the pictures; others that differ become part of the label.
_AXES = ("mechanism", "epsilon", "noise_multiplier", "seed", "server_learning_rate")
# Settings that a mechanism is optimized for, beside the participation.
_OPTIMIZED = (
    *("mechanism", "buffers", "bands", "unit_norms", "objective", "workload", "rounds", "restart_every"),
    *("server_momentum", "server_warmup", "server_cooldown"),
)
_TRAIN = "import sys; from tff_mf.experiments.cli import main; sys.argv[0] = 'tff-mf'; main()"
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
_PAPERS = "test_accuracy"
_BASELINE = "the most frequent word"
SMOOTHED = (
    "smoothed validation accuracy (the mean of the evaluations in the last 400 rounds, or in the last fifth of the "
    "rounds if that is less)"
)


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


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    jobs: int = 1,
    dataset: str | None = None,
) -> "ComparisonResult":
    """Does the runs of a specification that are not done, and writes the table and the pictures.

    Each run is a process, with a folder in `out/runs/`. It is done when its `report.json` is there and its keys are
    deleted; a run that was interrupted goes on after its newest checkpoint, and no released round is run again. Each
    mechanism is optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if it does not exist. Several specifications may share it.
        jobs: Number of runs at a time.
        dataset: Data set of all runs, in place of the specification's.

    Returns:
        The content of `comparison.json`.
    """
    validation.whole("jobs", jobs)
    datasets = {run.settings.dataset for run in read(spec, dataset=dataset)}
    folders.continued_folder(out)
    data_of = {name: data_file(name).absolute() for name in sorted(datasets)}
    planned = read(spec, data_of, dataset=dataset)
    # The processes of the runs inherit the lock: those of a comparison that was killed have to end first.
    with files.held(out / ".lock", lambda: _say("waiting for another comparison in this folder to end")) as lock:
        for run in planned:
            configure(run, data_of[run.settings.dataset], out)
        waiting = [run for run in planned if not is_done(out, run.name)]
        _say(f"{len(planned)} runs, {len(planned) - len(waiting)} done already")
        with console.bar("compare", len(waiting)):
            failed = run_missing(waiting, out, at_once=jobs, lock=lock, say=_say)
        content = content_of(spec)
        texts = {"title": content.title, "paper": content.paper, "notes": content.notes}
        finished = [_finished(run, out) for run in planned if is_done(out, run.name)]
        result = ComparisonResult(
            specification={name: " ".join(text.split()) for name, text in texts.items() if text},
            runs_planned=len(planned),
            runs_done=len(finished),
            runs_failed=failed,
            levels=levels(finished),
        )
        if result.levels:
            pictures = draw(result, planned, out, name=spec.stem)
            result = msgspec.structs.replace(result, pictures=[path.name for path in pictures])
        files.write_atomically(out / TABLE, page(result, name=out.name))
        files.write_atomically(out / RESULT, json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
        return result


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
        _say(f"optimizing {run.label}")
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


def _say(text: str) -> None:
    console.say(f"compare: {text}")


def _started(command: list[str], log: pathlib.Path, lock: int) -> subprocess.Popen:
    """Starts a run, whose result is read from its folder, and whose log has how far it is, and why it failed."""
    nothing = subprocess.DEVNULL
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=file,
            pass_fds=[lock],
            # An interrupt reaches this process only, and the TFF worker of a killed run can be ended.
            start_new_session=True,
            # Linux ends the run if this process is killed.
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Attributes:
        run: The run.
        rate: Learning rate of the server.
        summary: How good its model is.
        history: Round and accuracy of each evaluation on validation sentences.
        claim: Its guarantee.
    """

    run: PlannedRun
    rate: float
    summary: Summary
    history: Sequence[tuple[int, float]]
    claim: Claim


def _finished(run: PlannedRun, out: pathlib.Path) -> Finished:
    folder = out / "runs" / run.name
    return Finished(
        run=run,
        rate=float(read_record(folder).training.server_learning_rate),
        summary=summary_of(folder),
        history=read_metrics(folder / METRICS).accuracies,
        claim=reports.read(folder / REPORT).claim,
    )


class LevelResult(Record, kw_only=True, omit_defaults=True):
    """A mechanism at one level of noise, at the best of its rates.

    Attributes:
        mechanism: The mechanism with its options.
        level: The ε or σ that was fixed, in words.
        accuracy: Mean accuracy on test sentences over seeds.
        half_width_95: Half the width of its 95 % interval; `None` of fewer than three seeds.
        baseline_accuracy: What always the most frequent word would reach.
        accuracy_by_seed: Accuracy on test sentences by seed.
        accuracy_over_rounds: Rounds and validation accuracies by seed.
        server_learning_rate: The best rate.
        validation_accuracy_by_rate: Mean validation accuracy of every rate that was tried, in order.
        test_sentences: Numbers of test sentences of its runs.
        claim: The guarantee of its runs.
        published: Results of the paper, by name.
    """

    mechanism: str
    level: str
    accuracy: Number
    half_width_95: Number | None
    baseline_accuracy: Number
    accuracy_by_seed: dict[str, Number]
    accuracy_over_rounds: dict[str, list[tuple[int, Number]]]
    server_learning_rate: Number
    validation_accuracy_by_rate: dict[str, Number]
    test_sentences: list[int]
    claim: Claim
    published: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def learned(self) -> bool:
        """Whether it is better than one guess for all words."""
        return self.accuracy > self.baseline_accuracy

    @property
    def rate_at_edge(self) -> bool:
        """Whether the best rate is the smallest or largest of several, so that a better one may lie beyond."""
        tried = list(self.validation_accuracy_by_rate)
        return len(tried) > 1 and f"{self.server_learning_rate:.6g}" in (tried[0], tried[-1])


class ComparisonResult(Record, kw_only=True, omit_defaults=True):
    """The content of `comparison.json`.

    Attributes:
        specification: What the specification says of itself.
        runs_planned: Number of runs.
        runs_done: Number of runs that are done.
        runs_failed: The last line of each run that failed, by its name.
        levels: Mechanisms at each level of noise, best first.
        pictures: Names of the pictures.
    """

    specification: dict[str, str] = msgspec.field(default_factory=dict)
    runs_planned: int
    runs_done: int
    runs_failed: dict[str, str]
    levels: list[LevelResult]
    pictures: Sequence[str] = ()


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its 95 % interval by Student's t; None of fewer than three values.

    Example:
        >>> mean, half = mean_and_half_width([1.0, 2.0, 3.0])
        >>> f"{mean:.1f} {half:.3f}"
        '2.0 2.484'
    """
    mean = statistics.fmean(values)
    if len(values) < _FEWEST_SEEDS:
        return mean, None
    return mean, float(scipy.stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def levels(finished: Sequence[Finished]) -> list[LevelResult]:
    """Returns each mechanism at each level of privacy, its rate chosen by mean validation accuracy, best first.

    Rates are compared over the seeds that all of them have in common; if there are none, over the seeds of each. They
    are compared by smoothed accuracy, as in Choquette-Choo et al. (2023), table 6.
    """
    results: list[tuple[Any, LevelResult]] = []
    key = operator.attrgetter("run.privacy", "run.label")
    for (privacy, _), group in itertools.groupby(sorted(finished, key=key), key=key):
        by_rate: dict[float, dict[int, Finished]] = {}
        for ended in group:
            by_rate.setdefault(ended.rate, {})[ended.run.settings.seed] = ended
        common = set.intersection(*(set(runs) for runs in by_rate.values()))
        tried = {
            rate: statistics.fmean(
                runs[seed].summary.validation_accuracy_smoothed for seed in runs if seed in common or not common
            )
            for rate, runs in by_rate.items()
        }
        rate = max(tried, key=lambda rate: tried[rate])
        results.append((privacy, _level([by_rate[rate][seed] for seed in sorted(by_rate[rate])], tried)))
    return [level for _, level in sorted(results, key=lambda result: (result[0], -result[1].accuracy))]


def _level(runs: Sequence[Finished], tried: Mapping[float, float]) -> LevelResult:
    """Returns the result of one mechanism by its runs with the best rate, one per seed."""
    first, by_seed = runs[0], {str(ended.run.settings.seed): ended for ended in runs}
    mean, half = mean_and_half_width([ended.summary.accuracy for ended in runs])
    return LevelResult(
        mechanism=first.run.label,
        level=statements.level(*first.run.privacy),
        accuracy=mean,
        half_width_95=half,
        baseline_accuracy=statistics.fmean(ended.summary.baseline_accuracy for ended in runs),
        accuracy_by_seed={seed: ended.summary.accuracy for seed, ended in by_seed.items()},
        accuracy_over_rounds={seed: list(ended.history) for seed, ended in by_seed.items()},
        server_learning_rate=first.rate,
        validation_accuracy_by_rate={f"{rate:.6g}": value for rate, value in sorted(tried.items())},
        test_sentences=sorted({ended.summary.test_sentences for ended in runs}),
        # A run that has no guarantee speaks for all.
        claim=next((ended.claim for ended in runs if ended.claim.state == REFUSED), first.claim),
        published=dict(first.run.published),
    )


def page(result: ComparisonResult, *, name: str = "") -> str:
    """Returns a comparison in words, as Markdown: the content of `comparison.md`."""
    spec, best = result.specification, result.levels
    numbers = sorted({number for level in best for number in level.test_sentences})
    measured = " to ".join(f"{number:,} " for number in dict.fromkeys([*numbers[:1], *numbers[-1:]]))
    chosen = (
        f"its best by {SMOOTHED}"
        if any(len(level.validation_accuracy_by_rate) > 1 for level in best)
        else "the only one tried here"
    )
    has_interval = any(level.half_width_95 is not None for level in best)
    interval = "with a 95 % interval over seeds" if has_interval else "too few seeds for an interval"
    done = (
        f"{result.runs_done} of {result.runs_planned} runs are done. Accuracy is over known words, on {measured}"
        f"sentences of test clients, {interval}; each mechanism's rate is {chosen}."
    )
    said = [f"# Comparison: {spec.get('title', name)}", spec.get("paper", ""), spec.get("notes", ""), done]
    if best:
        said += ["## Accuracy, %", _accuracies(best)]
        at_edge = [f"{level.mechanism} at {level.level}" for level in best if level.rate_at_edge]
        notes = {
            "In parentheses: in the paper.": any(_PAPERS in level.published for level in best),
            f"* did not learn: not better than always {_BASELINE}.": not all(level.learned for level in best),
            f"The best rate is the smallest or largest tried, so that a better one may lie beyond, of: "
            f"{'; '.join(at_edge)}.": bool(at_edge),
        }
        said.append(" ".join(text for text, holds in notes.items() if holds))
    if result.runs_failed:
        failed = [f"- {run}: {why}" for run, why in result.runs_failed.items()]
        said += ["## Failed runs, which are left out", "\n".join(failed)]
    if best:
        said += [f"{statements.CHOICE_OF_SETTINGS}. Where the clients are real, all runs of this page count."]
        # Each statement once, with the level and the mechanisms that it is about.
        lines: dict[tuple[str, str], list[str]] = {}
        for level in best:
            lines.setdefault((level.level, statements.line(level.claim)), []).append(level.mechanism)
        listed = [f"- {level}, {'; '.join(names)}: {line}" for (level, line), names in lines.items()]
        said += ["## Guarantees, or the reason why there is none", "\n".join(listed)]
    return "\n\n".join(filter(None, said)).replace("<", "&lt;") + "\n"


def _accuracies(best: Sequence[LevelResult]) -> str:
    """Returns the accuracy of each mechanism at each level of noise, as the papers' tables have it."""
    columns = list(dict.fromkeys(level.level for level in best))
    rows = {level.mechanism: ["–"] * len(columns) for level in best} | {_BASELINE: ["–"] * len(columns)}
    for level in best:
        column, paper = columns.index(level.level), level.published.get(_PAPERS)
        shown = percent(level.accuracy, level.half_width_95) + ("" if level.learned else "*")
        rows[level.mechanism][column] = shown if paper is None else f"{shown} ({paper:.2f})"
        rows[_BASELINE][column] = percent(level.baseline_accuracy, None)
    lines = [["noise for", *columns], ["---"] * (1 + len(columns))]
    lines += ([name.replace("|", "\\|"), *cells] for name, cells in rows.items())
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(
    result: ComparisonResult, planned: Sequence[PlannedRun], folder: pathlib.Path, *, name: str
) -> list[pathlib.Path]:
    """Writes the two pictures, accuracy over rounds and over ε (or σ), to `folder` and returns their paths."""
    # Here, since Matplotlib takes a second to load.
    from .. import plots

    settings = {plots.numbers(run.settings.rounds, run.settings.participation()) for run in planned}
    title = settings.pop() if len(settings) == 1 else name
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
        several = any(len(level.accuracy_by_seed) > 1 for level in best)
        whole.suptitle(f"{title}; {'each seed (thin) and their mean' if several else 'one seed'}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2 * len(columns))

    has_intervals = all(level.half_width_95 is not None for level in best)
    size = (plots.COLUMN * max(1.0, 0.25 * len(columns)), 3.3)
    with plots.picture(over_privacy, size=size) as (whole, panels):
        axes = panels[0, 0]
        for place, (name, look) in enumerate(looks.items()):
            own = [level for level in best if level.mechanism == name]
            # Side by side, so that intervals do not cover one another.
            at = [columns.index(level.level) + (place - (len(looks) - 1) / 2) * 0.6 / len(looks) for level in own]
            means = np.array([100 * level.accuracy for level in own])
            halves = np.array([100 * (level.half_width_95 or 0.0) for level in own])
            # An accuracy is from 0 to 100.
            bars = [np.minimum(halves, means), np.minimum(halves, 100 - means)] if has_intervals else None
            axes.errorbar(at, means, yerr=bars, capsize=2, elinewidth=0.7, label=name, **look)
        axes.set_xticks(range(len(columns)), columns, rotation=0 if len(columns) < 6 else 45)
        axes.margins(y=0.1)
        axes.set(xlabel="noise for", xlim=(-0.5, len(columns) - 0.5))
        axes.set(ylabel="test accuracy, known words (%)", ylim=(0, None))
        shown = "mean and 95 % interval over seeds" if has_intervals else "too few seeds for an interval"
        whole.suptitle(f"{title}; {shown}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2)
    return [over_rounds, over_privacy]


def _draw_over_rounds(axes: Any, level: LevelResult, look: Mapping[str, Any]) -> None:
    by_round: dict[int, list[float]] = {}
    for history in level.accuracy_over_rounds.values():
        if len(level.accuracy_by_seed) > 1:
            faint = {"color": look["color"], "linewidth": 0.4, "alpha": 0.4}
            axes.plot([number for number, _ in history], [100 * value for _, value in history], **faint)
        for number, value in history:
            by_round.setdefault(number, []).append(100 * value)
    means = {number: statistics.fmean(values) for number, values in sorted(by_round.items())}
    # A marker on an axis is whole.
    every = max(1, len(means) // 8)
    axes.plot(list(means), list(means.values()), label=level.mechanism, markevery=every, clip_on=False, **look)
