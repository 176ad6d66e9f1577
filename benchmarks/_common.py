"""What several benchmarks share: tables, times, memory, and the settings of a small run."""

import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil

_SMALL_RUN = """[run]
mechanism = "tree-full"
rounds = {rounds}
clients_per_round = 2
cohort = {cohort}
delta = 1e-6
min_sep = {min_sep}
max_participations = {max_participations}
noise_multiplier = 8.0
model = "conv"
vocab_size = 60
embedding_size = 4
units = 4
batch_size = 2
max_examples = 4
dataset = "sqlite:{data}"
"""


def small_run(*, rounds: int, cohort: int, min_sep: int, max_participations: int, data: pathlib.Path) -> str:
    """Returns the settings file of a deployment with a very small model."""
    return _SMALL_RUN.format(
        rounds=rounds, cohort=cohort, min_sep=min_sep, max_participations=max_participations, data=data
    )


def row(name: str, value: str, goal: str = "") -> None:
    """Prints a row of a table with three columns."""
    print(f"| {name} | {value} | {goal} |", flush=True)


def header(name: str = "quantity", value: str = "measured") -> None:
    """Prints the header of a table of `row`s."""
    row(name, value, "must be")
    row("---", "---", "---")


def seconds(step: Callable[[], object]) -> float:
    """Returns the time that a step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def seconds_of(steps: dict[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, list[float]]:
    """Returns the times of each step. The steps take turns, so that the load of the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(warmup + repeats):
        for name, step in steps.items():
            taken = seconds(step)
            if repeat >= warmup:
                times[name].append(taken)
    return times


def median_seconds(step: Callable[[], object], repeats: int, warmup: int = 2) -> float:
    """Returns the median time of a step."""
    return statistics.median(seconds_of({"step": step}, repeats, warmup)["step"])


def worker() -> psutil.Process:
    """Returns TFF's worker, the only child of this process."""
    (found,) = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return found


def peak_bytes(process: psutil.Process) -> int:
    """Returns the peak of a process's resident memory."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def environment(
    name: str, requirements: Sequence[str], interpreter: str = sys.executable, *, with_checkout: bool = False
) -> pathlib.Path:
    """Returns the Python of peers, in build/peers/NAME, where they are installed if they are not there."""
    checkout = pathlib.Path(__file__).resolve().parents[1]
    folder = checkout / "build" / "peers" / name
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        if with_checkout:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-e", checkout], check=True)
        done.touch()
    return python
