"""Memory, open files, threads and processes of a long run of small rounds, one mechanism after another.

    .venv/bin/python benchmarks/long_run.py [--rounds 5000] [--dimension 2000]

Each mechanism runs in its own resident context of one process, with a checkpoint every 50 rounds, as in a training run.
Figures are taken after a tenth of a mechanism's rounds, when everything is compiled, and at its end; a leak is a
difference that grows with rounds. The last lines compare the end of the last mechanism with that of the first.
"""

import argparse
import asyncio
import dataclasses
import gc
import pathlib
import tempfile
import time

import numpy as np
import psutil
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

_MIB = 2**20
_CLIENTS = 3
_CHECKPOINT_EVERY = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """Resources of a run: memory, open files, threads, processes, and the size of its checkpoints."""

    python_mib: float
    worker_mib: float
    files: int
    threads: int
    processes: int
    disk_kib: float


def mechanisms(rounds: int) -> dict[str, tff_mf.Mechanism]:
    generator = np.random.default_rng(0)
    matrix = np.tril(generator.normal(size=(rounds, rounds)) / rounds, -1) + 1.2 * np.eye(rounds)
    return {
        "identity": tff_mf.Identity(),
        "blt": tff_mf.BLT.production("b400"),
        "banded": tff_mf.Banded(values=generator.uniform(0.1, 0.2, size=(16, rounds)) + np.eye(16, 1)),
        "banded Toeplitz": tff_mf.BandedToeplitz.square_root(32),
        "dense": tff_mf.Dense(matrix=matrix),
        "structured": tff_mf.BandedPlusLowRank(
            diagonals=generator.uniform(0.5, 1.5, size=(2, rounds)),
            left=generator.normal(size=(rounds, 2)) / rounds,
            right=generator.normal(size=(rounds, 2)),
        ),
        "tree, full": tff_mf.Tree(rounds, variant="full"),
        "tree, online": tff_mf.Tree(rounds, variant="online"),
        "tree, restarted": tff_mf.Tree(64, variant="online"),
    }


def measured(folder: pathlib.Path) -> Figures:
    gc.collect()
    own = psutil.Process()
    children = [child for child in own.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return Figures(
        python_mib=own.memory_info().rss / _MIB,
        worker_mib=sum(child.memory_info().rss for child in children) / _MIB,
        files=own.num_fds(),
        threads=own.num_threads(),
        processes=len(own.children(recursive=True)),
        disk_kib=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1024,
    )


def turn(name: str, mechanism: tff_mf.Mechanism, rounds: int, dimension: int, folder: pathlib.Path) -> list[Figures]:
    factory = aggregators.build_mf_aggregator(
        mechanism,
        clip_norm=1.0,
        noise_multiplier=1.0,
        clients_per_round=_CLIENTS,
        restart_every=64 if name.endswith("restarted") else None,
    )
    process = factory.create(tff.TensorType(np.float32, [dimension]))
    values = [np.full(dimension, 0.01 * index, np.float32) for index in range(_CLIENTS)]
    checkpoints = aggregators.CheckpointManager(folder / name.replace(" ", "-"), aggregator=factory)
    found = []
    with aggregators.resident_context():
        state = process.initialize()
        for number in range(1, rounds + 1):
            # Cohorts of different sizes, including an empty one and one with a client that is not finite.
            cohort = values[: number % (_CLIENTS + 1)]
            if number % 7 == 0:
                cohort = [*cohort, np.full(dimension, np.nan, np.float32)]
            output = process.next(state, cohort)
            state = output.state
            if number % _CHECKPOINT_EVERY == 0:
                asyncio.run(checkpoints.save({"state": state}, number))
            if number in (rounds // 10, rounds):
                found.append(measured(folder))
        if not np.all(np.isfinite(np.asarray(output.result))):
            raise AssertionError(f"{name}: the noised mean is not finite")
        del state, output
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000, help="total for all mechanisms")
    parser.add_argument("--dimension", type=int, default=2000)
    given = parser.parse_args()
    names = list(mechanisms(64))
    each = given.rounds // len(names)
    chosen = mechanisms(each)
    ends = []
    header = "| mechanism | rounds | ms a round | Python MiB | worker MiB | files | threads | processes | disk KiB |"
    print(header + "\n|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as work:
        for name, mechanism in chosen.items():
            start = time.perf_counter()
            first, last = turn(name, mechanism, each, given.dimension, pathlib.Path(work))
            seconds = time.perf_counter() - start
            cells = [
                f"{getattr(first, field.name):.0f} → {getattr(last, field.name):.0f}"
                for field in dataclasses.fields(Figures)
            ]
            print("| " + " | ".join([name, str(each), f"{1000 * seconds / each:.1f}", *cells]) + " |", flush=True)
            ends.append(last)
        after = measured(pathlib.Path(work))
    print(f"\nend of the first mechanism: {ends[0]}\nend of the last mechanism:  {ends[-1]}\nafter all: {after}")


if __name__ == "__main__":
    main()
