"""Time of the same simulated round in ours, in plain TensorFlow, in plain torch, and in pfl-research.

    python benchmarks/peers.py [table] [full] [--turns N] [--cores N] [--model NAME]
    python benchmarks/peers.py page

Model, first weights, clients, words and steps are the same. Each peer is a process that lives as long as its case; they
are asked for one round at a time, in rotation, so that what else the machine does affects all of them. CPU seconds are
those of a peer and its child processes. After two rounds the models are compared. torch and pfl-research are installed
into build/peers/torch when they are first needed. Sentences are padded in `table`, and full in `full`.

What is measured goes to docs/results/performance.json. Afterwards, or by `page` alone, the table of docs/results.md is
replaced.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from _common import environment
from _peer import ANSWERS, Case, read_model

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results" / "performance.json"
PAGE = HERE.parent / "docs" / "results.md"
_MARKS = ("<!-- measured -->", "<!-- until here -->")
REQUIREMENTS = ("torch==2.13.0", "pfl==0.6.0")
COMPARED_AFTER = 2

Times = dict[str, list[tuple[float, float]]]
# Wall and CPU seconds of rounds.
Pairs = Sequence[Sequence[float]]

PLAIN = "plain TensorFlow"
# Program, and its argument after the folder of the case.
PEERS: Mapping[str, tuple[str, str]] = {
    PLAIN: ("_peer_tensorflow.py", "plain"),
    "tff-mf": ("_peer_tensorflow.py", "ours"),
    "private_fed_avg": ("_peer_tensorflow.py", "tff"),
    "plain torch": ("_peer_torch.py", "torch"),
    "pfl-research": ("_peer_torch.py", "pfl"),
}

LSTM = Case(architecture="lstm", vocab_size=10_000, embedding_size=96, units=670, clients=10, sentences=32)
CONV = Case(architecture="conv", vocab_size=2000, embedding_size=32, units=32, clients=100, sentences=16)
TITLES = {"lstm": "LSTM of the papers, 10 clients × 32 sentences", "conv": "light model, 100 clients × 16 sentences"}
# With the word for their sentences.
PARTS = {"table": "padded", "full": "no padding"}


class Process:
    """A peer that runs.

    Args:
        name: Its name in `PEERS`.
        folder: The case.
        python: Python of torch.
        cores: The cores that it has.
    """

    def __init__(self, name: str, folder: pathlib.Path, python: pathlib.Path, cores: Sequence[int]) -> None:
        program, argument = PEERS[name]
        interpreter = python if program == "_peer_torch.py" else sys.executable
        # Each peer has the threads that it would have by itself.
        free = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
        self._log = (folder / f"{name}.log").open("w")
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        self._process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, cores)), interpreter, HERE / program, folder, argument],
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

    def timed_round(self) -> tuple[float, float]:
        """Returns the wall and CPU seconds of a round."""
        before, start = self.cpu_seconds(), time.perf_counter()
        self.ask(round=1)
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


@contextlib.contextmanager
def running(folder: pathlib.Path, cores: Sequence[int]) -> Iterator[list[Process]]:
    """Runs all peers with the case in a folder."""
    python = environment("torch", REQUIREMENTS)
    with contextlib.ExitStack() as ends:
        processes = []
        for name in PEERS:
            processes.append(Process(name, folder, python, cores))
            ends.callback(processes[-1].end)
        for process in processes:
            process.wait()
        yield processes


def rotate(processes: Sequence[Process], turns: int) -> Times:
    """Returns the times of rounds, which the peers run in turns."""
    times: Times = {process.name: [] for process in processes}
    for _ in range(turns):
        for process in processes:
            times[process.name].append(process.timed_round())
    return times


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


def table(found: Mapping[str, Any]) -> str:
    """Returns the table of the same round in each framework."""
    peers = list(next(iter(found["table"].values()))["times"])
    compared = [f"| round | {peers[0]}, seconds | {' | '.join(peers[1:])} |", _rule(len(peers))]
    compared += [
        _compared(f"{TITLES[model]}, {PARTS[name]}", found[name][model]["times"])
        for name in PARTS
        for model in found.get(name, ())
    ]
    return "\n".join(compared)


def _rule(columns: int) -> str:
    return f"|---|{columns * '--:|'}"


def _compared(title: str, times: Mapping[str, Pairs]) -> str:
    plain = times[PLAIN]
    ratios = [
        f"{_ratio(pairs, plain, 0)} ({_ratio(pairs, plain, 1)})" for peer, pairs in times.items() if peer != PLAIN
    ]
    return f"| {title} | {_seconds(plain, 0)} ({_seconds(plain, 1)}) | {' | '.join(ratios)} |"


def _seconds(pairs: Pairs, column: int) -> str:
    return f"{statistics.median(pair[column] for pair in pairs):.2f}"


def _ratio(pairs: Pairs, others: Pairs, column: int) -> str:
    """Returns the median of the ratios within each turn, in which the load of the machine affects both."""
    return f"{statistics.median(one[column] / other[column] for one, other in zip(pairs, others, strict=True)):.2f}"


def filled(text: str, found: Mapping[str, Any]) -> str:
    """Returns a page with the table of what was measured between its two marks."""
    before, _, rest = text.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return "".join([before, _MARKS[0], "\n\n", table(found), "\n\n", _MARKS[1], after])


def measure(folder: pathlib.Path, asked: Sequence[tuple[str, Case]], turns: int, cores: Sequence[int]) -> None:
    """Measures the cases, and writes each when it is done."""
    folders = {str(folder / f"{name}-{case.architecture}"): (name, case) for name, case in asked}
    # Words and first weights are made by a process with TensorFlow.
    cases = json.dumps({path: vars(case) for path, (_, case) in folders.items()})
    subprocess.run([sys.executable, HERE / "_peer_tensorflow.py", "cases"], input=cases, text=True, check=True)
    for path, (name, case) in folders.items():
        before = psutil.getloadavg()[0]
        with running(pathlib.Path(path), cores) as processes:
            rotate(processes, COMPARED_AFTER)
            part = {"cores": len(cores), "apart": apart(processes), "times": rotate(processes, turns)}
        measured = results()
        load = [round(before, 1), round(psutil.getloadavg()[0], 1)]
        measured.setdefault(name, {})[case.architecture] = part | {"load": load}
        RESULTS.write_text(json.dumps(measured, separators=(",", ":")) + "\n")


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join([*PARTS, "page"]))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="of all peers")
    parser.add_argument("--model", choices=TITLES, help="only this one")
    given = parser.parse_args()
    asked = [
        (name, dataclasses.replace(case, full=name == "full"))
        for name in PARTS
        if name in (given.parts or PARTS)
        for case in (LSTM, CONV)
        if given.model in (None, case.architecture)
    ]
    if asked:
        # Kept if a peer ends, for its log.
        folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        measure(folder, asked, given.turns, given.cores)
        shutil.rmtree(folder)
    PAGE.write_text(filled(PAGE.read_text(), results()))


if __name__ == "__main__":
    main()
