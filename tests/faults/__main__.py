"""Strikes commands, and fails if any strike was not survived: `make faults`, `make faults-short`."""

import argparse
import pathlib
import shutil
import sys
import tempfile

import crashes
import tensorflow as tf
from outcomes import told

from tff_mf.experiments.data import write_pydoc

# At how many events each command is struck; None for all of them.
_ANY: dict[str, int | None] = {"SIGKILL": None, "Ctrl-C": 3, "disk full (ENOSPC)": 3}
_WRITER = _ANY | {"SIGKILL, a moment later": 4, "Ctrl-C twice": 3, "file too large (quota)": 3}
_COUNTS = {
    "optimize": _WRITER,
    "train": _WRITER
    | {"SIGKILL of the worker": 4, "SIGKILL, clock set back": 2, "SIGTERM": 2}
    | {"started twice": 1, "checkpoints that others can read": 1},
    "private_fed_avg": _ANY,
    "train-central": _WRITER,
    "compare": _ANY,
    "export": _WRITER,
}
# SIGKILL of `train` and of its worker: tests/experiments/test_recovery.py, which compares with an undisturbed run too.
_SHORT_COUNTS: dict[str, dict[str, int | None]] = {"optimize": {"SIGKILL": 2, "Ctrl-C": 1, "disk full (ENOSPC)": 1}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=_COUNTS, action="append", help="strike this command; may be repeated")
    parser.add_argument("--out", type=pathlib.Path, help="file for the table")
    parser.add_argument("--junit", type=pathlib.Path, help="file for the numbers, as JUnit's XML")
    given = parser.parse_args()
    counts = _SHORT_COUNTS if given.short else _COUNTS
    tf.get_logger().setLevel("ERROR")
    # Not a TemporaryDirectory, which every fork would remove at its end.
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        write_pydoc(work / "small.sqlite", ["scipy"])
        chosen = {name: counts[name] for name in given.command or counts}
        found = crashes.run_all(work / "small.sqlite", work / "crashes", chosen, given.seed)
        survived = told(found, given.out, given.junit)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(not survived)


if __name__ == "__main__":
    main()
