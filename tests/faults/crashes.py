"""Strikes a command at its writes, fsyncs and renames, and compares what goes on with an undisturbed run.

A command stands still before the event of a number, and what strikes it then comes from outside, as it does in life.
"""

import contextlib
import dataclasses
import errno
import mmap
import os
import pathlib
import random
import resource
import shutil
import signal
import stat
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import small_run
from commands import COMMANDS, Command, DifferentError, check_intact, twice
from grpc import _channel, _utilities
from outcomes import CRASHED, LOST, RESUMED, TWICE, Outcome

_PATIENCE = 600.0
_ORPHANS_SECONDS = 120.0
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.link", "os.truncate", "sqlite3.connect")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Prepare = Callable[[], None]


def _at_events(folder: pathlib.Path, event: Callable[[], None]) -> None:
    """Calls `event` before each change of a file in a folder, and before each fsync."""

    def hook(name: str, given: tuple[Any, ...]) -> None:
        changes = name in _CHANGES or (name == "open" and isinstance(given[2], int) and given[2] & _WRITES)
        if changes and str(given[0]).startswith(str(folder)):
            event()

    real = os.fsync
    os.fsync = lambda descriptor: (event(), real(descriptor))[1]
    sys.addaudithook(hook)


class Target:
    """A command, its data, an undisturbed run of it, and the number of its events."""

    def __init__(self, command: Command, data: pathlib.Path, work: pathlib.Path) -> None:
        self.command, self.data, self.work = command, data, work / command.name
        self.expected = self.work / "expected"
        self.expected.mkdir(parents=True)
        count = mmap.mmap(-1, 8)

        def counted() -> None:
            count[:] = (int.from_bytes(count[:]) + 1).to_bytes(8)

        arguments = command.arguments(data, self.expected)
        child = self.finished(arguments, lambda: _at_events(self.expected, counted))
        self.events = int.from_bytes(count[:])
        if child.status != 0:
            raise RuntimeError(f"{command.name} fails without a fault: {child.text()[-2000:]}")

    def finished(self, arguments: list[str], prepare: Prepare = lambda: None) -> small_run.Child:
        return small_run.finish(arguments, self.work / "finished.log", prepare, self.command.main)

    def same(self, folder: pathlib.Path) -> bool:
        with contextlib.suppress(Exception):
            check_intact(folder)
            self.command.same(folder, self.expected)
            return True
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Struck:
    """A command that stands still before one of its events, unless it has ended."""

    target: Target
    folder: pathlib.Path
    child: small_run.Child
    generator: random.Random

    def goes_on(self) -> list[str]:
        """Lets it go on to its end, and returns what is wrong with that: a traceback is no way to say anything."""
        self.child.send(signal.SIGCONT)
        if self.child.wait(_PATIENCE) is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait(10)
            return ["hangs"]
        before, found, after = self.child.text().partition("Traceback")
        return [f"a traceback: {before[-200:]}{found}{after[:3000]}"] if self.child.status and found else []

    def killed(self) -> list[str]:
        """SIGKILL of Python; a worker that outlives its run would hold its memory and its output."""
        others = self.child.workers()
        self.child.send(signal.SIGKILL)
        self.child.wait(10)
        return _left(others)

    def killed_later(self) -> list[str]:
        """SIGKILL a moment after the event, as in the middle of what SQLite or TensorFlow writes."""
        self.child.send(signal.SIGCONT)
        self.child.wait(self.generator.uniform(0.0, 0.5))
        return self.killed()

    def worker_killed(self) -> list[str]:
        """SIGKILL of TFF's worker: the run must say so in a line, and end."""
        for each in self.child.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.name().startswith("worker_binary"):
                    each.kill()
        return self.goes_on()

    def interrupted(self, number: int = signal.SIGINT, times: int = 1) -> list[str]:
        others = self.child.workers()
        for _ in range(times):
            self.child.send(number)
            self.child.send(signal.SIGCONT)
            self.child.wait(self.generator.uniform(0.0, 0.5))
        return self.goes_on() + _left(others)

    def started_twice(self) -> list[str]:
        """A second process in the folder of a run, to resume it or to start again, is refused and names the folder."""
        arguments, wrong = self.target.command.arguments(self.target.data, self.folder), []
        for again in ([], ["--resume"]):
            second = self.target.finished([*arguments, *again])
            # Warnings about the settings may come before the refusal.
            if second.status != 2 or str(self.folder) not in second.text().strip().splitlines()[-1]:
                wrong.append(f"a second process ends with {second.status}: {second.text()[-300:]}")
        return wrong + self.goes_on()

    def readable(self) -> list[str]:
        """Checkpoints that others can read after the run was killed: said, and closed."""
        self.killed()
        checkpoints = self.folder / "run" / "checkpoints"
        checkpoints.chmod(0o755)
        for path in checkpoints.iterdir():
            path.chmod(0o644)
        child = self.target.finished(self.target.command.again(self.target.data, self.folder))
        closed = stat.S_IMODE(checkpoints.stat().st_mode) == 0o700
        said = "Others could read the checkpoints" in child.text()
        return [] if closed and said and child.status == 0 else [f"left open, or nothing said: {child.text()[-300:]}"]


