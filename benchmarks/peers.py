"""Time of the same simulated round in ours, in plain TensorFlow, in plain torch, and in pfl-research.

    python benchmarks/peers.py [table] [full] [size] [memory] [--turns N] [--cores N] [--model NAME]
    python benchmarks/peers.py page

Model, first weights, clients, words and steps are the same. Each peer is a process that lives as long as its case; they
are asked for one round at a time, in rotation, so that what else the machine does affects all of them. CPU seconds are
those of a peer and its child processes. After two rounds the models are compared. torch and pfl-research are installed
into build/peers/torch when they are first needed.

What is measured goes to docs/results/performance.json. Afterwards, or by `page` alone, docs/performance.png is drawn of
it, and the tables of docs/results.md are replaced.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import psutil
from _common import environment
from _peer import ANSWERS, Case, read_model
from _peers_page import PLAIN, draw, filled

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results" / "performance.json"
PAGE = HERE.parent / "docs" / "results.md"
PICTURE = HERE.parent / "docs" / "performance.png"
REQUIREMENTS = ("torch==2.13.0", "pfl==0.6.0")
COMPARED_AFTER = 2

Times = dict[str, list[tuple[float, float]]]

# Program, and its arguments.
PEERS: Mapping[str, tuple[str, ...]] = {
    PLAIN: ("_peer_tensorflow.py",),
    "tff-mf": ("_peer_ours.py",),
    "tff-mf, TFF's model": ("_peer_ours.py", "--model-of-tff"),
    "plain torch": ("_peer_torch.py",),
    "pfl-research": ("_peer_pfl.py",),
}
_OF_TORCH = ("_peer_torch.py", "_peer_pfl.py")
TABLE = (PLAIN, "tff-mf", "tff-mf, TFF's model", "plain torch", "pfl-research")
CURVES = (PLAIN, "tff-mf", "plain torch", "pfl-research")

LSTM = Case(
    architecture="lstm", vocab_size=10_000, embedding_size=96, units=670, clients=10, most_clients=10, sentences=32
)
CONV = Case(
    architecture="conv", vocab_size=2000, embedding_size=32, units=32, clients=100, most_clients=1000, sentences=16
)
# A round of one client of the light model takes less than the hundredths in which the system counts CPU seconds.
COHORTS = {"lstm": (1, 3, 10), "conv": (10, 100, 1000)}


def changed(case: Case, **values: object) -> Case:
    return Case(**{**vars(case), **values})


WIDER = [changed(CONV, embedding_size=width, units=width, clients=10, most_clients=10) for width in (32, 128, 512)]


class Process:
    """A peer that runs.

    Args:
        name: Its name in `PEERS`.
        folder: The case.
        python: Python of torch.
        cores: The cores that it has.
    """

    def __init__(self, name: str, folder: pathlib.Path, python: pathlib.Path, cores: Sequence[int]) -> None:
        program, *arguments = PEERS[name]
        interpreter = python if program in _OF_TORCH else sys.executable
        # Each peer has the threads that it would have by itself.
        free = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
        self._log = (folder / f"{name}.log").open("w")
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        self._process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, cores)), interpreter, HERE / program, folder, *arguments],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            env=free | {ANSWERS: str(writing)},
            pass_fds=[writing],
        )
        os.close(writing)
        self.name = name

    def wait(self) -> None:
        """Waits until the last request is done.

        Raises:
            RuntimeError: If the peer ended.
        """
        if self._answers.readline() != "done\n":
            raise RuntimeError(f"{self.name} ended: see {self._log.name}")

    def ask(self, **request: object) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self.wait()

    def timed_round(self, clients: int) -> tuple[float, float]:
        """Returns the wall and CPU seconds of a round."""
        before, start = self.cpu_seconds(), time.perf_counter()
        self.ask(clients=clients)
        wall = time.perf_counter() - start
        return round(wall, 4), round(self.cpu_seconds() - before, 4)

    def cpu_seconds(self) -> float:
        own = psutil.Process(self._process.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))

    def end(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._answers.close()
        self._log.close()


class Bench:
    """The cases of a run, and how its rounds are timed.

    Args:
        folder: Folder of the cases.
        turns: Rounds of each peer that are timed.
        cores: Cores that all peers have.
    """

    def __init__(self, folder: pathlib.Path, turns: int, cores: Sequence[int]) -> None:
        self.turns, self.cores = turns, cores
        self._folder = folder

    def folder_of(self, case: Case) -> pathlib.Path:
        return self._folder / "-".join(str(value) for value in vars(case).values())

    def make(self, cases: Sequence[Case]) -> None:
        """Makes cases: words and first weights, by a process with TensorFlow."""
        values = json.dumps({str(self.folder_of(case)): vars(case) for case in cases})
        subprocess.run([sys.executable, HERE / "_peer_cases.py"], input=values, text=True, check=True)

    @contextlib.contextmanager
    def running(self, names: Sequence[str], case: Case) -> Iterator[list[Process]]:
        """Runs peers with a case."""
        python = (
            environment("torch", REQUIREMENTS) if any(PEERS[name][0] in _OF_TORCH for name in names) else pathlib.Path()
        )
        with contextlib.ExitStack() as ends:
            processes = []
            for name in names:
                processes.append(Process(name, self.folder_of(case), python, self.cores))
                ends.callback(processes[-1].end)
            for process in processes:
                process.wait()
            yield processes


def rotate(processes: Sequence[Process], clients: int, turns: int, *, untimed: int) -> Times:
    """Returns the times of rounds, which the peers run in turns.

    Args:
        processes: The peers.
        clients: Clients of a round.
        turns: Rounds of each peer that are timed.
        untimed: Rounds before them, in which graphs are traced.
    """
    found: Times = {process.name: [] for process in processes}
    for turn in range(untimed + turns):
        for process in processes:
            taken = process.timed_round(clients)
            if turn >= untimed:
                found[process.name].append(taken)
    return found


def apart(processes: Sequence[Process]) -> dict[str, float]:
    """Returns how far each model is from the first, at most, in any weight."""
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        for process in processes:
            file = pathlib.Path(folder) / "model.npz"
            process.ask(model=str(file))
            models[process.name] = read_model(file)
    first = models[processes[0].name]
    return {
        name: max(float(np.max(np.abs(one - other))) for one, other in zip(first, model, strict=True))
        for name, model in models.items()
    }


def table(bench: Bench, case: Case, part: dict[str, object]) -> None:
    """Compares the models after two rounds, and measures cohorts: that of the table first, then other sizes."""
    with bench.running(TABLE, case) as processes:
        rotate(processes, case.clients, 0, untimed=COMPARED_AFTER)
        part["apart"] = apart(processes)
        part["times"] = rotate(processes, case.clients, bench.turns, untimed=0)
        drawn = [process for process in processes if process.name in CURVES]
        sizes = part["clients"] = {}
        for clients in COHORTS[case.architecture]:
            if clients <= case.most_clients and clients != case.clients:
                large = clients > case.clients
                sizes[str(clients)] = rotate(drawn, clients, 1 if large else 3, untimed=0 if large else 1)


def size(bench: Bench, case: Case, part: dict[str, object]) -> None:
    """Measures a light model with wider layers."""
    with bench.running(CURVES, case) as processes:
        part["times"] = rotate(processes, case.clients, bench.turns, untimed=COMPARED_AFTER)


def parameters(case: Case) -> int:
    """Returns the number of parameters of a light model."""
    words, width, filters = case.vocab_size + 4, case.embedding_size, case.units
    return words * width + (3 * width + 1) * filters + (filters + 1) * words


def memory() -> dict[str, list[float]]:
    """Measures memory over 500 rounds of 100 clients, with `memory.py`."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "memory.csv"
        subprocess.run([sys.executable, HERE / "memory.py", "--csv", file], check=True)
        rows = np.genfromtxt(file, delimiter=",", names=True)
    return {name: rows[name][::5].tolist() for name in ("round", "python", "worker")}


