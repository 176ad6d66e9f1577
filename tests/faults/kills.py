"""Processes killed, interrupted, starved of disk and started twice, at random moments."""

import contextlib
import errno
import os
import pathlib
import random
import resource
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator

import psutil
import small_run
from commands import COMMANDS, Command, DifferentError, twice
from outcomes import CRASHED, DETECTED, LOST, RESUMED, TWICE, Outcome

_PATIENCE = 600.0
_ORPHANS_SECONDS = 120.0
_MISSES = 100


class Target:
    """A command, its data, an undisturbed run of it, and how long that took."""

    def __init__(self, command: Command, data: pathlib.Path, work: pathlib.Path) -> None:
        self.command, self.data, self.work = command, data, work / command.name
        self.expected = self.work / "expected"
        self.expected.mkdir(parents=True)
        start = time.monotonic()
        child = small_run.finish(command.arguments(data, self.expected), self.work / "expected.log")
        self.seconds = time.monotonic() - start
        if child.status != 0:
            raise RuntimeError(f"{command.name} fails without a fault: {child.text()[-2000:]}")

    def folder(self, name: str) -> pathlib.Path:
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


def _gone(processes: list[psutil.Process]) -> bool:
    """Returns whether the processes are gone; a worker that outlives its run would hold its memory and its output."""
    _, alive = psutil.wait_procs(processes, timeout=_ORPHANS_SECONDS)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def chain(
    target: Target,
    fault: str,
    strike: Callable[[small_run.Child, random.Random], list[str]],
    count: int,
    generator: random.Random,
    prepare: Callable[[random.Random], Callable[[], None]] = lambda generator: lambda: None,
) -> list[Outcome]:
    """Starts a command, strikes it, lets it go on and strikes it again; compares with the undisturbed run at its end.

    Args:
        target: The command.
        fault: What the strike is called.
        strike: Does it, and returns what was wrong with how the process took it.
        count: How often.
        generator: Randomness of moments.
        prepare: Makes what runs in the new process before the command.
    """
    found: list[Outcome] = []
    command, starts = target.command, 0
    while len(found) < count:
        starts += 1
        if starts > count + _MISSES:
            raise RuntimeError(f"{fault}: {command.name} ends sooner than it is struck, {_MISSES} times")
        folder, began = target.folder("struck"), len(found)
        arguments = command.arguments(target.data, folder)
        while len(found) < count:
            child = small_run.Child(arguments, target.work / "struck.log", prepare(generator))
            wrong = strike(child, generator)
            if child.status == 0 and not wrong:
                break
            result = CRASHED if wrong else RESUMED
            try:
                command.intact(folder)
            except DifferentError as error:
                result, wrong = TWICE, [str(error)]
            except Exception as error:
                result, wrong = LOST, [f"{type(error).__name__}: {error}"]
            found.append(Outcome(target=command.name, fault=fault, result=result, about="; ".join(wrong)))
            arguments = command.again(target.data, folder)
        found[began:] = _after(target, folder, found[began:])
    return found


def _after(target: Target, folder: pathlib.Path, struck: list[Outcome]) -> list[Outcome]:
    """Lets a struck run end, and returns its outcomes: lost, all of them, if it ends as another run."""
    command = target.command
    problem = ""
    if not _done(target, folder):
        child = small_run.finish(command.again(target.data, folder), target.work / "last.log")
        if child.status != 0:
            problem = f"cannot go on: {child.text()[-500:]}"
    if not problem:
        try:
            command.same(folder, target.expected)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    if not problem:
        return struck
    released_twice = command.computes and twice(folder / "run")
    result = TWICE if released_twice else LOST
    return [Outcome(target=each.target, fault=each.fault, result=result, about=problem) for each in struck]


def _done(target: Target, folder: pathlib.Path) -> bool:
    with contextlib.suppress(Exception):
        target.command.same(folder, target.expected)
        return True
    return False


def _moment(target: Target) -> Callable[[random.Random], float]:
    return lambda generator: generator.uniform(0.0, 1.1 * target.seconds)


def _struck(child: small_run.Child, seconds: float) -> bool:
    """Waits for a moment, and returns whether the process still runs then."""
    return child.wait(seconds) is None


def kill(target: Target) -> Callable[[small_run.Child, random.Random], list[str]]:
    """SIGKILL of Python."""

    def strike(child: small_run.Child, generator: random.Random) -> list[str]:
        if not _struck(child, _moment(target)(generator)):
            return _ended(child)
        others = child.workers()
        child.send(signal.SIGKILL)
        child.wait(10)
        return [] if _gone(others) else ["a process outlived it"]

    return strike


def kill_worker(target: Target) -> Callable[[small_run.Child, random.Random], list[str]]:
    """SIGKILL of TFF's worker: the run must say so in a line, and end."""

    def strike(child: small_run.Child, generator: random.Random) -> list[str]:
        _struck(child, _moment(target)(generator))
        deadline = time.monotonic() + 30
        while not (workers := _workers(child)) and not child.ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        if child.wait(_PATIENCE) is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
            return ["hangs after its worker died"]
        return _ended(child)

    return strike


def _workers(child: small_run.Child) -> list[psutil.Process]:
    found = []
    for each in child.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name().startswith("worker_binary"):
                found.append(each)
    return found


