"""Injects faults, prints a table, and fails if any was not survived: `make faults`, `make faults-short`."""

import argparse
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator

import crashes
import files
from outcomes import SURVIVED, Outcome, table

from tff_mf.experiments.training.datasets.pydoc import write_pydoc

# At how many events each command is struck; None for all of them.
# SIGKILL of `train` and of its worker: tests/experiments/test_recovery.py, which compares with an undisturbed run too.
_SHORT_COUNTS: dict[str, dict[str, int | None]] = {
    "optimize": {"SIGKILL": 2, "Ctrl-C": 1, "disk full (ENOSPC)": 1},
}
_ANY: dict[str, int | None] = {"SIGKILL": None, "Ctrl-C": 3, "disk full (ENOSPC)": 3}
_WRITER = _ANY | {"SIGKILL, a moment later": 4, "Ctrl-C twice": 3, "file too large (quota)": 3}
_LONG_COUNTS = {
    "optimize": _WRITER,
    "data": _WRITER,
    "train": _WRITER
    | {"SIGKILL of the worker": 4, "SIGKILL, clock set back": 2, "SIGTERM": 2}
    | {"started twice": 1, "checkpoints that others can read": 1},
    "train-central": _WRITER,
    "compare": _ANY,
    "export": _WRITER,
}


def outcomes(work: pathlib.Path, *, short: bool, seed: int, command: str | None) -> Iterator[Outcome]:
    """Yields what came of each fault, of one command or of all of them and of damaged files."""
    data, generator = work / "small.sqlite", random.Random(seed)
    write_pydoc(data, ["scipy"], progress=False)
    counts = _SHORT_COUNTS if short else _LONG_COUNTS
    # Forks first: a process that has computed with TensorFlow must not be forked.
    yield from crashes.run_all(
        data, work / "crashes", {name: counts[name] for name in counts if command in (None, name)}, seed
    )
    if command is None:
        runs, each = files.make(data, work), 1 if short else 12
        yield from files.loaded(work, data, each, generator)
        yield from files.reported(runs, work, each, generator)
        yield from files.going_on(runs, work, each, generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=_LONG_COUNTS, help="strike this command only")
    parser.add_argument("--out", type=pathlib.Path, help="file for the table")
    parser.add_argument("--junit", type=pathlib.Path, help="file for the numbers, as JUnit's XML")
    given = parser.parse_args()
    files.quiet()
    start, found = time.monotonic(), []
    # Not a TemporaryDirectory, which every fork would remove at its end.
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        for each in outcomes(work, short=given.short, seed=given.seed, command=given.command):
            found.append(each)
            if each.result not in SURVIVED:
                print(f"{each.result}: {each.fault}, {each.target}: {each.about}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = table(found)
    lost = sum(each.result not in SURVIVED for each in found)
    print(f"{text}\n{len(found)} faults in {time.monotonic() - start:.0f} s")
    for path, content in (
        (given.out, text),
        (given.junit, f'<testsuites><testsuite tests="{len(found)}" failures="{lost}"/></testsuites>'),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
