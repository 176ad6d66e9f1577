"""The front door: runs the lines of README's first block as a new user does, and looks at what they leave.

`.ci/run` calls it with the system's Python, before any environment is there, and so it needs the standard library only.
`python3.11 tests/front_door.py 1` runs the first line alone. What a line prints is in build/front-door.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent.parent
PRINTED = HERE / "build" / "front-door"
RESULT = HERE / "build" / "results" / "front-door.xml"
PAGE = "README.md"
MECHANISMS = ("blt", "identity")
# A level of noise, the mechanisms at it, and their guarantee.
GUARANTEE = re.compile(r"[-•] ε = 2, ([a-z; ]+): Simulated: ε≤(\d+\.\d+) at δ=")
# What a line that was run, and everything that it started, has in its environment.
MARK = "TFF_MF_FRONT_DOOR"
LOGGED = re.compile(
    r"round \d+ of \d+(, \d+ s left)?(, validation accuracy 0\.\d+)?|noise / signal = .*|clients of a round .*|"
)
PROGRESS = re.compile(rf"(compare|demo): .*|{LOGGED.pattern}")
PIP_WARNS = "WARNING: "
PNG = b"\x89PNG\r\n\x1a\n"
SMALLEST_FILE = 4_000
LINES_SHOWN = 40
# Beyond this a line hangs. CI has 90 minutes for both, and its slowest machine took 34 for the tests.
MOST_SECONDS = 60 * 60
# Installs the tests' other environments by the pip of the first, on the core that the demo's installation leaves idle.
OTHERS = "until [ -e .venv/.started ]; do sleep 0.2; done; exec nice -n 19 make environments"


class Fault(Exception):
    """What is wrong, in words for the reader of CI's log."""


def lines() -> list[str]:
    """Returns the command lines of README's first block."""
    block = re.search(r"^```bash\n(.*?)^```", (HERE / PAGE).read_text(encoding="utf-8"), re.S | re.M)
    if block is None:
        raise Fault(f"{PAGE} has no block of command lines.")
    return [command for line in block[1].splitlines() if (command := line.split("#")[0].strip())]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A line that has ended.

    Attributes:
        line: The line.
        status: Its exit status.
        start: When it began, in seconds since the epoch.
        seconds: How long it took.
        stdout: What it printed.
        stderr: What it printed on standard error.
        left: The processes that it left running; they are ended.
    """

    line: str
    status: int
    start: float
    seconds: float
    stdout: str
    stderr: str
    left: list[str]


def run(line: str) -> Run:
    """Runs a line in a process of its own, and shows what it prints while it runs."""
    PRINTED.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", line)
    paths = [PRINTED / f"{name}.stdout", PRINTED / f"{name}.stderr"]
    mark = uuid.uuid4().hex
    start = time.time()
    # To files: a worker that is left would keep a pipe open.
    with paths[0].open("wb") as stdout, paths[1].open("wb") as stderr:
        environment = {**os.environ, MARK: mark}
        process = subprocess.Popen(["bash", "-c", line], cwd=HERE, env=environment, stdout=stdout, stderr=stderr)
        with paths[0].open("rb") as printed, paths[1].open("rb") as complained:
            while True:
                ended = process.poll() is not None
                for source in (printed, complained):
                    sys.stdout.buffer.write(source.read())
                sys.stdout.buffer.flush()
                if ended:
                    break
                if time.time() > start + MOST_SECONDS:
                    end_marked(mark)
                time.sleep(0.2)
    seconds = time.time() - start
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    # What is about to end is not left.
    time.sleep(1.0)
    left = end_marked(mark)
    return Run(
        line=line,
        status=process.returncode,
        start=start,
        seconds=seconds,
        stdout=texts[0],
        stderr=texts[1],
        left=left,
    )


def end_marked(mark: str) -> list[str]:
    """Ends the processes that have the mark in their environment, and returns their command lines."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # It has ended, or belongs to somebody else.
            continue
        if marked and command:
            found.append(f"{command[:200]} (process {folder.name})")
            os.kill(int(folder.name), signal.SIGKILL)
    return found


def exit_status(done: Run) -> str:
    """The line succeeds."""
    if done.seconds > MOST_SECONDS:
        raise Fault(f"ended after {MOST_SECONDS} s; the last lines of {PRINTED.relative_to(HERE)}:\n{tail(done)}")
    if done.status:
        raise Fault(f"exit status {done.status}; the last lines of {PRINTED.relative_to(HERE)}:\n{tail(done)}")
    return f"exit status 0 after {done.seconds:.0f} s"


def nothing_left(done: Run) -> str:
    """No process outlives the line, such as a worker of TensorFlow Federated."""
    if done.left:
        raise Fault("left running: " + "; ".join(done.left))
    return "no process is left"


def only_progress_on_stderr(done: Run) -> str:
    """Standard error has lines about progress only: no warning, no traceback."""
    # pip writes first, of indexes and caches of this machine.
    after_pip = itertools.dropwhile(lambda line: line.startswith(PIP_WARNS), done.stderr.splitlines())
    others = [line for line in after_pip if not PROGRESS.fullmatch(line)]
    if others:
        raise Fault(f"{len(others)} unexpected lines on standard error:\n" + "\n".join(others[-LINES_SHOWN:]))
    return "standard error has progress only"


