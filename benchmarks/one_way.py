"""Time of a round by `aggregators.private_fed_avg`, as a multiple of the time by `tff-mf train`.

    python benchmarks/one_way.py [--rounds N] [--turns N] [--model conv|lstm]

Model, plan and clients are the same, and each way saves a checkpoint after every round. Both train in this process, in
turn, each in a resident context of its own. The first rounds, in which TensorFlow compiles, and the last, which is
evaluated, are not counted. Both read the next cohort ahead: `tff-mf train` by its own reader of sentences, a program
with `private_fed_avg` by TFF's preprocessing.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import program, task
from tff_mf.experiments.training.datasets import named_data, sqlite

UNTIMED = 5
CLIENTS = 20
_preprocessing = tff.simulation.baselines.stackoverflow.word_prediction_preprocessing


def by_the_command(settings: RunSettings, plan: tff_mf.Plan, data: pathlib.Path, folder: pathlib.Path) -> list[float]:
    """Returns when each round was released."""
    times: list[float] = []
    program.run(
        settings,
        plan,
        data=data,
        out=folder,
        on_round=lambda *round: times.append(time.perf_counter()),
        execution=ExecutionSettings(checkpoint_every=1),
        without_epsilon=True,
    )
    return times


def by_a_program(settings: RunSettings, plan: tff_mf.Plan, data: pathlib.Path, folder: pathlib.Path) -> list[float]:
    """Returns when each round was released."""
    vocabulary = list(sqlite.load_word_counts(data, settings.vocab_size))
    built = task.build_task(settings, vocabulary)
    preprocess = _preprocessing.create_preprocess_fn(
        tff.simulation.baselines.ClientSpec(
            num_epochs=1, batch_size=settings.batch_size, max_elements=settings.max_examples
        ),
        vocabulary,
    )
    train = sqlite.load(data).train.preprocess(preprocess)
    times: list[float] = []
    with aggregators.private_fed_avg(
        plan,
        built.model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(settings.client_learning_rate),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, 0.9),
        folder=folder / "run",
        initial_weights=built.initial_weights,
    ) as training:
        for _ in training.cohorts(train.client_ids):
            training.next(train)
            times.append(time.perf_counter())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--model", choices=("conv", "lstm"), default="conv")
    arguments = parser.parse_args()
    data = named_data.data_file("pydoc")
    sizes = {"vocab_size": 2000, "embedding_size": 64, "units": 64, "max_examples": 64}
    schema = {"min_sep": 2, "max_participations": (arguments.rounds + 1) // 2}
    settings = RunSettings(
        rounds=arguments.rounds,
        clients_per_round=CLIENTS,
        delta=1e-6,
        noise_multiplier=4.0,
        model=arguments.model,
        evaluate_every=arguments.rounds,
        evaluation_examples=100,
        test_examples=100,
        **schema,
        **sizes,
    )
    plan = settings.privacy_plan(tff_mf.BLT(theta=[0.9], omega=[0.1]))
    ways = {"tff-mf train": by_the_command, "private_fed_avg": by_a_program}
    medians: dict[str, list[float]] = {name: [] for name in ways}
    for turn, (name, way) in itertools.product(range(arguments.turns), ways.items()):
        with tempfile.TemporaryDirectory() as folder:
            times = way(settings, plan, data, pathlib.Path(folder))[UNTIMED:-1]
        medians[name].append(statistics.median(after - before for before, after in itertools.pairwise(times)))
        print(f"turn {turn + 1}, {name}: {medians[name][-1]:.3f} s a round", flush=True)
    ratios = [one / other for one, other in zip(medians["private_fed_avg"], medians["tff-mf train"], strict=True)]
    print(f"private_fed_avg over tff-mf train: {', '.join(f'{each:.2f}' for each in ratios)}")


if __name__ == "__main__":
    main()
