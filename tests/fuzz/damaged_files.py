"""Damage to each file of a run, and whether it is found out: when the run goes on, and when its report is checked.

A run goes on by the command itself, in this process, up to the moment when the first round would be computed. What it
would compute is a function of what it has read by then, which is compared with what it reads from intact files.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import click
import numpy as np
import tensorflow as tf
import tree
from outcomes import CRASHED, DETECTED, HARMLESS, SILENT, Outcome

import tff_mf
from tff_mf import aggregators
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.runs import ledger, metrics, names, server_loop
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import learning_process, preparation
from tff_mf.experiments.training import task as training_task
from tff_mf.experiments.training.datasets import pydoc, sqlite

sys.path.append(str(pathlib.Path(__file__).parents[1] / "faults"))
import small_run

_NOBODY = 65534
_REPORTED = ("run.json", "mechanism.safetensors", "ledger.jsonl", "metrics.csv", "summary.json")
# Nothing is read of a planned report once a run has begun.
_REPORTED += ("report.json", names.REPORT_TEXT, "configuration.toml")

# The first three are random, and done more than once.
DAMAGES = ("one bit changed", "truncated", "zeros at the end", "removed", "empty")


_TURNS = itertools.count()


def kinds(each: int, *more: str) -> list[str]:
    """Returns what is done to a file, and as often as it is done; with 0, files take turns with a quarter of it."""
    every = (*DAMAGES, *more)
    if each == 0:
        return list(every[next(_TURNS) % 4 :: 4])
    return [kind for kind in every for _ in range(each if kind in DAMAGES[:3] else 1)]


def damage(path: pathlib.Path, kind: str, generator: random.Random) -> None:
    """Does to a file what `kind` says."""
    content = bytearray(path.read_bytes())
    if kind == "one bit changed":
        place = generator.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
    elif kind == "truncated":
        del content[generator.randrange(len(content)) :]
    elif kind == "zeros at the end":
        # As a power cut leaves what was never written.
        length = generator.randint(1, len(content))
        content[-length:] = bytes(length)
    elif kind == "removed":
        path.unlink()
        return
    else:
        content.clear()
    path.write_bytes(content)


class ReachedError(Exception):
    """The first round would be computed now."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
    """Folders of runs of the same settings.

    Attributes:
        stopped: One that was killed after a checkpoint.
        other: Another one.
        finished: The first one, gone on with to its end.
        arguments: From a folder to the command that goes on there.
        data: The data set.
    """

    stopped: pathlib.Path
    other: pathlib.Path
    finished: pathlib.Path
    arguments: Callable[[pathlib.Path], list[str]]
    data: pathlib.Path


def make(data: pathlib.Path, work: pathlib.Path) -> Runs:
    """Runs what all file faults are done to; only forks compute."""

    def arguments(folder: pathlib.Path) -> list[str]:
        return small_run.flags(data, folder, mechanism="identity", seed=None)

    def kill_in_round(number: int) -> Callable[[], None]:
        def prepare() -> None:
            begin = ledger.Ledger.begin

            def counted(book: Any, round_number: int, *more: Any, **given: Any) -> None:
                begin(book, round_number, *more, **given)
                if round_number == number:
                    os.kill(os.getpid(), signal.SIGKILL)

            ledger.Ledger.begin = counted

        return prepare

    for name in ("stopped", "other"):
        small_run.finish(arguments(work / name), work / f"{name}.log", kill_in_round(8))
        (work / name / ".lock").unlink()
    finished = work / "finished"
    shutil.copytree(work / "stopped", finished)
    child = small_run.finish([*arguments(finished), "--resume"], work / "finished.log")
    if child.status:
        raise RuntimeError(child.text()[-2000:])
    return Runs(
        stopped=work / "stopped",
        other=work / "other",
        finished=finished,
        arguments=lambda folder: [*arguments(folder), "--resume"],
        data=data,
    )


