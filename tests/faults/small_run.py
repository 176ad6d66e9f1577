"""A small run of `tff-mf train` in processes of its own, started within a fraction of a second.

TFF takes ten seconds to import: this process imports it once, computes nothing with it, and each command is a fork.
"""

import atexit
import contextlib
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable

import psutil

from tff_mf.experiments import cli

ROUNDS = 9


def flags(data: pathlib.Path, out: pathlib.Path, *, mechanism: str, seed: int | None) -> list[str]:
    """Returns the arguments of a run: one sentence a client, since the order of more is random."""
    repeatable = ["--noise-multiplier", "0.01", "--set", f"insecure_seed={seed}", "--without-epsilon"]
    noise = ["--noise-multiplier", "5"] if seed is None else repeatable
    return [
        *("train", "--force", "--mechanism", mechanism, "--dataset", f"sqlite:{data}", "--out", str(out), *noise),
        *("--rounds", str(ROUNDS), "--clients-per-round", "4", "--min-sep", "2", "--max-participations", "5"),
        *("--delta", "1e-6", "--set", "model=conv", "--set", "vocab_size=100", "--set", "embedding_size=4"),
        *("--set", "units=4"),
        *("--set", "max_examples=1", "--set", "batch_size=1", "--set", "evaluate_every=4"),
        *("--set", "evaluation_examples=20"),
        *("--set", "checkpoint_every=2"),
    ]


class Child:
    """A command in a process of its own.

    Attributes:
        pid: Its process id.
        log: What it printed.
    """

    def __init__(
        self,
        arguments: list[str],
        log: pathlib.Path,
        prepare: Callable[[], None] = lambda: None,
        main: Callable[[], None] = cli.main,
    ) -> None:
        self.log = log
        self.status: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, log, prepare, main)

    def stands_still(self, seconds: float) -> bool:
        """Waits until it is stopped or has ended, and returns whether it is stopped."""
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return False

    def ended(self) -> bool:
        """Returns whether it has ended, without waiting."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait(self, seconds: float) -> int | None:
        """Returns its exit status once it has ended, None if it has not after so many seconds."""
        deadline = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.status

    def send(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if not self.ended():
            os.kill(self.pid, number)

    def workers(self) -> list[psutil.Process]:
        """Returns the processes that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def text(self) -> str:
        """Returns what it printed."""
        return self.log.read_text(errors="replace")


def _become(arguments: list[str], log: pathlib.Path, prepare: Callable[[], None], main: Callable[[], None]) -> None:
    status = 1
    # Until the command has handlers of its own, an interrupt ends it as it would end any program that starts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.setsid()
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv[1:] = arguments
        prepare()
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        # Nothing gets past this point, whatever fails: a fork must never continue what its parent does.
        try:
            # As Python ends: TFF's worker is ended by what was registered for it.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def finish(
    arguments: list[str],
    log: pathlib.Path,
    prepare: Callable[[], None] = lambda: None,
    main: Callable[[], None] = cli.main,
) -> Child:
    """Runs a command to its end, and returns it.

    Raises:
        RuntimeError: If it does not end.
    """
    child = Child(arguments, log, prepare, main)
    if child.wait(600) is None:
        os.killpg(child.pid, 9)
        child.wait(10)
        raise RuntimeError(f"{arguments[:2]} hangs: {child.text()[-1000:]}")
    return child
