"""Mistakes that an honest user makes with the folder of a finished run, each named by `tff-mf report --check`."""

import json
import pathlib
import shutil

import pytest
from run_folders import change_json, metrics, read_entries, with_reports, write_ledger

import tff_mf
from tff_mf.experiments import reports

from .shared import critical, invoke

LEDGER, METRICS, MECHANISM = "ledger.jsonl", "metrics.csv", "mechanism.safetensors"


@pytest.fixture(scope="module")
def good(whole_run, tmp_path_factory):
    """A finished run with every file that there is, which was killed in rounds 5 and 8."""
    folder = shutil.copytree(whole_run[0], tmp_path_factory.mktemp("good") / "run")
    assert invoke("report", folder).exit_code == 0
    assert critical(folder) == []
    return folder


@pytest.fixture
def run(good, tmp_path):
    return pathlib.Path(shutil.copytree(good, tmp_path / "run"))


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def replaced(name, old, new):
    def edit(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


def written(name, text):
    return lambda folder: (folder / name).write_text(text)


def in_json(name, **changes):
    return lambda folder: change_json(folder / name, lambda content: {**content, **changes})


def in_claim(**changes):
    return lambda folder: change_json(folder / "report.json", lambda content: content["claim"].update(changes))


def lines(change):
    """A ledger with other lines."""
    return lambda folder: write_ledger(folder, change(read_entries(folder)))


def place(entries, kind, number):
    return next(i for i, entry in enumerate(entries) if (entry["kind"], entry.get("round")) == (kind, number))


def lost(kind, number=None):
    return lines(lambda entries: [entry for i, entry in enumerate(entries) if i != place(entries, kind, number)])


def changed(kind, number, **changes):
    def change(entries):
        entries[place(entries, kind, number)].update(changes)
        return entries

    return lines(change)


def twice(entries):
    at = place(entries, "released", 4)
    return [*entries[: at + 1], *entries[at:]]


def another_artifact(folder):
    (folder / MECHANISM).unlink()
    tff_mf.save(tff_mf.Identity(), folder / MECHANISM)


def in_checkpoints(name):
    """A file with keys, of a process that was killed, or of a copy of an old folder that was put back."""

    def edit(folder):
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / name).write_bytes(b"keys")

    return edit


