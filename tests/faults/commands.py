"""The commands that are killed and starved: one entry each."""

import csv
import dataclasses
import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import private_run
import safetensors.numpy
import small_run

import tff_mf
from tff_mf.base import files
from tff_mf.experiments import cli, reports
from tff_mf.experiments.runs.settings import RunSettings


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, and what must hold after whatever was done to it.

    Attributes:
        name: Its name.
        arguments: From data set and folder to what starts it there.
        again: From data set and folder to what goes on there.
        same: Raises unless the folder has what an undisturbed run has in the other.
        main: What takes the arguments: the command line, or a program of somebody's own.
    """

    name: str
    arguments: Callable[[pathlib.Path, pathlib.Path], list[str]]
    again: Callable[[pathlib.Path, pathlib.Path], list[str]]
    same: Callable[[pathlib.Path, pathlib.Path], None]
    main: Callable[[], None] = cli.main


class DifferentError(Exception):
    """Something is not as it was without a fault."""


def _equal(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise DifferentError(f"{name} is {found!r}, not {expected!r}"[:500])


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _optimize(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    del data
    schema = ["--rounds", "300", "--min-sep", "30", "--max-participations", "5"]
    return ["optimize", "blt", *schema, "--buffers", "3", "--out", str(folder / "blt.safetensors")]


def _artifact_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    _equal("artifact", *(tff_mf.load(each / "blt.safetensors") for each in (folder, expected)))


def _train(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    return small_run.flags(data, folder / "run", mechanism="production:b100", seed=7)


def _to_resume(run: pathlib.Path) -> list[str]:
    """The flag of a run that has written a file."""
    begun = run.is_dir() and set(run.iterdir()) - {run / ".lock", *files.unfinished(run)}
    return ["--resume"] if begun else []


def _train_again(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    return [*_train(data, folder), *_to_resume(folder / "run")]


def twice(folder: pathlib.Path) -> list[int]:
    """Returns the rounds that a ledger says ran again after they were released."""
    path = folder / "ledger.jsonl"
    released, again = set(), []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if entry["kind"] == "released":
            released.add(entry["round"])
        if entry["kind"] == "begun" and entry["round"] in released:
            again.append(entry["round"])
    return again


def check_intact(folder: pathlib.Path) -> None:
    """Raises if something in the folder of a command is there in part, or a round was released twice."""
    for path in folder.rglob("*.json"):
        json.loads(path.read_text())
    for path in (*folder.rglob("mechanism.safetensors"), *folder.glob("blt.safetensors")):
        tff_mf.load(path)
    for path in folder.rglob("ledger.jsonl"):
        _equal("rounds released twice", twice(path.parent), [])
    for path in folder.glob("bundle"):
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=path, check=True, capture_output=True)


def _who_took_part(path: pathlib.Path) -> list[tuple[int, str]]:
    """Returns the clients of each round, of whatever attempt."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted({(line["round"], client) for line in lines for client in line.get("clients", ())})


def _run_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    run, whole = folder / "run", expected / "run"
    _equal("participation", *(_who_took_part(each / "ledger.jsonl") for each in (run, whole)))
    for name in ("round", "loss"):
        column = [[row[name] for row in _rows(each / "metrics.csv")] for each in (run, whole)]
        _equal(name, *column)
    kept = [json.loads((each / "summary.json").read_text()) for each in (run, whole)]
    for summary in kept:
        summary.pop("seconds")
    _equal("summary", *kept)
    _equal("problems", *(reports.check(each).problems for each in (run, whole)))
    _equal("checkpoints left", list((run / "checkpoints").glob("*.safetensors")), [])