def the_demo(done: Run) -> str:
    """The screen and the file of numbers say the same: BLT is ahead at one ε. Logs and pictures are of this run."""
    found = re.search(r"^written +([^\s,]+)", done.stdout, re.M)
    if found is None:
        raise Fault("the screen does not say where the comparison was written.")
    numbers = json.loads(written(done, f"{found[1]}/comparison.json"))
    levels = {level["mechanism"]: level for level in numbers["levels"]}
    shown = {name: re.findall(rf"^\W*{name}  +(\d+\.\d+)\W*$", done.stdout, re.M) for name in MECHANISMS}
    if set(levels) != set(MECHANISMS) or any(len(cells) != 1 for cells in shown.values()):
        raise Fault(f"not one accuracy of each of {MECHANISMS} is shown and written: {shown}, {sorted(levels)}.")
    for name in MECHANISMS:
        if abs(float(shown[name][0]) - 100 * levels[name]["accuracy"]) > 0.006:
            raise Fault(f"{name}: {shown[name][0]} % on the screen and {levels[name]['accuracy']} in the file.")
    if not float(shown["blt"][0]) > float(shown["identity"][0]) > 0:
        raise Fault(f"BLT is not ahead: {shown}.")
    screen = {
        name: value for names, value in GUARANTEE.findall(" ".join(done.stdout.split())) for name in names.split("; ")
    }
    epsilons = [level["claim"]["epsilon"] for level in levels.values()]
    if set(screen) != set(MECHANISMS) or len(set(screen.values())) != 1:
        raise Fault(f"the screen says ε of {MECHANISMS}: {screen}.")
    if max(epsilons) > min(epsilons) * (1 + 1e-6) or not 0 <= float(screen["blt"]) - max(epsilons) <= 0.001:
        raise Fault(f"ε ≤ {screen['blt']} is on the screen, and {epsilons} in the file.")
    logs = [str(path.relative_to(HERE)) for path in sorted((HERE / found[1]).glob("logs/*.txt"))]
    others = [line for log in logs for line in written(done, log).decode().splitlines() if not LOGGED.fullmatch(line)]
    if len(logs) != len(MECHANISMS) or others:
        raise Fault(f"{len(logs)} logs have {len(others)} unexpected lines:\n" + "\n".join(others[-LINES_SHOWN:]))
    pictures = re.findall(r"[^\s,]+\.png\b", done.stdout)
    for path in pictures:
        data = written(done, path)
        if not data.startswith(PNG) or len(data) < SMALLEST_FILE:
            raise Fault(f"{path} is no PNG, or an empty one.")
    if not pictures:
        raise Fault("the screen names no picture.")
    return f"{shown}, ε ≤ {screen['blt']} of both, {', '.join(pictures)}"


def written(done: Run, path: str) -> bytes:
    """Returns the content of a file that this run wrote."""
    if not (HERE / path).is_file() or (HERE / path).stat().st_mtime < done.start:
        raise Fault(f"{path} is named on the screen, and this run did not write it.")
    return (HERE / path).read_bytes()


def tail(done: Run) -> str:
    """Returns the last lines that a line printed."""
    said = [*done.stdout.splitlines()[-LINES_SHOWN // 2 :], *done.stderr.splitlines()[-LINES_SHOWN // 2 :]]
    return "\n".join(said)


DEMO = (exit_status, nothing_left, only_progress_on_stderr, the_demo)
TESTS = (exit_status, nothing_left)


def checked(done: Run, check: Callable[[Run], str]) -> str | None:
    """Returns what a check finds wrong, or None, and prints its result."""
    try:
        print(f"front door: {done.line}: {check.__name__}: ok: {check(done)}", flush=True)
    except (Fault, ArithmeticError, LookupError, TypeError, ValueError) as error:
        fault = str(error) if isinstance(error, Fault) else f"a file has another form than is known: {error!r}"
        print(f"front door: {done.line}: {check.__name__}: FAILED: {fault}", flush=True)
        return fault
    return None


def main(chosen: list[str]) -> int:
    """Runs the lines, or those with the chosen numbers, and writes a JUnit file; returns the exit status."""
    suite = xml.etree.ElementTree.Element("testsuite", name="front door")
    # Where nothing is installed yet, so that `make` replaces nothing.
    begins = not chosen and not (HERE / ".venv").exists()
    others = subprocess.Popen(["bash", "-c", OTHERS], cwd=HERE, stdout=subprocess.DEVNULL) if begins else None
    for number, (line, checks) in enumerate(zip(lines(), (DEMO, TESTS), strict=True), start=1):
        if chosen and str(number) not in chosen:
            continue
        done = run(line)
        if others is not None:
            # Of a line that failed, nothing may be there to wait for; `make test` installs what is missing.
            others.terminate() if done.status else None
            others.wait()
        for check in checks:
            # The other faults of a line that failed follow from that.
            if done.status and check not in (exit_status, nothing_left):
                continue
            case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=line, name=check.__name__)
            if fault := checked(done, check):
                # XML has no place for the signs that move a cursor.
                message = "".join(sign if sign.isprintable() else " " for sign in fault)
                xml.etree.ElementTree.SubElement(case, "failure", message=message)
    faults = len(suite.findall("testcase/failure"))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(faults))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    xml.etree.ElementTree.ElementTree(suite).write(RESULT)
    print(f"front door: {len(suite) - faults} of {len(suite)} checks passed")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
