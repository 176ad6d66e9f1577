"""What a round costs where the server's values stay in the worker: ratios within one run, as a table.

python benchmarks/resident.py [server | ordinary | workers | checkpoint | flat | kills] ...

All parts but `kills`, which takes half an hour, are run if none is named.
"""

import argparse
import asyncio
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import sampling
from tff_mf.experiments.configuration.settings import ModelConfig
from tff_mf.experiments.datasets import named_data, sqlite
from tff_mf.experiments.training import task

LSTM = 4_050_748
BANDS, ROUNDS = 342, 2052
# Fewest bands with a state above 2 GB, the most that a message of gRPC holds; and some below, to see the time.
BANDS_ABOVE_THE_LIMIT, BANDS_BELOW = 130, 33
CLIENTS = 10


def row(name: str, value: str, goal: str = "") -> None:
    print(f"| {name} | {value} | {goal} |", flush=True)


def seconds_of(steps: dict[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, list[float]]:
    """Returns how long each step took, all of them in turn, so that the machine's load meets all."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(warmup + repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_seconds(steps: dict[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, float]:
    """Returns the median of each step."""
    return {name: statistics.median(values) for name, values in seconds_of(steps, repeats, warmup).items()}


def server_process(mechanism: tff_mf.Mechanism, dimension: int) -> tff.templates.IterativeProcess:
    """One client's clipped value, noise, and the server's momentum."""
    aggregation = aggregators.build_mf_aggregator(
        mechanism, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=1
    ).create(tff.TensorType(np.float32, [dimension]))
    optimizer = tff.learning.optimizers.build_sgdm(1.0, 0.9)
    filled = tff.tensorflow.computation(lambda value: tf.fill([dimension], value), np.float32)

    @tff.tensorflow.computation
    def start() -> object:
        return optimizer.initialize(tf.TensorSpec([dimension])), tf.zeros([dimension])

    optimizer_type, weights_type = start.type_signature.result

    @tff.tensorflow.computation(optimizer_type, weights_type, weights_type)
    def update(state: object, weights: tf.Tensor, change: tf.Tensor) -> object:
        return optimizer.next(state, weights, change)

    @tff.federated_computation
    def initialize() -> object:
        return tff.federated_zip((aggregation.initialize(), tff.federated_eval(start, tff.SERVER)))

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(np.float32, tff.CLIENTS))
    def one_round(state: tff.Value, values: tff.Value) -> object:
        noise, (momentum, weights) = state[0], (state[1][0], state[1][1])
        output = aggregation.next(noise, tff.federated_map(filled, values))
        changed = tff.federated_map(update, (momentum, weights, output.result))
        return tff.federated_zip((output.state, changed)), output.measurements

    return tff.templates.IterativeProcess(initialize, one_round)


def stepping(process: tff.templates.IterativeProcess, data: list[object]) -> Callable[[], None]:
    state = [process.initialize()]

    def step() -> None:
        output = process.next(state[0], data)
        state[0] = output.state if hasattr(output, "state") else output[0]

    return step


def draw(dimension: int) -> Callable[[], None]:
    normals = tff.tensorflow.computation(
        lambda seed: tf.random.stateless_normal([dimension], tf.stack([seed, 7]), alg="philox")[:1], np.int64
    )
    seeds = iter(range(10**9))
    return lambda: normals(next(seeds))


def worker() -> psutil.Process:
    (found,) = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return found


def peak_bytes(process: psutil.Process) -> int:
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def banded(bands: int = BANDS) -> tff_mf.Mechanism:
    """Time and memory do not depend on the values: those of a square root, which need no search."""
    column = tff_mf.BandedToeplitz.square_root(bands).column
    values = np.zeros((bands, ROUNDS))
    for band, value in enumerate(column):
        values[band, : ROUNDS - band] = value
    return tff_mf.Banded(values=values)


def server() -> None:
    state_bytes = 4 * LSTM * (BANDS - 1 + 2)
    with aggregators.resident_context():
        before = peak_bytes(worker())
        step, one_draw = stepping(server_process(banded(), LSTM), [0.5]), draw(LSTM)
        for warmup in (step, one_draw, step, one_draw):
            warmup()
        # A block of rounds is 31 rounds of different cost: the mean over whole blocks counts.
        rounds = [(_seconds(step), _seconds(one_draw)) for _ in range(62)]
        peak = peak_bytes(worker()) - before
    mean, draws = (statistics.mean(column) for column in zip(*rounds, strict=True))
    slowest = max(seconds for seconds, _ in rounds)
    row(
        f"banded, {BANDS} bands, d = {LSTM}: server part of a round over one draw of d normals",
        f"{mean / draws:.2f} ({mean:.3f} s, slowest {slowest:.3f} s; draw {draws:.3f} s)",
        "≤ 8, then ≤ 4",
    )
    row("peak memory of the worker over the state", f"{peak / state_bytes:.2f} ({state_bytes / 1e9:.2f} GB)", "≤ 1.3")


def ordinary() -> None:
    process = server_process(tff_mf.BLT.production("b400"), LSTM)
    with aggregators.resident_context():
        resident = median_seconds({"round": stepping(process, [0.5])}, 15)["round"]
    with aggregators.tff_session():
        shipped = median_seconds({"round": stepping(process, [0.5])}, 4, warmup=1)["round"]
    row(
        "blt, 4 buffers: server part in the ordinary context over resident",
        f"{shipped / resident:.1f} ({shipped:.2f} s, {resident:.3f} s)",
        "≥ 10",
    )
    for bands in (BANDS_BELOW, BANDS_ABOVE_THE_LIMIT):
        row(
            f"banded, {bands} bands ({4 * LSTM * (bands + 1) / 1e9:.1f} GB), in the ordinary context",
            _attempt(bands),
            "what happens",
        )


def _attempt(bands: int) -> str:
    """Returns how a round in the ordinary context ends, in a process of its own."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import resident as b\n"
        "with b.aggregators.tff_session():\n"
        f"    step = b.stepping(b.server_process(b.banded({bands}), b.LSTM), [0.5]); step()\n"
        "    print(f'a round took {b._seconds(step):.1f} s')\n"
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
            how = "had no round by then, and was ended"
        log.seek(0)
        told = [line.strip() for line in log if "took" in line or "details =" in line or "Error:" in line]
    return f"{how} after {time.perf_counter() - start:.0f} s: {told[-1][:140] if told else 'without a word'}"


class Lstm:
    """The papers' model, and real clients for it."""

    def __init__(self, clients: int = CLIENTS) -> None:
        data = named_data.data_file("pydoc")
        splits = sqlite.load(data)
        cohorts = sampling.plan_cohorts(
            client_ids=splits.train.client_ids,
            clients_per_round=clients,
            rounds=1,
            participation=tff_mf.SingleParticipation(),
            seed=0,
        )
        self.task = task.build_task(
            ModelConfig(),
            vocabulary=list(sqlite.load_word_counts(data, 10_000)),
            batch_size=16,
            max_examples=32,
            client_epochs=1,
            seed=0,
        )
        source = sampling.MinSepDataSource(splits.train, cohorts, preprocess_fn=self.task.preprocess_train)
        self.cohorts = [source.datasets(index) for index in range(1)]

    def process(
        self, aggregator: tff.aggregators.UnweightedAggregationFactory | None
    ) -> tff.learning.templates.LearningProcess:
        return tff.learning.algorithms.build_unweighted_fed_avg(
            self.task.model,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.9),
            model_aggregator=aggregator,
            loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
        )


