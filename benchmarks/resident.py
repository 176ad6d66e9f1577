"""Cost of a round whose server values stay in the worker: ratios within one run, as a table.

python benchmarks/resident.py [server | ordinary | checkpoint | flat | kills] ...

Without arguments, all parts are run except `kills`, which takes half an hour.
"""

import argparse
import asyncio
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from _common import header, median_seconds, peak_bytes, row, seconds, worker
from _killed_training import kills
from _lstm import PARAMETERS, Lstm, blt
from _server_rounds import BANDS, banded, draw, server_process, stepping

import tff_mf
from tff_mf import aggregators

# Fewest bands with a state above 2 GB, the limit of a gRPC message; and a smaller number, to measure the time.
BANDS_ABOVE_THE_LIMIT, BANDS_BELOW = 130, 33


def server() -> None:
    state_bytes = 4 * PARAMETERS * (BANDS - 1 + 2)
    with aggregators.resident_context():
        before = peak_bytes(worker())
        step, one_draw = stepping(server_process(banded(), PARAMETERS), [0.5]), draw(PARAMETERS)
        for warmup in (step, one_draw, step, one_draw):
            warmup()
        # Rounds in a block of 31 have different costs, so that the mean is taken over whole blocks.
        rounds = [(seconds(step), seconds(one_draw)) for _ in range(62)]
        peak = peak_bytes(worker()) - before
    mean, draws = (statistics.mean(column) for column in zip(*rounds, strict=True))
    slowest = max(taken for taken, _ in rounds)
    row(
        f"banded, {BANDS} bands, d = {PARAMETERS}: server part of a round over one draw of d normals",
        f"{mean / draws:.2f} ({mean:.3f} s, slowest {slowest:.3f} s; draw {draws:.3f} s)",
        "≤ 8, then ≤ 4",
    )
    row("peak memory of the worker over the state", f"{peak / state_bytes:.2f} ({state_bytes / 1e9:.2f} GB)", "≤ 1.3")


def ordinary() -> None:
    process = server_process(tff_mf.BLT.production("b400"), PARAMETERS)
    with aggregators.resident_context():
        resident = median_seconds(stepping(process, [0.5]), 15)
    with aggregators.tff_session():
        shipped = median_seconds(stepping(process, [0.5]), 4, warmup=1)
    row(
        "blt, 4 buffers: server part in the ordinary context over resident",
        f"{shipped / resident:.1f} ({shipped:.2f} s, {resident:.3f} s)",
        "≥ 10",
    )
    for bands in (BANDS_BELOW, BANDS_ABOVE_THE_LIMIT):
        row(
            f"banded, {bands} bands ({4 * PARAMETERS * (bands + 1) / 1e9:.1f} GB), in the ordinary context",
            _attempt(bands),
            "what happens",
        )


def _attempt(bands: int) -> str:
    """Returns how a round in the ordinary context ends, run in a separate process."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import resident as b\n"
        "with b.aggregators.tff_session():\n"
        f"    step = b.stepping(b.server_process(b.banded({bands}), b.PARAMETERS), [0.5]); step()\n"
        "    print(f'a round took {b.seconds(step):.1f} s')\n"
    )
    here = pathlib.Path(__file__).resolve().parent
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", script, here], stdout=log, stderr=log)
        try:
            process.wait(timeout=150)
            how = "ended"
        except subprocess.TimeoutExpired:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
            how = "no round was finished, killed"
        log.seek(0)
        told = [line.strip() for line in log if "took" in line or "details =" in line or "Error:" in line]
    return f"{how} after {time.perf_counter() - start:.0f} s: {told[-1][:140] if told else 'no output'}"


def checkpoint() -> None:
    lstm = Lstm()
    aggregator = blt()
    process = lstm.process(aggregator)
    with aggregators.resident_context(), tempfile.TemporaryDirectory() as folder:
        manager = aggregators.CheckpointManager(folder, aggregator=aggregator)
        state = process.next(process.initialize(), lstm.cohort).state
        taken = seconds(lambda: asyncio.run(manager.save(state, 1)))
        (file,) = pathlib.Path(folder).glob("checkpoint_*")
        size = file.stat().st_size
    row("checkpoint over the model, bytes", f"{size / (4 * PARAMETERS):.3f} (saved in {taken:.2f} s)", "≤ 2.2")


def flat() -> None:
    with aggregators.resident_context():
        step, memory = stepping(server_process(tff_mf.BLT.production("b400"), 100_000), [0.5, 0.25]), []
        ours = psutil.Process()
        for _ in range(2000):
            step()
            memory.append((worker().memory_info().rss, ours.memory_info().rss))
    early, late = (
        [max(column) / 1e6 for column in zip(*part, strict=True)] for part in (memory[200:400], memory[-200:])
    )
    left = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    row(
        "2,000 rounds: growth from the first to the last tenth",
        f"worker {late[0] - early[0]:+.1f} MB of {late[0]:.0f}, Python {late[1] - early[1]:+.1f} MB of {late[1]:.0f}; "
        f"{len(left)} processes left",
        "flat, none",
    )


PARTS = {part.__name__: part for part in (server, ordinary, checkpoint, flat, kills)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part")
    names = parser.parse_args().parts or [name for name in PARTS if name != "kills"]
    header()
    for name in names:
        PARTS[name]()


if __name__ == "__main__":
    main()
