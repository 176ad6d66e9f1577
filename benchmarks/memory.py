"""Memory of Python and of TFF's worker over the rounds of a training run, by the real program.

python benchmarks/memory.py [--rounds N] [--clients N] [--dataset NAME] [--csv FILE]

A small model, so that what grows is what rounds leave behind, and no array hides it. Growth is that of the resident set size
after round 50, relative to its value there: the largest and the last.
"""

import argparse
import csv
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from resident import worker

import tff_mf
from tff_mf.experiments import runs, training
from tff_mf.experiments.privacy import plan_privacy
from tff_mf.experiments.settings import ModelConfig, TrainingSettings

SETTLED = 50
LIMIT = 0.05
PARTICIPATIONS = 20


def measured(rounds: int, clients: int, dataset: str) -> list[dict[str, float]]:
    """Returns the bytes of both processes after each round."""
    memory: list[dict[str, float]] = []
    python, start = psutil.Process(), time.perf_counter()

    def on_round(round_number: int, metrics: Mapping[str, float]) -> None:
        del metrics
        sizes = {"Python": python.memory_info().rss, "worker": worker().memory_info().rss}
        memory.append({"round": round_number, "seconds": time.perf_counter() - start, **sizes})

    settings = TrainingSettings(
        model=ModelConfig(architecture="conv", vocab_size=200, embedding_size=8, units=8),
        max_examples=4,
        batch_size=4,
        evaluate_every=50,
        evaluation_examples=200,
    )
    privacy = plan_privacy(
        mechanism=tff_mf.BLT.production("b400"),
        rounds=rounds,
        clients_per_round=clients,
        noise_multiplier=1.0,
        participation=tff_mf.MinSep(min_sep=max(1, rounds // PARTICIPATIONS), max_participations=PARTICIPATIONS),
        delta=1e-6,
    )
    with tempfile.TemporaryDirectory() as out:
        training.run(settings, privacy, data=runs.data_file(dataset), out=pathlib.Path(out), on_round=on_round)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dataset", default="pydoc")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    memory = measured(arguments.rounds, arguments.clients, arguments.dataset)
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, memory[0])
            writer.writeheader()
            writer.writerows(memory)
    print(
        f"| {arguments.rounds} rounds of {arguments.clients} clients | after round {SETTLED} | most | last | must be |"
    )
    print("|---|---|---|---|---|")
    for name in ("Python", "worker"):
        settled, *later = (row[name] for row in memory[SETTLED - 1 :])
        most, last = max(later) / settled - 1, later[-1] / settled - 1
        print(f"| {name} | {settled / 1e6:.0f} MB | {most:+.1%} | {last:+.1%} | ≤ {LIMIT:.0%} |")


if __name__ == "__main__":
    main()