HEAD, ROWS = "round,seconds,loss\n", "".join(f"{number},0.5,0.5\n" for number in range(1, 10))
# A mistake, and what is named: the field or the file, and how it is said to be wrong.
MISTAKES = {
    # The ledger.
    "a lost attempt": (lost("begun", 5), "one release a round: attempt 2 of round 5 follows 0"),
    "a lost release": (lost("released", 3), "one release a round: round 4 was released before round 3"),
    "a lost last release": (lost("released", 9), "log: metrics.csv has an evaluation of round 9"),
    "a lost beginning": (lost("opened"), "log: ledger.jsonl: line 1 belongs elsewhere"),
    "an empty ledger": (written(LEDGER, ""), "log: ledger.jsonl: its first line is missing"),
    "no ledger": (without(LEDGER), "log: ledger="),
    "a line twice": (lines(twice), "one release a round: round 4 was released more than once"),
    "an end of other rounds": (changed("ended", None, rounds=8), "one release a round: the run ended after 8 rounds"),
    "no hash": (changed("opened", None, bound_to=None), "log: ledger.jsonl: line 1 is damaged"),
    "the ledger of another run": (changed("opened", None, bound_to="0" * 64), "log: run.json was edited after the run"),
    "a client twice in a round": (changed("begun", 3, clients=["c0"] * 2), "one release a round: round 3 has the"),
    "counts that contradict": (lines(lambda e: with_reports(e, came=2)), "log: ledger.jsonl: line 7 is damaged"),
    "more counts than clients": (
        lines(lambda e: with_reports(e, came=4, counted=3)),
        "one release a round: round 3 counts 3 reports of 2 clients",
    ),
    # The plan, whose hash is in run.json, and run.json, whose hash is in the ledger.
    "another σ": (in_json("plan.json", noise_multiplier=50.0), "report: plan.noise_multiplier"),
    "fewer rounds": (in_json("plan.json", rounds=8), "log: 9 rounds ran, 8 were accounted for"),
    "a seed": (in_json("plan.json", insecure_seed=3), "randomness: TEST ONLY"),
    "any edit of the plan": (replaced("plan.json", "{", "{ "), "plan: plan.json was edited after the run began"),
    "another population": (in_json("run.json", population=30_000), "report: run.population"),
    "another sampler": (in_json("run.json", sampler="by hand"), "report: run.sampler"),
    "any edit of run.json": (replaced("run.json", "{", "{ "), "log: run.json was edited after the run began"),
    "another artifact": (another_artifact, "mechanism: the artifact is not the one of run.json: its hash differs"),
    # Metrics, and tables of others.
    "no metrics": (without(METRICS), "report: files.metrics.csv"),
    "more cells than columns": (written(METRICS, HEAD + ROWS + "9,1,1,0.7\n"), "log: metrics="),
    "a text in a number": (written(METRICS, HEAD + ROWS.replace("3,0.5", "3,ann")), "log: metrics="),
    "rows of later rounds": (written(METRICS, HEAD + ROWS + "10,1,1\n"), "log: metrics.csv has round 10"),
    "accuracy on those that train": (
        lambda folder: metrics(folder, 9, ["round", "seconds", "loss", "train_accuracy"]),
        "released without noise: metrics.csv has train_accuracy",
    ),
    "a table of others": (written("Train.Csv", "round,loss\n1,0.7\n"), "released without noise: 'Train.Csv' is not"),
    "evaluated clients that train": (
        written("evaluated.json", '["c0"]'),
        "released without noise: evaluated.json has 1",
    ),
    # Model and summary.
    "another model": (written("model.safetensors", "another"), "model: model.safetensors is missing, or its hash"),
    "an edited accuracy": (in_json("summary.json", accuracy=0.9), "report: accuracy"),
    # Keys that a copy of an old folder brings back.
    "an old checkpoint": (
        in_checkpoints("checkpoint_4.safetensors"),
        "warning: checkpoints has the state of round 4, with keys of the noise",
    ),
    "an unfinished file": (in_checkpoints(".0.tff-mf.tmp"), "warning: a killed process left checkpoints/.0.tff-mf.tmp"),
    # The report and its pages.
    "a smaller ε": (in_claim(epsilon=0.1), "report: claim.epsilon"),
    "a smaller δ": (in_claim(delta=1e-7), "report: claim.delta"),
    "another participation": (in_claim(participation="observed nobody twice"), "report: claim.participation"),
    "another field": (in_json("report.json", headline="ε≤0.1"), "report: report= … 'headline' is not a known key"),
    "a report of another format": (in_json("report.json", report=1), "report: report= … report=1"),
    "no report": (without("report.json"), "report: report.json is missing"),
    "the planned report": (lambda folder: shutil.copy(folder / "planned.json", folder / "report.json"), "report: kind"),
    "an edited page": (replaced("report.md", "σ: 5.000", "σ: 50.00"), "report: report.md"),
    "an edited web page": (replaced("report.html", "σ: 5.000", "σ: 50.00"), "report: report.html"),
    "a line more in the web page": (replaced("report.html", "</body>", "<p>ε≤0.1</p></body>"), "report: report.html"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_no_epsilon_is_stated_where_a_rule_is_violated(run, mistake):
    edit, what = MISTAKES[mistake]
    edit(run)
    done = invoke("report", run, "--check", "--json")
    result = json.loads(done.stdout)
    said = [f"{reason['field']}: {reason['text']}" for reason in result["reasons"]]
    said += [f"report: {name}" for name in result["differs"]] + [f"warning: {text}" for text in result["warnings"]]
    begins, *parts = what.split(" … ")
    assert any(text.startswith(begins) and all(part in text for part in parts) for text in said), said
    assert done.exit_code == (1 if result["reasons"] or result["differs"] else 0)
    assert done.exit_code or what.startswith("warning: ")
    # Its picture takes half a second.
    (run / "report.html").unlink()
    headline = reports.write(run, realised=True).headline
    assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY") if result["reasons"] else "ε≤")


@pytest.mark.parametrize("mistake", ["a report of another format", "an edited page"])
def test_a_report_is_written_anew(run, mistake):
    MISTAKES[mistake][0](run)
    assert critical(run) != []
    assert invoke("report", run).exit_code == 0
    assert critical(run) == []


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (in_json("plan.json", noise_multiplier=float("nan")), "NaN"),
        (in_json("plan.json", sampling={"kind": "SingleParticipation", "min_sep": 4}), "min_sep"),
        (in_json("plan.json", grid=None, dimension=5), "dimension"),
        (without("plan.json"), "plan.json"),
        (without(MECHANISM), MECHANISM),
        (in_json("run.json", version=2), "version=2"),
        (in_json("run.json", population=True), "population=True"),
        (in_json("run.json", clients_per_person=0), "clients_per_person=0"),
        (in_json("run.json", simulation="yes"), "simulation='yes'"),
        (in_json("run.json", round=9), "'round'"),
        (without("run.json"), "is not a run folder: run.json is missing"),
    ],
)
def test_a_record_that_no_run_has_is_refused(run, edit, text):
    edit(run)
    with pytest.raises(tff_mf.InputError, match=text):
        invoke("report", run, "--check")
