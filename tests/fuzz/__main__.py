"""Millions of inputs for the readers: `make fuzz`. Prints a table, and the inputs that were handled wrongly."""

import argparse
import base64
import contextlib
import pathlib
import pickle
import random
import resource
import sys
import tempfile
import time

from readers import Reader, all_readers

from tff_mf.base.errors import InputError

_HANG_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2_000_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a reader's name; may be repeated")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None) as folder:
        readers = [each for each in all_readers(pathlib.Path(folder)) if each.name in (given.only or [each.name])]
        print("| reader | inputs | read | refused | anything else | slowest, ms | growth, MiB | inputs a second |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        total = bad = 0
        start_all = time.perf_counter()
        rates = [_rate(reader) for reader in readers]
        for reader, rate in zip(readers, rates, strict=True):
            # Half of all inputs in equal parts, half for the fastest readers.
            share = given.inputs // 2 // len(readers) + round(given.inputs / 2 * rate / sum(rates)) + 1
            generator = random.Random(f"{given.seed} {reader.name}")
            counts, slowest, seen = {"read": 0, "refused": 0}, 0.0, set()
            memory, start = _peak_mib(), time.perf_counter()
            for _ in range(share):
                data = reader.made(generator)
                begin = time.perf_counter()
                try:
                    reader.read(data)
                    counts["read"] += 1
                except InputError:
                    counts["refused"] += 1
                except BaseException as error:
                    bad += 1
                    _report(reader.name, data, error, seen)
                slowest = max(slowest, time.perf_counter() - begin)
            if slowest > _HANG_SECONDS:
                bad += 1
                print(f"{reader.name}: an input took {slowest:.1f} s", file=sys.stderr)
            seconds = time.perf_counter() - start
            else_ = share - sum(counts.values())
            cells = [reader.name, share, counts["read"], counts["refused"], else_, f"{1000 * slowest:.0f}"]
            cells += [f"{_peak_mib() - memory:.0f}", f"{share / seconds:.0f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            total += share
    print(f"\n{total} inputs in {time.perf_counter() - start_all:.0f} s, {bad} taken badly")
    sys.exit(bad > 0)


def _rate(reader: Reader) -> float:
    """Returns how many inputs are read in a second."""
    generator, start = random.Random(1), time.perf_counter()
    for _ in range(100):
        with contextlib.suppress(Exception):
            reader.read(reader.made(generator))
    return 100 / (time.perf_counter() - start)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _report(name: str, data: object, error: BaseException, seen: set[str]) -> None:
    """Prints one input for each place that an error is raised in."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{type(error).__name__} in {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else repr(error)
    if where not in seen:
        seen.add(where)
        encoded = base64.b64encode(pickle.dumps(data)).decode()
        print(f"{name}: {where}: {str(error)[:200]}\n  {encoded[:4000]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