def _private(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    del data
    return [str(folder / "run")]


def _private_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    runs = [each / "run" for each in (folder, expected)]
    # Who is in which cohort follows from a key that no two runs share.
    _equal("clients", *(sorted({client for _, client in _who_took_part(run / "ledger.jsonl")}) for run in runs))
    _equal("problems", *(reports.check(run).problems for run in runs))
    kept = [json.loads((run / "report.json").read_text()) for run in runs]
    _equal("rounds", *({name: report["log"][name] for name in ("released", "has_ended")} for report in kept))
    models = [safetensors.numpy.load_file(run / "model.safetensors") for run in runs]
    _equal("model", *({name: value.shape for name, value in model.items()} for model in models))
    _equal("keys left", list((runs[0] / "checkpoints").iterdir()), [])


def _central(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    del data
    setting = ["--epochs", "4", "--set", "batch_size=640", "--mechanism", "tree-full", "--noise-multiplier", "5"]
    return ["train-central", "--preset", "digits", *setting, "--out", str(folder / "central")]


def _central_again(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    return [*_central(data, folder), *_to_resume(folder / "central")]


def _central_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    runs = [each / "central" for each in (folder, expected)]
    _equal("rounds", *([row["round"] for row in _rows(run / "metrics.csv")] for run in runs))
    kept = [json.loads((run / "summary.json").read_text()) for run in runs]
    for summary in kept:
        # The noise is never the same.
        for name in [name for name in summary if "accuracy" in name or "loss" in name]:
            summary.pop(name)
    _equal("summary", *kept)
    _equal("files", *(sorted(path.name for path in run.iterdir()) for run in runs))


_SPEC = """
[run]
rounds = 4
clients_per_round = 2
min_sep = 2
max_participations = 2
delta = 1e-6
noise_multiplier = 1.0
model = "conv"
vocab_size = 100
embedding_size = 4
units = 4
max_examples = 1
batch_size = 1
evaluate_every = 4
evaluation_examples = 10
dataset = "sqlite:{data}"

[[grid]]
mechanism = ["identity", "tree-online"]
"""


def _compare(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    spec = folder / "spec.toml"
    spec.write_text(_SPEC.format(data=data))
    return ["compare", str(spec), "--out", str(folder / "comparison"), "--jobs", "2"]


def _comparison_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    kept = [json.loads((each / "comparison" / "comparison.json").read_text()) for each in (folder, expected)]
    for name in ("runs_planned", "runs_done", "runs_failed"):
        _equal(name, *(each.get(name) for each in kept))


def _export(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    settings = RunSettings(
        dataset=f"sqlite:{data}",
        mechanism="production:b100",
        rounds=9,
        clients_per_round=3,
        min_sep=2,
        max_participations=5,
        delta=1e-6,
        noise_multiplier=5.0,
        model="conv",
        vocab_size=100,
        embedding_size=4,
        units=4,
    )
    run, plan = folder / "begun", settings.privacy_plan(settings.build_mechanism())
    reports.write_record(run, plan, settings=settings, server_learning_rate=settings.chosen_rate(plan))
    (run / "vocabulary.json").write_text(json.dumps([f"word{number}" for number in range(100)]))
    return ["export", str(run), "--out", str(folder / "bundle")]


def _export_again(data: pathlib.Path, folder: pathlib.Path) -> list[str]:
    # What is there is whole: a folder with files would be refused.
    shutil.rmtree(folder / "bundle", ignore_errors=True)
    return _export(data, folder)


def _bundle_same(folder: pathlib.Path, expected: pathlib.Path) -> None:
    kept = [(each / "bundle" / "device-policy.json").read_text() for each in (folder, expected)]
    _equal("policy", *kept)
    sums = [(each / "bundle" / "SHA256SUMS").read_text().splitlines() for each in (folder, expected)]
    _equal("files", *([line.split("  ")[1] for line in each] for each in sums))


COMMANDS = (
    Command("optimize", _optimize, _optimize, _artifact_same),
    Command("train", _train, _train_again, _run_same),
    Command("private_fed_avg", _private, _private, _private_same, private_run.main),
    Command("train-central", _central, _central_again, _central_same),
    Command("compare", _compare, _compare, _comparison_same),
    Command("export", _export, _export_again, _bundle_same),
)
