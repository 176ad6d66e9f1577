"""Every command line of README and docs runs in a shell, as for a reader who has just installed the package.

Of lines between backticks, those are run that are whole: with numbers, or of a file.

The pages are run in order, in a copy of the checkout, with the wheel installed into a separate environment by README's
own line. README's first block is left out: `.ci/run` runs it, of which these tests are a part (`front_door.py`).
`command_lines.toml` gives long lines smaller sizes, and names the few lines that do not run here. Of README each line
is a process of its own; of other pages, a plain `tff-mf` with its arguments is a fork of a process that has the
installed package and TFF imported.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator

import pytest

pytest.importorskip("tensorflow_federated")

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent / "forks"))
import forking
import front_door

HERE = pathlib.Path(__file__).resolve().parent.parent
# A page may use what those of these that stand before it make: they are read first, whatever the order of the tests.
PAGES = (
    "README",
    "docs/experiments",
    "docs/report",
    "docs/swap-in-tff",
    "docs/deployment",
    "docs/conformance",
)
# Their lines are what a reader starts with.
IN_NEW_PROCESSES = ("README.md",)
LINE_SECONDS = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    page: str
    line: str
    why: str
    append: str = ""
    before: str = ""
    killed: str = ""
    status: int = 0
    starts: bool = False
    writes: dict[str, int] = dataclasses.field(default_factory=dict)


READ = tomllib.loads((HERE / "tests/command_lines.toml").read_text())
ENTRIES = [_Entry(**entry) for entry in READ["entry"]]
NOT_RUN = {entry["line"]: entry["why"] for entry in READ["not_run"]}


def _pages() -> list[str]:
    found = ["README.md", *sorted(str(path.relative_to(HERE)) for path in (HERE / "docs").rglob("*.md"))]
    return sorted(found, key=lambda page: ([*PAGES, page.removesuffix(".md")].index(page.removesuffix(".md")), page))


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (HERE / page).read_text(), re.S | re.M)


def _lines(page: str) -> list[str]:
    """The command lines of a page, each in one piece, without those that CI runs before the tests."""
    whole = re.sub(r" *\\\n *", " ", "".join(_blocks(page, "bash")))
    found = [line.strip() for line in whole.splitlines() if line.strip() and not line.startswith("#")]
    prose = re.sub(r"^```.*?^```", "", (HERE / page).read_text(), flags=re.S | re.M)
    between = [re.sub(r"\s+", " ", line) for line in re.findall(r"`(tff-mf\s[^`]*)`", prose)]
    found += [line for line in between if re.search(r" \d|\.toml", line)]
    return found[len(front_door.lines()) :] if page == front_door.PAGE else found


def _entry_of(page: str, line: str) -> _Entry:
    found = [entry for entry in ENTRIES if entry.page == page and line.startswith(entry.line)]
    assert len(found) <= 1, line
    return found[0] if found else _Entry(page=page, line=line, why="")


def test_each_entry_belongs_to_a_line_and_says_why():
    """At most five lines do not run."""
    every = "".join((HERE / page).read_text() for page in _pages())
    assert len(NOT_RUN) <= 5
    assert all(line in every and why for line, why in NOT_RUN.items())
    for entry in ENTRIES:
        assert any(line.startswith(entry.line) for line in _lines(entry.page)), entry
        assert entry.why, entry


class _Shell:
    """A shell of a reader who has only a copy of the checkout."""

    def __init__(self, root: pathlib.Path):
        self.folder = root / "checkout"
        self._home = root / "home"
        self._environment = root / "environment"
        self._ran: set[str] = set()
        self._pages: set[str] = set()
        self._log = root / "log"
        self._forks: forking.Server | None = None
        _copy_checkout(self.folder)
        self._home.mkdir()
        _make_environment(self._environment)

    def read(self, page: str) -> None:
        """Runs the lines of a page, unless they ran."""
        for line in () if page in self._pages else _lines(page):
            if not line.startswith(tuple(NOT_RUN)):
                start = time.monotonic()
                self.run(page, line)
                print(f"{time.monotonic() - start:6.1f} s  {line}")
        self._pages.add(page)

    def run(self, page: str, line: str) -> None:
        entry = _entry_of(page, line)
        for name, number in entry.writes.items():
            language = "python" if name.endswith(".py") else "toml"
            (self.folder / name).write_text(_blocks(page, language)[number])
        if entry.before:
            status, printed = self._by_shell(entry.before)
            assert status == 0, f"{entry.before}\n{printed}"
        command = " ".join(filter(None, (re.sub(r"\s+#.*", "", line), entry.append)))
        if command in self._ran:
            return
        self._ran.add(command)
        if entry.killed:
            self._kill_when_there_is(entry.killed, command)
            return
        arguments = None if page in IN_NEW_PROCESSES or entry.starts else _arguments(command)
        status, printed = self._by_shell(command) if arguments is None else self._forked(arguments)
        assert status == entry.status, f"{command}\n{printed}"
        assert "Traceback" not in printed, f"{command}\n{printed}"
        # TensorFlow's own log, as of cuDNN, is shown on request only.
        assert not command.startswith("tff-mf ") or "tensorflow/" not in printed, f"{command}\n{printed}"

    def kill(self) -> None:
        if self._forks is not None:
            self._forks.close()

    def _by_shell(self, command: str) -> tuple[int, str]:
        """Runs a line in a process group of its own, as a terminal does: its exit status, and all that it printed."""
        started = self._started(command)
        try:
            return started.wait(LINE_SECONDS), self._log.read_text()
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            raise

    def _kill_when_there_is(self, pattern: str, command: str) -> None:
        """Starts a line, and kills it and what it has started as soon as it has written a file."""
        started, until = self._started(command), time.monotonic() + LINE_SECONDS
        while not list(self.folder.glob(pattern)):
            ended_early = started.poll() is not None or time.monotonic() > until
            assert not ended_early, f"{command}\n{self._log.read_text()}"
            time.sleep(0.05)
        os.killpg(started.pid, signal.SIGKILL)
        assert started.wait() == -signal.SIGKILL

    def _started(self, command: str) -> subprocess.Popen:
        # Into a file: TFF's worker may outlive the line, and would keep a pipe open.
        with self._log.open("w") as log:
            return subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def _forked(self, arguments: list[str]) -> tuple[int, str]:
        """Runs `tff-mf` as it is installed."""
        if self._forks is None:
            # After README's line that installs it.
            self._forks = forking.Server(python=self._environment / "bin" / "python")
        done = forking.run_program(
            forking.COMMAND,
            arguments,
            server=self._forks,
            folder=self.folder,
            environment=self._variables(),
            timeout=LINE_SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(self._environment / "bin"), *os.defpath.split(os.pathsep)])
        return {"PATH": path, "HOME": str(self._home), "LANG": "C.UTF-8"}


def _arguments(command: str) -> list[str] | None:
    """Returns the arguments of a line that is `tff-mf` alone, and None of a line for a shell."""
    if not command.startswith("tff-mf ") or re.search(r"[|&;<>$`*~]", command):
        return None
    return shlex.split(command)[1:]


def _copy_checkout(folder: pathlib.Path) -> None:
    """Copies what git tracks or would track, as it is on disk."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (HERE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, folder / name)


def _make_environment(folder: pathlib.Path) -> None:
    """Makes an environment with all dependencies, and pip among them, without this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files in it are not read: our editable installation stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "bin" / "pip").write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m pip "$@"\n')
    (folder / "bin" / "pip").chmod(0o700)


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Iterator[_Shell]:
    made = _Shell(tmp_path_factory.mktemp("reader"))
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("page", [page for page in _pages() if _lines(page)])
def test_the_command_lines_of_a_page_run_in_order(page, shell):
    pages = _pages()
    for before in pages[: min(pages.index(page), len(PAGES))]:
        shell.read(before)
    shell.read(page)