def blt(insecure_seed: int | None = None) -> aggregators.MFAggregationFactory:
    return aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"),
        clip_norm=1.0,
        noise_multiplier=0.1,
        clients_per_round=CLIENTS,
        insecure_seed=insecure_seed,
    )


def workers() -> None:
    lstm = Lstm()
    found = {}
    with aggregators.running_worker() as one, aggregators.running_worker() as two:
        for name, addresses in {"1": (one.address,), "2": (one.address, two.address)}.items():
            with aggregators.resident_context(workers=addresses):
                process = lstm.process(blt(insecure_seed=1))
                state = process.set_model_weights(process.initialize(), lstm.task.initial_weights)
                seconds = []
                for cohort in [lstm.cohorts[0]] * 4:
                    start = time.perf_counter()
                    state = process.next(state, cohort).state
                    seconds.append(time.perf_counter() - start)
                weights = [np.asarray(weight) for weight in process.get_model_weights(state).trainable]
                found[name] = min(seconds), weights
    apart = max(float(np.max(np.abs(one - two))) for one, two in zip(found["1"][1], found["2"][1], strict=True))
    row(
        f"two workers on {os.cpu_count()} cores over one, {CLIENTS} clients",
        f"time {found['2'][0] / found['1'][0]:.2f} ({found['1'][0]:.2f} s), models at most {apart:.1e} apart",
        "same result",
    )


