"""Compares the resident context with TFF's own on clients' data of every shape, and fails where they differ.

python tests/datasets [--every N] [--offset N] [--tasks N]

Reads 1,204 shapes with both of tff.learning's loops, and trains 68 models with both; an hour on 2 cores.
"""

import argparse
import itertools
import sys

import matrix
import rounds
import shapes

from tff_mf import aggregators


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read one of N shapes")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="and start with this one")
    parser.add_argument("--tasks", type=int, metavar="N", help="train the first N models only")
    arguments = parser.parse_args()
    read = list(shapes.shapes())[arguments.offset :: arguments.every]
    train = list(rounds.tasks())[: arguments.tasks]
    expected, found = {}, {}
    for context, results in ((aggregators.tff_session, expected), (aggregators.resident_context, found)):
        with context():
            results |= matrix.readings(itertools.product(read, matrix.LOOPS))
            results |= matrix.models(itertools.product(train, matrix.LOOPS))
    different = [name for name, value in expected.items() if found[name] != value]
    failed = [name for name, value in expected.items() if isinstance(value, str)]
    for name in different:
        print(f"DIFFERENT {name}: {str(expected[name])[:300]} in TFF's own context, {str(found[name])[:300]} in ours")
    for name in failed:
        print(f"FAILS in TFF's own context: {name}: {expected[name]}")
    print(f"{len(expected)} combinations, {len(different)} different, {len(failed)} that TFF's own context cannot run")
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main())