def interrupt(target: Target, times: int, number: int = signal.SIGINT) -> Callable[..., list[str]]:
    """Ctrl-C, once or several times."""

    def strike(child: small_run.Child, generator: random.Random) -> list[str]:
        if not _struck(child, _moment(target)(generator)):
            return _ended(child)
        others = child.workers()
        for _ in range(times):
            child.send(number)
            child.wait(generator.uniform(0.0, 0.5))
        if child.wait(_PATIENCE) is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
            return ["does not end when interrupted"]
        return ([] if _gone(others) else ["a process outlived it"]) + _ended(child)

    return strike


def _ended(child: small_run.Child) -> list[str]:
    """Returns what is wrong with how a process ended by itself: a traceback is no way to say anything."""
    text = child.text()
    if child.status == 0 or "Traceback" not in text:
        return []
    before, _, after = text.partition("Traceback")
    return [f"a traceback: {before[-200:]}Traceback{after[:3000]}"]


def let_end(child: small_run.Child, generator: random.Random) -> list[str]:
    """Waits for a process that was doomed before it started."""
    del generator
    if child.wait(_PATIENCE) is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)
        return ["hangs"]
    return _ended(child)


def full_disk(target: Target) -> Callable[[random.Random], Callable[[], None]]:
    """ENOSPC from the n-th time on that anything is made durable."""

    def prepared(generator: random.Random) -> Callable[[], None]:
        left, real = [generator.randrange(target.command.durable)], os.fsync

        def fsync(descriptor: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor)

        return lambda: setattr(os, "fsync", fsync)

    return prepared


def quota(generator: random.Random) -> Callable[[], None]:
    """No file may grow beyond some kilobytes: the system's own refusal, EFBIG."""
    size = int(2 ** generator.uniform(5, 15))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def clock_set_back(generator: random.Random) -> Callable[[], None]:
    """A clock that is years behind, and goes backwards."""
    start = generator.uniform(0, 1e9)

    def prepare() -> None:
        now = [start]

        def backwards() -> float:
            now[0] -= 1.0
            return now[0]

        time.time = backwards

    return prepare


def started_twice(target: Target) -> Iterator[Outcome]:
    """A second process in the folder of a run, to resume it and to start again."""
    folder = target.folder("twice")
    first = small_run.Child(target.command.arguments(target.data, folder), target.work / "first.log")
    while not (folder / "run" / "ledger.jsonl").exists() and not first.ended():
        time.sleep(0.01)
    for fault, arguments in (
        ("second process, --resume", [*target.command.arguments(target.data, folder), "--resume"]),
        ("second process, new run", target.command.arguments(target.data, folder)),
    ):
        first.send(signal.SIGSTOP)
        second = small_run.finish(arguments, target.work / "second.log")
        first.send(signal.SIGCONT)
        refused = second.status == 2 and len(second.text().strip().splitlines()) == 1
        yield Outcome(
            target=target.command.name, fault=fault, result=DETECTED if refused else CRASHED, about=second.text()[-300:]
        )
    first.wait(_PATIENCE)
    target.command.same(folder, target.expected)


def readable(target: Target) -> Iterator[Outcome]:
    """A folder of checkpoints that others can read: said, and closed."""
    folder = target.folder("readable")
    child = small_run.Child(target.command.arguments(target.data, folder), target.work / "readable.log")
    checkpoints = folder / "run" / "checkpoints"
    while not list(checkpoints.glob("*.safetensors")) and not child.ended():
        time.sleep(0.01)
    child.send(signal.SIGKILL)
    child.wait(10)
    checkpoints.chmod(0o755)
    for path in checkpoints.iterdir():
        path.chmod(0o644)
    child = small_run.finish(target.command.again(target.data, folder), target.work / "readable.log")
    closed = stat.S_IMODE(checkpoints.stat().st_mode) == 0o700
    said = "Others could read the checkpoints" in child.text()
    target.command.same(folder, target.expected)
    result = DETECTED if closed and said and child.status == 0 else CRASHED
    yield Outcome(target=target.command.name, fault="checkpoints that others can read", result=result)


def run_all(data: pathlib.Path, work: pathlib.Path, counts: dict[str, dict[str, int]], seed: int) -> Iterator[Outcome]:
    """Yields the outcomes of all faults on all commands, so many of each kind as `counts` says."""
    generator = random.Random(seed)
    nothing = lambda generator: lambda: None  # noqa: E731
    for command in COMMANDS:
        wanted = counts.get(command.name, {})
        if not wanted:
            continue
        target = Target(command, data, work)
        strikes = {
            "SIGKILL": (kill(target), nothing),
            "SIGKILL of the worker": (kill_worker(target), nothing),
            "Ctrl-C": (interrupt(target, 1), nothing),
            "Ctrl-C twice": (interrupt(target, 2), nothing),
            "SIGTERM": (interrupt(target, 1, signal.SIGTERM), nothing),
            "disk full (ENOSPC)": (let_end, full_disk(target)),
            "file too large (quota)": (let_end, quota),
            "SIGKILL, clock set back": (kill(target), clock_set_back),
        }
        for fault, (strike, prepare) in strikes.items():
            if wanted.get(fault):
                yield from chain(target, fault, strike, wanted[fault], generator, prepare)
        if wanted.get("started twice"):
            yield from started_twice(target)
        if wanted.get("readable"):
            yield from readable(target)