def _left(processes: list[psutil.Process]) -> list[str]:
    _, alive = psutil.wait_procs(processes, timeout=_ORPHANS_SECONDS)
    return ["a process outlived it"] if [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] else []


def _full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _clock_set_back() -> None:
    """A clock that is years behind, and goes backwards."""
    # Its channels have the system's clock, and would take each deadline for one that is past, and wait for ever.
    for module in (_channel, _utilities):
        module.time = types.SimpleNamespace(**vars(time))
    now = [1e9]

    def backwards() -> float:
        now[0] -= 1.0
        return now[0]

    time.time = backwards


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        strike: Strikes a command that stands still, and returns what was wrong with how it took that.
        prepare: What runs in the new process before the command.
        quota: Whether no file may grow beyond some kilobytes: the system's own refusal, EFBIG.
        full: Whether the disk is full from the event on, in place of standing still.
    """

    strike: Callable[[Struck], list[str]]
    prepare: Prepare = lambda: None
    quota: bool = False
    full: bool = False

    def armed(self, folder: pathlib.Path, number: int, generator: random.Random) -> Prepare:
        """Returns what runs in the new process, and stops it before the event of a number."""
        left, size = [number], int(2 ** generator.uniform(5, 15))

        def event() -> None:
            left[0] -= 1
            if self.full and left[0] <= 0:
                _full_disk()
            elif left[0] == 0:
                os.kill(os.getpid(), signal.SIGSTOP)

        def prepare() -> None:
            self.prepare()
            if self.quota:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            _at_events(folder, event)

        return prepare


FAULTS = {
    "SIGKILL": Fault(Struck.killed),
    "SIGKILL, a moment later": Fault(Struck.killed_later),
    "SIGKILL, clock set back": Fault(Struck.killed, prepare=_clock_set_back),
    "SIGKILL of the worker": Fault(Struck.worker_killed),
    "Ctrl-C": Fault(Struck.interrupted),
    "Ctrl-C twice": Fault(lambda struck: struck.interrupted(times=2)),
    "SIGTERM": Fault(lambda struck: struck.interrupted(signal.SIGTERM)),
    "disk full (ENOSPC)": Fault(Struck.goes_on, full=True),
    "file too large (quota)": Fault(Struck.goes_on, quota=True),
    "started twice": Fault(Struck.started_twice),
    "checkpoints that others can read": Fault(Struck.readable),
}


def crash(target: Target, name: str, number: int, generator: random.Random) -> Outcome:
    """Strikes a command at an event, and once more while it goes on; compares its end with an undisturbed run."""
    command, fault, folder = target.command, FAULTS[name], target.work / "struck"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    result, wrong = RESUMED, []
    for arguments in (command.arguments, command.again):
        prepare = fault.armed(folder, number, generator)
        child = small_run.Child(arguments(target.data, folder), target.work / "struck.log", prepare, command.main)
        struck = Struck(target=target, folder=folder, child=child, generator=generator)
        wrong += fault.strike(struck) if child.stands_still(_PATIENCE) else struck.goes_on()
        try:
            check_intact(folder)
        except Exception as error:
            result = TWICE if isinstance(error, DifferentError) else LOST
            wrong.append(f"{type(error).__name__}: {error}")
        if target.same(folder):
            break
    else:
        child = target.finished(command.again(target.data, folder))
        if child.status != 0:
            wrong.append(f"cannot go on: {child.text()[-500:]}")
        elif not target.same(folder):
            wrong.append("ends otherwise than undisturbed")
        result = result if target.same(folder) else TWICE if twice(folder / "run") else LOST
    result = CRASHED if wrong and result == RESUMED else result
    return Outcome(target=command.name, fault=name, result=result, about="; ".join(wrong))


def run_all(
    data: pathlib.Path, work: pathlib.Path, counts: dict[str, dict[str, int | None]], seed: int
) -> Iterator[Outcome]:
    """Yields the outcomes of all faults on all commands: at as many events as `counts` says, `None` for every one."""
    generator = random.Random(seed)
    for command in COMMANDS:
        target = Target(command, data, work) if counts.get(command.name) else None
        for fault, times in counts.get(command.name, {}).items():
            every = range(1, target.events + 1)
            some = every if times is None else sorted(generator.sample(every, min(times, len(every))))
            if fault in ("started twice", "checkpoints that others can read"):
                # In the middle of the run, where it has a ledger, and checkpoints.
                some = [target.events // 2]
            for number in some:
                yield crash(target, fault, number, generator)
