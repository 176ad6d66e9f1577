"""Memory of Python and of TFF's worker over the rounds of a training run.

python benchmarks/memory.py [--rounds N] [--clients N] [--dataset NAME] [--csv FILE]

The model is small, so that its arrays do not hide what rounds leave behind. Growth is that of the resident set size
relative to its value after round 50: at its maximum, and at the end.
"""

import argparse
import contextlib
import csv
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from _common import header, row, worker

import tff_mf
from tff_mf.experiments.configuration.settings import ModelConfig, TrainingSettings
from tff_mf.experiments.datasets import named_data
from tff_mf.experiments.training import program

SETTLED = 50
GOAL = "≤ 5 %"
COLUMNS = ("round", "seconds", "python", "worker")
PARTICIPATIONS = 20


def measured(rounds: int, clients: int, dataset: str, table: pathlib.Path | None) -> list[dict[str, float]]:
    """Returns the bytes of both processes after each round, and writes them to `table` as it goes."""
    memory: list[dict[str, float]] = []
    python, start = psutil.Process(), time.perf_counter()
    settings = TrainingSettings(
        model=ModelConfig(architecture="conv", vocab_size=200, embedding_size=8, units=8),
        max_examples=4,
        batch_size=4,
        evaluate_every=25,
        evaluation_examples=200,
    )
    privacy = tff_mf.plan(
        mechanism=tff_mf.BLT.production("b400"),
        rounds=rounds,
        clients_per_round=clients,
        noise_multiplier=1.0,
        sampling=tff_mf.MinSep(min_sep=max(1, rounds // PARTICIPATIONS), max_participations=PARTICIPATIONS),
        delta=1e-6,
    )
    data = named_data.data_file(dataset)
    with contextlib.ExitStack() as stack:
        out = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = stack.enter_context((table or out / "memory.csv").open("w", newline="", buffering=1, encoding="utf-8"))
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()

        def on_round(round_number: int, metrics: Mapping[str, float]) -> None:
            del metrics
            sizes = (python.memory_info().rss, worker().memory_info().rss)
            values = (round_number, time.perf_counter() - start, *sizes)
            memory.append(dict(zip(COLUMNS, values, strict=True)))
            writer.writerow(memory[-1])

        (out / "run").mkdir()
        program.run(settings, privacy, data=data, out=out / "run", on_round=on_round)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dataset", default="pydoc")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    memory = measured(arguments.rounds, arguments.clients, arguments.dataset, arguments.csv)
    header()
    for name in COLUMNS[2:]:
        settled, *later = (sizes[name] for sizes in memory[SETTLED - 1 :])
        most, last = max(later) / settled - 1, later[-1] / settled - 1
        row(
            f"{arguments.rounds} rounds of {arguments.clients} clients: memory of {name} after round {SETTLED}",
            f"{most:+.1%} at most, {last:+.1%} at the end, of {settled / 1e6:.0f} MB",
            GOAL,
        )


if __name__ == "__main__":
    main()