PARTS: Mapping[str, tuple[Callable[[Bench, Case, dict[str, object]], None], Mapping[str, Case]]] = {
    "table": (table, {"lstm": LSTM, "conv": CONV}),
    "full": (
        table,
        {case.architecture: changed(case, full=True, most_clients=case.clients) for case in (LSTM, CONV)},
    ),
    "size": (size, {str(parameters(case)): case for case in WIDER}),
}


def page() -> None:
    """Draws the picture of all results, and puts their tables into the page."""
    found = results()
    draw(found, PICTURE)
    PAGE.write_text(filled(PAGE.read_text(), found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join([*PARTS, "memory", "page"]))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="of all peers")
    parser.add_argument("--model", choices=COHORTS, help="of the parts that have both, only this one")
    given = parser.parse_args()
    chosen = given.parts or [*PARTS, "memory"]
    asked = [
        (name, key, case)
        for name in PARTS
        if name in chosen
        for key, case in PARTS[name][1].items()
        if given.model in (None, key) or key not in COHORTS
    ]
    if asked:
        # Kept if a peer ends, for its log.
        folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        measure(Bench(folder, given.turns, given.cores), asked)
        shutil.rmtree(folder)
    if "memory" in chosen:
        write("memory", "conv", memory())
    page()


def measure(bench: Bench, asked: Sequence[tuple[str, str, Case]]) -> None:
    """Measures the cases, and writes each when it is done."""
    bench.make([case for _, _, case in asked])
    for name, key, case in asked:
        part: dict[str, object] = {"cores": len(bench.cores)}
        before = psutil.getloadavg()[0]
        PARTS[name][0](bench, case, part)
        write(name, key, part | {"load": [round(before, 1), round(psutil.getloadavg()[0], 1)]})


def results() -> dict[str, dict[str, object]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(name: str, key: str, part: object) -> None:
    found = results()
    found.setdefault(name, {})[key] = part
    RESULTS.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
