"""Mutates what readers and checks take, and prints what came of it: `make fuzz`.

python tests/fuzz readers          bytes and structures, damaged and forged, in every reader of files
python tests/fuzz damage           files of a run, damaged as a disk damages them
"""

import argparse
import importlib
import pathlib
import shutil
import sys
import tempfile

from outcomes import told

# Of each part, the module whose `outcomes` makes its inputs, and how many by default.
PARTS = {
    "readers": ("readers", 2_000_000),
    "damage": ("damaged_files", 12),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument(
        "--inputs",
        type=int,
        help="how many, at most; of damage, of each kind to each file, 0 for a quarter of the kinds",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names of readers")
    parser.add_argument("--out", type=pathlib.Path, help="file for the table")
    parser.add_argument("--junit", type=pathlib.Path, help="file for the numbers, as JUnit's XML")
    given = parser.parse_args()
    module, inputs = PARTS[given.part]
    make = importlib.import_module(module).outcomes
    # In memory; and no TemporaryDirectory, which every fork would remove at its end.
    memory = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    work = pathlib.Path(tempfile.mkdtemp(dir=memory))
    try:
        found = make(work, inputs=inputs if given.inputs is None else given.inputs, seed=given.seed, only=given.only)
        allowed = told(found, given.out, given.junit)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(not allowed)


if __name__ == "__main__":
    main()
