"""Damage to each file of a run, and whether it is found out: when the run goes on, and when its report is checked.

A run goes on by the command itself, in a process of its own, to its end, which is a function of what it reads, as its
noise follows from a seed. It is compared with the end that intact files lead to.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from outcomes import CRASHED, DETECTED, HARMLESS, SILENT, Outcome

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.runs import ledger, metrics, model_file, names
from tff_mf.experiments.training.datasets import pydoc, sqlite

sys.path.append(str(pathlib.Path(__file__).parents[1] / "faults"))
import small_run

_NOBODY = 65534
_REPORTED = ("run.json", "plan.json", "mechanism.safetensors", "ledger.jsonl", "metrics.csv", "summary.json")
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
    """Folders of runs of the same settings.

    Attributes:
        stopped: One that was killed after a checkpoint.
        other: Another one.
        finished: One whose noise is random, to its end.
        arguments: From a folder to the command that goes on there.
    """

    stopped: pathlib.Path
    other: pathlib.Path
    finished: pathlib.Path
    arguments: Callable[[pathlib.Path], list[str]]


def make(data: pathlib.Path, work: pathlib.Path) -> Runs:
    """Runs what all file faults are done to; only forks compute."""

    def arguments(folder: pathlib.Path, seed: int | None = 7) -> list[str]:
        return small_run.flags(data, folder, mechanism="identity", seed=seed)

    for name in ("stopped", "other"):
        small_run.finish(arguments(work / name), work / f"{name}.log", _killed_in_round_8)
        (work / name / ".lock").unlink()
    finished = work / "finished"
    child = small_run.finish(arguments(finished, None), work / "finished.log")
    if child.status:
        raise RuntimeError(child.text()[-2000:])
    return Runs(
        stopped=work / "stopped",
        other=work / "other",
        finished=finished,
        arguments=lambda folder: [*arguments(folder), "--resume"],
    )


def _killed_in_round_8() -> None:
    """Kills this process where the state after round 8 is about to get its name."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "os.link" and os.path.basename(given[1]) == "checkpoint_8.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _resumed(runs: Runs, folder: pathlib.Path, prepare: Callable[[], None]) -> dict[str, Any]:
    """Resumes a run, and returns what its end says.

    Raises:
        InputErrorOfCommand: If it refuses to, as it should if a file is damaged.
        RuntimeError: If it fails in any other way, as it should not.
    """
    child = small_run.finish(runs.arguments(folder), folder.with_suffix(".log"), prepare)
    last = child.text().strip().splitlines()[-1:]
    if child.status == 2 or (child.status and last and last[0].startswith("tff-mf: ")):
        raise InputErrorOfCommand(last[0])
    if child.status:
        raise RuntimeError(child.text()[-500:])
    model, _ = model_file.read_from(folder)
    return {
        "model": {name: (value.dtype.str, value.shape, value.tobytes()) for name, value in model.items()},
        "clients": [(line.round, line.clients) for line in ledger.read_ledger(folder / names.LEDGER).begun],
        "metrics": _metrics(folder),
        "configuration": json.loads((folder / "run.json").read_text()),
        "mechanism": tff_mf.load(folder / "mechanism.safetensors"),
    }


class InputErrorOfCommand(InputError):
    """What the command line refused, as it says it."""


def _metrics(folder: pathlib.Path) -> list[str]:
    # How long rounds took differs from run to run, and is nothing that anything is computed from.
    rows = metrics.read_metrics(folder / names.METRICS).rows
    return [str(sorted((name, value) for name, value in row.items() if name != "seconds")) for row in rows]


def _names(message: str, path: pathlib.Path, folder: pathlib.Path) -> bool:
    """Returns whether a message is one that somebody can act on: short, and about this file or what it says."""
    return len(message) < 1500 and (path.name in message or path.stem in message or str(folder) in message)


def going_on(runs: Runs, work: pathlib.Path, each: int, generator: random.Random) -> Iterator[Outcome]:
    """Damages each file of a stopped run, and resumes it."""
    folder = work / "damaged"

    def restored() -> pathlib.Path:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(runs.stopped, folder)
        return folder

    intact = _resumed(runs, restored(), _as_it_is)
    newest = max(runs.stopped.glob("checkpoints/*.safetensors"), key=lambda path: int(path.stem.split("_")[1]))
    for relative in sorted(path.relative_to(runs.stopped) for path in runs.stopped.rglob("*") if path.is_file()):
        # Each resumes a run to its end, and takes some seconds.
        for kind in kinds(each // 6, "from another run", "of a newer version", "read-only", "a folder in its place"):
            path = restored() / relative
            if _inflicted(path, relative, kind, runs, generator):
                prepare = _read_only(folder) if kind == "read-only" else _as_it_is
                yield _judged(
                    f"`{_shown(relative, newest)}`, resume",
                    kind,
                    lambda prepare=prepare: _resumed(runs, folder, prepare),
                    lambda found: found == intact,
                    lambda message, path=path: _names(message, path, folder),
                )
    for path in restored().glob("checkpoints/*.safetensors"):
        if path.name == newest.name or generator.random() < 0.5:
            path.unlink()
    yield _judged(
        "all newer checkpoints, resume",
        "removed",
        lambda: _resumed(runs, folder, _as_it_is),
        lambda found: found == intact,
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


def _as_it_is() -> None:
    """Prepares nothing."""


def _read_only(folder: pathlib.Path) -> Callable[[], None]:
    """Makes a folder read-only, and returns what makes a process of a user's for whom it is: root may write anyway."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _NOBODY, _NOBODY)
        path.chmod(0o500 if path.is_dir() else 0o400)
    return lambda: os.seteuid(_NOBODY)


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
    headline = reports.build(runs.finished, realised=True).headline

    def work_of(name: str) -> bool:
        found = reports.check(folder)
        if found.problems:
            raise InputErrorOfCommand(found.problems[0])
        return reports.build(folder, realised=True).headline == headline

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
    if only in "resumed runs":
        yield from going_on(runs, work, inputs, generator)
    if only in "artifacts and data":
        yield from loaded(work, data, inputs, generator)
    if only in "reports":
        yield from reported(runs, work, inputs, generator)
