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
import struct
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
HEADER = ["noise for", "ε = 2"]
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
SMALLEST_PICTURE = (400, 200)
SMALLEST_FILE = 4_000
LINES_SHOWN = 40
# Beyond this a line hangs. CI has 90 minutes for both, and its slowest machine took 34 for the tests.
MOST_SECONDS = 60 * 60


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


def accuracies(done: Run) -> dict[str, float]:
    """Returns the accuracy of each mechanism in the file of the demo's numbers, in percent."""
    return {level["mechanism"]: 100 * level["accuracy"] for level in numbers(done)["levels"]}


def the_table(done: Run) -> str:
    """Both mechanisms are in the table, and BLT is ahead, as in the file."""
    printed = [line.strip() for line in done.stdout.splitlines() if line.strip(" ─")]
    cells = [re.split(r"  +", line) for line in printed]
    if HEADER not in cells:
        raise Fault(f"no table with the columns {HEADER} is printed.")
    rows = {row[0]: row[1:] for row in cells[cells.index(HEADER) + 1 :][: len(MECHANISMS)]}
    if tuple(rows) != MECHANISMS:
        raise Fault(f"the rows of the table are {list(rows)}, not {list(MECHANISMS)}.")
    shown = {}
    for name, row in rows.items():
        if len(row) != 1 or not re.fullmatch(r"\d+\.\d+", row[0]) or float(row[0]) <= 0:
            raise Fault(f"the row of {name} is {row}, not an accuracy.")
        shown[name] = float(row[0])
        if abs(shown[name] - accuracies(done)[name]) > 0.006:
            raise Fault(f"{name}: {shown[name]} % on the screen and {accuracies(done)[name]} % in the file.")
    if shown["blt"] <= shown["identity"]:
        raise Fault(f"BLT is not ahead: {shown['blt']} % after {shown['identity']} %.")
    return ", ".join(f"{name} {value} %" for name, value in shown.items())


def the_same_epsilon(done: Run) -> str:
    """Both trainings have the same ε, on the screen and in the file."""
    text = " ".join(done.stdout.split())
    screen = {name: found for names, found in GUARANTEE.findall(text) for name in names.split("; ")}
    if set(screen) != set(MECHANISMS) or len(set(screen.values())) != 1:
        raise Fault(f"the screen says ε of {MECHANISMS}: {screen}.")
    written = [level["claim"]["epsilon"] for level in numbers(done)["levels"]]
    if len(written) != len(MECHANISMS) or None in written or max(written) - min(written) > 1e-6 * max(written):
        raise Fault(f"{numbers_path(done)} says ε of {MECHANISMS}: {written}.")
    printed = screen["blt"]
    if not max(written) <= float(printed) <= max(written) + 0.001:
        raise Fault(f"ε ≤ {printed} is on the screen, and {written} in {numbers_path(done)}.")
    return f"ε ≤ {printed} of both"


def only_progress_in_logs(done: Run) -> str:
    """The log of each training has lines about progress only: no warning, no traceback."""
    logs = sorted((HERE / numbers_path(done)).parent.glob("logs/*.txt"))
    if len(logs) != len(MECHANISMS):
        raise Fault(f"there are {len(logs)} logs of {len(MECHANISMS)} trainings.")
    for log in logs:
        check_written(done, str(log.relative_to(HERE)))
        others = [line for line in log.read_text(encoding="utf-8").splitlines() if not LOGGED.fullmatch(line)]
        if others:
            raise Fault(f"{log.name} has {len(others)} unexpected lines:\n" + "\n".join(others[-LINES_SHOWN:]))
    return "the logs have progress only"


def the_pictures(done: Run) -> str:
    """Every picture that the screen names is one, and was written by this run."""
    paths = re.findall(r"[^\s,]+\.png\b", done.stdout)
    if not paths:
        raise Fault("the screen names no picture.")
    for path in paths:
        check_written(done, path)
        check_png(path)
    return ", ".join(paths)


def check_written(done: Run, path: str) -> None:
    """Raises unless a file is there that this run wrote."""
    if not (HERE / path).is_file():
        raise Fault(f"{path} is named on the screen, and is not there.")
    if (HERE / path).stat().st_mtime < done.start:
        raise Fault(f"{path} is of an earlier run: this one did not write it.")


def check_png(path: str) -> None:
    """Raises unless a file is a PNG of some size, that is not empty."""
    data = (HERE / path).read_bytes()
    if not data.startswith(PNG) or len(data) < SMALLEST_FILE:
        raise Fault(f"{path} is no PNG, or an empty one.")
    width, height = struct.unpack_from(">II", data, len(PNG) + 8)
    if width < SMALLEST_PICTURE[0] or height < SMALLEST_PICTURE[1]:
        raise Fault(f"{path} has {width} × {height} points only.")


def numbers_path(done: Run) -> str:
    """Returns the path of the demo's numbers, in the folder that the screen names."""
    found = re.search(r"^written +([^\s,]+)", done.stdout, re.M)
    if found is None:
        raise Fault("the screen does not say where the comparison was written.")
    return f"{found[1]}/comparison.json"


def numbers(done: Run) -> dict:
    """Returns the demo's numbers."""
    path = numbers_path(done)
    check_written(done, path)
    return json.loads((HERE / path).read_text(encoding="utf-8"))


def tail(done: Run) -> str:
    """Returns the last lines that a line printed."""
    said = [*done.stdout.splitlines()[-LINES_SHOWN // 2 :], *done.stderr.splitlines()[-LINES_SHOWN // 2 :]]
    return "\n".join(said)


DEMO = (
    exit_status,
    nothing_left,
    only_progress_on_stderr,
    only_progress_in_logs,
    the_table,
    the_same_epsilon,
    the_pictures,
)
TESTS = (exit_status, nothing_left)


def checked(done: Run, check: Callable[[Run], str]) -> str | None:
    """Returns what a check finds wrong, or None, and prints its result."""
    try:
        print(f"front door: {done.line}: {check.__name__}: ok: {check(done)}", flush=True)
    except (Fault, ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        fault = str(error) if isinstance(error, Fault) else f"a file has another form than is known: {error!r}"
        print(f"front door: {done.line}: {check.__name__}: FAILED: {fault}", flush=True)
        return fault
    return None


def main(chosen: list[str]) -> int:
    """Runs the lines, or those with the chosen numbers, and writes a JUnit file; returns the exit status."""
    suite = xml.etree.ElementTree.Element("testsuite", name="front door")
    for number, (line, checks) in enumerate(zip(lines(), (DEMO, TESTS), strict=True), start=1):
        if chosen and str(number) not in chosen:
            continue
        done = run(line)
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