def checkpoint() -> None:
    lstm = Lstm()
    aggregator = blt()
    process = lstm.process(aggregator)
    with aggregators.resident_context(), tempfile.TemporaryDirectory() as folder:
        manager = aggregators.CheckpointManager(folder, aggregator=aggregator)
        state = process.next(process.initialize(), lstm.cohorts[0]).state
        start = time.perf_counter()
        asyncio.run(manager.save(state, 1))
        seconds = time.perf_counter() - start
        (file,) = pathlib.Path(folder).glob("checkpoint_*")
        size = file.stat().st_size
    row("checkpoint over the model, bytes", f"{size / (4 * LSTM):.3f} (saved in {seconds:.2f} s)", "≤ 2.2")


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


_RUN = """
import hashlib, pathlib, sys
import tff_mf
from tff_mf.experiments import runs, training
from tff_mf.experiments.privacy import plan_privacy
from tff_mf.experiments.settings import ExecutionSettings, ModelConfig, TrainingSettings
out, resume = pathlib.Path(sys.argv[1]), len(sys.argv) > 2
out.mkdir(exist_ok=True)
execution = ExecutionSettings(checkpoint_every=3, resume=resume and (out / "checkpoints").is_dir())
result = training.run(
    TrainingSettings(
        model=ModelConfig(architecture="conv", vocab_size=200, embedding_size=8, units=8),
        max_examples=1, batch_size=1, evaluate_every=10, evaluation_examples=40,
    ),
    plan_privacy(
        mechanism=tff_mf.BLT.production("b400"), rounds=30, clients_per_round=3, noise_multiplier=0.01, insecure_seed=1,
        participation=tff_mf.MinSep(min_sep=5, max_participations=6), delta=1e-6,
    ),
    data=runs.data_file("pydoc"), out=out, execution=execution,
)
digest = hashlib.sha256(b"".join(weight.tobytes() for weight in result.weights)).hexdigest()
(out / "digest").write_text(digest)
"""


def kills(moments: int = 20) -> None:
    same = 0
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:

        def run(name: str, *resume: str) -> subprocess.Popen:
            command = [sys.executable, "-c", _RUN, str(pathlib.Path(folder, name)), *resume]
            return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)

        start = time.perf_counter()
        run("whole").wait()
        whole = time.perf_counter() - start
        expected = pathlib.Path(folder, "whole", "digest").read_text()
        for moment in range(moments):
            process = run(str(moment))
            time.sleep(generator.uniform(0.3, 1.0) * whole)
            process.kill()
            process.wait()
            run(str(moment), "resume").wait()
            same += pathlib.Path(folder, str(moment), "digest").read_text() == expected
    row("killed at a random moment and resumed: the same model bit for bit", f"{same} of {moments}", "all")


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


PARTS = {part.__name__: part for part in (server, ordinary, workers, checkpoint, flat, kills)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part")
    names = parser.parse_args().parts or [name for name in PARTS if name != "kills"]
    row("quantity", "measured", "must be")
    row("---", "---", "---")
    for name in names:
        PARTS[name]()


if __name__ == "__main__":
    main()
