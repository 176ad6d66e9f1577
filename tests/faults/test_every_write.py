"""A run that is struck at any of its writes, fsyncs and renames goes on to its end, and releases no round twice."""

import contextlib
import csv
import json
import pathlib

import pytest
import safetensors.numpy

pytest.importorskip("tensorflow_federated")

import tff_mf
from tff_mf.base import files
from tff_mf.experiments import reports
from tff_mf.experiments.data import write_pydoc

HERE = pathlib.Path(__file__).parent
# An hour: tests/experiments/test_recovery.py and test_private_training.py strike at some, and end in the same way.
pytestmark = pytest.mark.long

PROGRAM = """
import sys
sys.path.append({here!r})
import striking
folder, counted, number, fault = (sys.argv.pop(1) for _ in range(4))
striking.armed(folder, counted, int(number), fault)
from {module} import main
main()
"""
# One sentence a client, since the order of more is random.
TRAIN = """train --force --mechanism production:b100 --noise-multiplier 0.01 --set insecure_seed=7 --without-epsilon
--rounds 9 --clients-per-round 4 --min-sep 2 --max-participations 5 --delta 1e-6 --set model=conv --set vocab_size=100
--set embedding_size=4 --set units=4 --set max_examples=1 --set batch_size=1 --set evaluate_every=4
--set evaluation_examples=20 --set checkpoint_every=2"""
CENTRAL = "train-central --preset digits --epochs 3 --mechanism tree-full --set batch_size=256"


def ledger(folder):
    """The entries of a ledger, whose last line may be there in part."""
    path, found = folder / "ledger.jsonl", []
    with contextlib.suppress(ValueError):
        found += map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return found


def released_twice(folder):
    """The rounds that ran again after they were released."""
    released, again = set(), []
    for entry in ledger(folder):
        if entry["kind"] == "released":
            released.add(entry["round"])
        if entry["kind"] == "begun" and entry["round"] in released:
            again.append(entry["round"])
    return again


def begun(folder):
    """Whether a run was begun in a folder, so that it is gone on with."""
    return folder.is_dir() and bool(set(folder.iterdir()) - {folder / ".lock", *files.unfinished(folder)})


class Training:
    """`tff-mf train`, whose noise follows from a seed, so that its end is that of an undisturbed run."""

    module = "tff_mf.experiments.cli"

    def __init__(self, work):
        self.data = work / "small.sqlite"
        write_pydoc(self.data, ["scipy"])

    def arguments(self, folder):
        place = ["--dataset", f"sqlite:{self.data}", "--out", str(folder)]
        return [*TRAIN.split(), *place, *(["--resume"] if begun(folder) else [])]

    def end(self, folder):
        with (folder / "metrics.csv").open(newline="") as file:
            measured = [(row["round"], row["loss"]) for row in csv.DictReader(file)]
        summary = json.loads((folder / "summary.json").read_text())
        took_part = {(each["round"], client) for each in ledger(folder) for client in each.get("clients", ())}
        return measured, {**summary, "seconds": None}, took_part, reports.check(folder).problems


class Central:
    """`tff-mf train-central`, whose noise no two runs share."""

    module = "tff_mf.experiments.cli"

    def __init__(self, work):
        pass

    def arguments(self, folder):
        return [*CENTRAL.split(), "--out", str(folder), *(["--resume"] if begun(folder) else [])]

    def end(self, folder):
        with (folder / "metrics.csv").open(newline="") as file:
            epochs = [row["round"] for row in csv.DictReader(file)]
        summary = json.loads((folder / "summary.json").read_text())
        stated = {name: summary[name] for name in ("epsilon", "noise_multiplier", "rounds", "reasons")}
        written = [(entry["kind"], entry.get("round")) for entry in ledger(folder) if entry["kind"] != "begun"]
        return epochs, stated, written, (folder / "model.weights.h5").is_file()


class Private:
    """A loop over `private_fed_avg`, whose cohorts follow from a key that no two runs share."""

    module = "private_run"

    def __init__(self, work):
        pass

    def arguments(self, folder):
        return [str(folder)]

    def end(self, folder):
        log = json.loads((folder / "report.json").read_text())["log"]
        model = safetensors.numpy.load_file(folder / "model.safetensors")
        clients = {client for each in ledger(folder) for client in each.get("clients", ())}
        shapes = {name: value.shape for name, value in model.items()}
        return log["released"], log["has_ended"], shapes, clients, reports.check(folder).problems


class Target:
    """A run, and what an undisturbed one of it does."""

    def __init__(self, run, work, forks):
        self.run, self.work, self.forks = run, work, forks
        status, self.events = self.ran(work / "undisturbed")
        assert status == 0, (work / "log").read_text()
        self.end = self.end_of(work / "undisturbed")
        assert self.end is not None

    def ran(self, folder, number=0, fault="SIGKILL"):
        """The exit status, and how many changes were counted."""
        counted = self.work / "counted"
        counted.write_bytes(b"")
        arguments = [str(folder), str(counted), str(number), fault, *self.run.arguments(folder)]
        with (self.work / "log").open("w") as log:
            code = PROGRAM.format(here=str(HERE), module=self.run.module)
            started = self.forks.start(code, arguments, stdout=log.fileno(), stderr=log.fileno())
            return started.wait(timeout=600), counted.stat().st_size

    def end_of(self, folder):
        """What is in a folder, of which no key is left; None if it is not at its end."""
        with contextlib.suppress(OSError, KeyError, ValueError, tff_mf.InputError):
            found = self.run.end(folder)
            return None if list((folder / "checkpoints").glob("*.safetensors")) else found
        return None


@pytest.fixture(scope="module", params=[Training, Central, Private])
def target(request, tmp_path_factory, forks):
    work = tmp_path_factory.mktemp(request.param.__name__)
    return Target(request.param(work), work, forks)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGINT", "SIGTERM", "ENOSPC"])
def test_a_run_that_is_struck_goes_on_to_the_same_end(target, fault, tmp_path):
    events = range(1, target.events + 1)
    for number in events if fault == "SIGKILL" else events[:: len(events) // 3]:
        folder = tmp_path / str(number)
        # Struck once more while it goes on.
        for place in (number, number, 0):
            status, _ = target.ran(folder, place, fault)
            # A command says what happened in a line; a loop of somebody's own gets the error.
            assert isinstance(target.run, Private) or "Traceback" not in (target.work / "log").read_text()
            assert released_twice(folder) == [], (number, fault)
            if target.end_of(folder) == target.end:
                break
        assert target.end_of(folder) == target.end, (number, fault, status, (target.work / "log").read_text())
