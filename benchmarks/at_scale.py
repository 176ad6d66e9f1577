"""Time and memory of the first rounds of a paper's experiment at full size, on the synthetic StackOverflow.

python benchmarks/at_scale.py [--preset NAME] [--mechanism blt|banded] [--rounds N] [--out FOLDER]

`tff-mf plan` for 2,052 rounds, `tff-mf optimize`, then `tff-mf train` with this mechanism and 342,477 training clients
for a few rounds, in which a client takes part once, and `tff-mf report`. Memory is the resident set size of all
processes, sampled five times a second: pages that processes share are counted in each.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from _common import header, row

_EVERY_SECONDS = 0.2
_COMMAND = str(pathlib.Path(sys.executable).with_name("tff-mf"))
_SCHEMA = ("--rounds", "2052", "--min-sep", "342", "--max-participations", "6")
_DEPLOYMENT = ("--population", "342477", "--clients-per-round", "1000", "--epsilon", "8", "--delta", "1e-6")
_OPTIONS = {"blt": ("--buffers", "3"), "banded": ("--bands", "342")}
_GOAL = "< 8"


def memory_of(process: psutil.Process) -> int:
    """Returns the bytes of a process and of all that it started."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def measured(*arguments: str) -> None:
    """Runs a command of tff-mf and prints its largest memory and its time."""
    start, largest = time.perf_counter(), 0
    child = subprocess.Popen([_COMMAND, *arguments], stdout=subprocess.DEVNULL)
    process = psutil.Process(child.pid)
    while child.poll() is None:
        largest = max(largest, memory_of(process))
        time.sleep(_EVERY_SECONDS)
    row(f"{arguments[0]}: largest memory of all processes, GB", f"{largest / 1e9:.2f}", _GOAL)
    row(f"{arguments[0]}: seconds", f"{time.perf_counter() - start:.0f}")
    if child.returncode:
        sys.exit(f"{arguments[0]} ended with status {child.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="choquette2023-banded")
    parser.add_argument("--mechanism", choices=_OPTIONS, default="banded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    folder = given.out or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    artifact, run = str(folder / "mechanism.safetensors"), folder / "run"
    header(f"{given.preset} with {given.mechanism}, {given.rounds} rounds on `synthetic`")
    measured("plan", *_SCHEMA, *_DEPLOYMENT)
    measured("optimize", given.mechanism, *_SCHEMA, *_OPTIONS[given.mechanism], "--out", artifact)
    measured(
        *("train", "--preset", given.preset, "--mechanism", artifact, "--epsilon", "8", "--dataset", "synthetic"),
        *("--rounds", str(given.rounds), "--sampling", "single", "--checkpoint-every", "0", "--out", str(run)),
    )
    measured("report", str(run))
    lines = len((run / "participation.csv").read_text(encoding="utf-8").splitlines()) - 1
    row("lines of participation.csv", f"{lines:,}")
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    row("clients in the report", f"{report['population']:,}" if "population" in report else "–")


if __name__ == "__main__":
    main()