class _Process:
    """The learning process of the runs, built once: its first state is known, and no round is computed."""

    def __init__(self, data: pathlib.Path) -> None:
        small = {"model": "conv", "vocab_size": 100, "embedding_size": 4, "units": 4}
        settings = RunSettings(
            rounds=small_run.ROUNDS, clients_per_round=3, delta=1e-6, sampling="single", cohort=4, **small
        )
        words = list(sqlite.load_word_counts(data, 100))
        language = training_task.build_task(settings, words)
        plan = mock.Mock(
            grid=settings.chosen_grid(),
            mechanism=tff_mf.Identity(),
            noise_multiplier_as_run=5.0,
            rounds=small_run.ROUNDS,
            clients_per_round=3,
            insecure_seed=None,
            restart_every=None,
            adaptive_count_stddev=None,
            adaptive_count_stddev_as_run=None,
        )
        with aggregators.tff_session():
            process, self.mean = learning_process.build_process(settings, plan, language)
            self._start = process.initialize()
        self.words, self.parameters = words, language.parameters

    def initialize(self) -> Any:
        return self._start

    def set_model_weights(self, state: Any, weights: Any) -> Any:
        del weights
        return state


class Resumption:
    """Resumes runs, up to the first round."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._process = runs, _Process(runs.data)
        self._splits = sqlite.load(runs.data)
        self._loaded: Any = None

    def read(self, folder: pathlib.Path) -> dict[str, Any]:
        """Returns what a run goes on from.

        Raises:
            InputError: If it refuses to, as it should if a file is damaged.
            Exception: If it fails in any other way, as it should not.
        """
        self._loaded = None
        task = types.SimpleNamespace(
            build_batches=_NoData,
            build_evaluator=lambda: types.SimpleNamespace(tokens=lambda chunks: []),
            initial_weights=None,
            parameters=self._process.parameters,
        )
        resume = server_loop.ServerLoop.resume

        def resumed(loop: Any, saved: Any, **more: Any) -> Any:
            self._loaded = saved.progress
            return resume(loop, saved, **more)

        with contextlib.ExitStack() as patches:
            for where, name, value in (
                (preparation, "build_task", lambda *given: task),
                (preparation, "build_process", lambda *given: (self._process, self._process.mean)),
                (preparation.sqlite, "load", lambda path: self._splits),
                (preparation.sqlite, "load_word_counts", lambda path, size: dict.fromkeys(self._process.words, 1)),
                (aggregators, "resident_context", lambda **given: contextlib.nullcontext()),
                (server_loop.ServerLoop, "resume", resumed),
            ):
                patches.enter_context(mock.patch.object(where, name, value))
            try:
                cli.main(self._runs.arguments(folder), standalone_mode=False)
            except ReachedError:
                pass
            except click.ClickException as error:
                raise InputErrorOfCommand(error.format_message()) from error
        state = [np.asarray(leaf) for leaf in tree.flatten(self._loaded.state)]
        return {
            "state": [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in state],
            "round": self._loaded.round_number,
            "history": [sorted(row.items()) for row in self._loaded.history],
            "ledger": ledger.read_ledger(folder / names.LEDGER),
            "metrics": _metrics(folder),
            "configuration": _plain(folder / "run.json"),
            "mechanism": tff_mf.load(folder / "mechanism.safetensors"),
        }


class InputErrorOfCommand(InputError):
    """What the command line refused, as it says it."""


class _NoData:
    def __init__(self, sentences: Any) -> None:
        del sentences

    def of(self, clients: Sequence[str]) -> None:
        raise ReachedError


def _metrics(folder: pathlib.Path) -> list[str]:
    # How long rounds took differs from run to run, and is nothing that anything is computed from.
    rows = metrics.read_metrics(folder / names.METRICS).rows
    return [str(sorted((name, value) for name, value in row.items() if name != "seconds")) for row in rows]


def _plain(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


def _names(message: str, path: pathlib.Path, folder: pathlib.Path) -> bool:
    """Returns whether a message is one that somebody can act on: short, and about this file or what it says."""
    return len(message) < 1500 and (path.name in message or path.stem in message or str(folder) in message)


def going_on(runs: Runs, work: pathlib.Path, each: int, generator: random.Random) -> Iterator[Outcome]:
    """Damages each file of a stopped run, and resumes it."""
    resumption = Resumption(runs)
    folder = work / "damaged"

    def restored() -> pathlib.Path:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(runs.stopped, folder)
        return folder

    intact = resumption.read(restored())
    newest = max(runs.stopped.glob("checkpoints/*.safetensors"), key=lambda path: int(path.stem.split("_")[1]))
    for relative in sorted(path.relative_to(runs.stopped) for path in runs.stopped.rglob("*") if path.is_file()):
        for kind in kinds(each, "from another run", "of a newer version", "read-only", "a folder in its place"):
            path = restored() / relative
            if _inflicted(path, relative, kind, runs, generator):
                yield _judged(
                    f"`{_shown(relative, newest)}`, resume",
                    kind,
                    lambda kind=kind: _as_nobody(kind, folder, lambda: resumption.read(folder)),
                    lambda found: found == intact,
                    lambda message, path=path: _names(message, path, folder),
                )
    for path in restored().glob("checkpoints/*.safetensors"):
        if path.name == newest.name or generator.random() < 0.5:
            path.unlink()
    yield _judged(
        "all newer checkpoints, resume", "removed", lambda: resumption.read(folder), lambda found: found == intact
    )


def _shown(relative: pathlib.Path, newest: pathlib.Path) -> str:
    if relative.suffix == ".safetensors" and relative.parent.name == "checkpoints":
        return "newest checkpoint" if relative.name == newest.name else "older checkpoint"
    return str(relative)


def _inflicted(path: pathlib.Path, relative: pathlib.Path, kind: str, runs: Runs, generator: random.Random) -> bool:
    """Does it, and returns whether there is anything to do it to."""
    if kind == "from another run":
        other = runs.other / relative
        if not other.exists() or other.read_bytes() == path.read_bytes():
            return False
        shutil.copy(other, path)
    elif kind == "of a newer version":
        text = path.read_bytes()
        for old, new in ((b'"version": 1', b'"version": 9'), (b'"format_version":1', b'"format_version":9')):
            changed = text.replace(old, new).replace(old.replace(b'"', b'\\"'), new.replace(b'"', b'\\"'))
            if changed != text:
                path.write_bytes(changed)
                return True
        return False
    elif kind == "a folder in its place":
        path.unlink()
        path.mkdir()
    elif kind != "read-only":
        if not path.stat().st_size:
            return False
        damage(path, kind, generator)
    return True


def _as_nobody(kind: str, folder: pathlib.Path, work: Callable[[], Any]) -> Any:
    """Does work as a user for whom read-only is read-only: root may write whatever the mode says."""
    if kind != "read-only":
        return work()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY)
        path.chmod(0o500 if path.is_dir() else 0o400)
    os.seteuid(_NOBODY)
    try:
        return work()
    finally:
        os.seteuid(0)


def _judged(
    target: str,
    kind: str,
    work: Callable[[], Any],
    same: Callable[[Any], bool],
    clear: Callable[[str], bool] = lambda message: True,
) -> Outcome:
    """Returns the outcome of a fault: refused in clear words, without effect, or worse."""
    try:
        found = work()
    except InputError as error:
        result = DETECTED if clear(str(error)) else CRASHED
        return Outcome(target=target, fault=kind, result=result, about=str(error))
    except OSError as error:
        # The command line makes one line of it: it names the file.
        result = DETECTED if error.filename and error.errno is not None else CRASHED
        return Outcome(target=target, fault=kind, result=result, about=repr(error))
    except Exception as error:
        return Outcome(target=target, fault=kind, result=CRASHED, about=f"{type(error).__name__}: {error}"[:500])
    return Outcome(target=target, fault=kind, result=HARMLESS if same(found) else SILENT)


def reported(runs: Runs, work: pathlib.Path, each: int, generator: random.Random) -> Iterator[Outcome]:
    """Damages each file of a finished run, and checks its report: no smaller ε may come of it unnoticed."""
    folder = work / "reported"
    before = reports.check(runs.finished).problems
    if before:
        raise RuntimeError(f"the undisturbed run has problems: {before}")
    headline = reports.headline(reports.build(runs.finished, realised=True))

    def work_of(name: str) -> bool:
        found = reports.check(folder)
        # A page that does not follow from its report is a warning: the report is what is compared.
        told = [*found.problems, *(text for text in found.warnings if name == names.REPORT_TEXT and name in text)]
        if told:
            raise InputErrorOfCommand(told[0])
        return reports.headline(reports.build(folder, realised=True)) == headline

    for name in _REPORTED:
        for kind in kinds(each, "from another run"):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(runs.finished, folder)
            if _inflicted(folder / name, pathlib.Path(name), kind, runs, generator):
                holds = _holds(folder, runs.finished, name)
                yield _judged(f"`{name}`, report --check", kind, lambda name=name: work_of(name), holds)


def _holds(folder: pathlib.Path, intact: pathlib.Path, name: str) -> Callable[[Any], bool]:
    """Returns whether damage that was not found out matters: ε must be the same, and the file claim nothing."""
    claims = name not in ("metrics.csv", "configuration.toml")
    return lambda same_headline: (
        same_headline
        and not (claims and (folder / name).exists() and (folder / name).read_bytes() != (intact / name).read_bytes())
    )


def loaded(work: pathlib.Path, data: pathlib.Path, each: int, generator: random.Random) -> Iterator[Outcome]:
    """Damages an artifact of each kind, and a data set."""
    schema = tff_mf.MinSep(min_sep=8, max_participations=2)
    mechanisms = {
        "BLT": tff_mf.BLT.production("b400"),
        "banded": tff_mf.Banded(values=np.random.default_rng(0).uniform(0.5, 1, size=(3, 16))),
        "tree": tff_mf.Tree(16, variant="full"),
        "optimized Toeplitz": tff_mf.optimize_banded_toeplitz(rounds=16, bands=4, participation=schema),
    }
    path = work / "artifact.safetensors"
    for name, mechanism in mechanisms.items():
        for kind in kinds(each, "of a newer version"):
            path.unlink(missing_ok=True)
            tff_mf.save(mechanism, path)
            if _inflicted(path, pathlib.Path(path.name), kind, None, generator):
                same = lambda found, mechanism=mechanism: found == mechanism  # noqa: E731
                clear = lambda message: path.name in message  # noqa: E731
                yield _judged(f"artifact ({name})", kind, lambda: tff_mf.load(path), same, clear)
    words, damaged = sqlite.load_word_counts(data), work / "damaged.sqlite"
    for kind in kinds(each):
        shutil.copy(data, damaged)
        damage(damaged, kind, generator)
        clear = lambda message: damaged.name in message  # noqa: E731
        # Text that changed is other text: nothing is claimed of it. What matters is that reading it ends well.
        yield _judged("data set", kind, lambda: _read(damaged), lambda found: bool(words), clear)


def _read(path: pathlib.Path) -> Any:
    return sqlite.load_word_counts(sqlite.checked(path), 100)


def outcomes(work: pathlib.Path, *, inputs: int, seed: int, only: str) -> Iterator[Outcome]:
    """Yields what came of each damage, of each kind `inputs` times, to the artifacts, data or runs with a text."""
    tf.get_logger().setLevel("ERROR")
    data, generator = work / "small.sqlite", random.Random(seed)
    pydoc.write_pydoc(data, ["scipy"], progress=False)
    # Forks first: a process that has computed with TensorFlow must not be forked.
    runs = make(data, work)
    if only in "artifacts and data":
        yield from loaded(work, data, inputs, generator)
    if only in "reports":
        yield from reported(runs, work, inputs, generator)
    if only in "resumed runs":
        yield from going_on(runs, work, inputs, generator)
