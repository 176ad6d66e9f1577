"""Injects faults, prints a table, and fails if any was not survived: `make faults`, `make faults-short`."""

import argparse
import dataclasses
import json
import pathlib
import random
import shutil
import sys
import tempfile
import time

import files
import kills
from outcomes import SURVIVED, Outcome, table

from tff_mf.experiments.training.datasets.pydoc import write_pydoc

# SIGKILL of `train` and of its worker: tests/experiments/test_recovery.py, which compares with an undisturbed run too.
_SHORT_COUNTS = {"optimize": {"SIGKILL": 3, "Ctrl-C": 1, "disk full (ENOSPC)": 1}}
_LONG_COUNTS = {
    "optimize": {"SIGKILL": 20, "Ctrl-C": 5, "Ctrl-C twice": 5, "disk full (ENOSPC)": 3, "file too large (quota)": 5},
    "data": {"SIGKILL": 15, "Ctrl-C": 4, "Ctrl-C twice": 4, "disk full (ENOSPC)": 2, "file too large (quota)": 6},
    "train": {
        "SIGKILL": 8,
        "SIGKILL of the worker": 4,
        "Ctrl-C": 3,
        "Ctrl-C twice": 3,
        "SIGTERM": 2,
        "disk full (ENOSPC)": 4,
        "file too large (quota)": 3,
        "SIGKILL, clock set back": 2,
        "started twice": 1,
        "readable": 1,
    },
    "train-central": {"SIGKILL": 4, "Ctrl-C": 2, "disk full (ENOSPC)": 3, "file too large (quota)": 2},
    "compare": {"SIGKILL": 3, "Ctrl-C": 1},
    "export": {"SIGKILL": 4, "Ctrl-C": 2, "disk full (ENOSPC)": 3, "file too large (quota)": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, help="random damages of a kind to a file")
    parser.add_argument("--only", choices=("kills", "files"))
    parser.add_argument("--command", help="kills of this command only")
    parser.add_argument("--fault", action="append", help="kills of this kind only; may be repeated")
    parser.add_argument("--save", type=pathlib.Path, help="file to add each outcome to, as a line of JSON")
    parser.add_argument(
        "--table", type=pathlib.Path, nargs="+", help="print the table of saved outcomes, and do nothing"
    )
    parser.add_argument("--out", type=pathlib.Path, help="file for the table")
    parser.add_argument("--junit", type=pathlib.Path, help="file for the numbers, as JUnit's XML")
    given = parser.parse_args()
    if given.table:
        lines = [line for path in given.table for line in path.read_text().splitlines()]
        print(table(Outcome(**json.loads(line)) for line in lines))
        return
    each = given.each or (1 if given.short else 12)
    files.quiet()
    start = time.monotonic()
    found: list[Outcome] = []
    # Not a TemporaryDirectory, which every fork would remove at its end.
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        data = work / "small.sqlite"
        write_pydoc(data, ["scipy"], progress=False)
        generator = random.Random(given.seed)

        def note(outcome: Outcome) -> None:
            found.append(outcome)
            if given.save is not None:
                with given.save.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            if outcome.result not in SURVIVED:
                print(
                    f"{outcome.result}: {outcome.fault}, {outcome.target}: {outcome.about}", file=sys.stderr, flush=True
                )

        # Forks first: a process that has computed with TensorFlow must not be forked.
        if given.only != "files":
            counts = {
                command: {fault: times for fault, times in faults.items() if fault in (given.fault or faults)}
                for command, faults in (_SHORT_COUNTS if given.short else _LONG_COUNTS).items()
                if given.command in (None, command)
            }
            for outcome in kills.run_all(data, work / "kills", counts, given.seed):
                note(outcome)
                print(f"{time.monotonic() - start:.0f} s: {len(found)}", file=sys.stderr, flush=True)
        if given.only != "kills":
            runs = files.make(data, work)
            for some in (
                files.loaded(work, data, each, generator),
                files.reported(runs, work, each, generator),
                files.going_on(runs, work, each, generator),
            ):
                for outcome in some:
                    note(outcome)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = table(found)
    print(text)
    print(f"{len(found)} faults in {time.monotonic() - start:.0f} s")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text)
    lost = sum(outcome.result not in SURVIVED for outcome in found)
    if given.junit is not None:
        given.junit.parent.mkdir(parents=True, exist_ok=True)
        given.junit.write_text(f'<testsuites><testsuite tests="{len(found)}" failures="{lost}"/></testsuites>')
    if lost:
        sys.exit(1)


if __name__ == "__main__":
    main()
