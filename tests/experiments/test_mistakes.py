"""Mistakes that an honest user makes with the folder of a finished run, each named by `tff-mf report --check`."""

import json
import pathlib
import shutil

import pytest
from run_folders import change_json, cohorts, finished, metrics, plan, read_entries, with_reports, write_ledger

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


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    """A run with other settings."""
    folder = tmp_path_factory.mktemp("another") / "run"
    finished(folder, privacy=plan(noise_multiplier=6.0, mechanism=tff_mf.Identity()), rounds=cohorts()[:8])
    return folder


@pytest.fixture
def run(good, tmp_path):
    return pathlib.Path(shutil.copytree(good, tmp_path / "run"))


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name, part=0.6):
    """A file whose end is lost."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[: int(part * size(folder / name))])


def size(path):
    return path.stat().st_size


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


def inserted(at, **entry):
    """A line before one that is counted from the end."""
    return lines(lambda entries: [*entries[: len(entries) - at], entry, *entries[len(entries) - at :]])


def swapped(entries):
    at = place(entries, "begun", 2)
    return [*entries[:at], entries[at + 1], entries[at], *entries[at + 2 :]]


def twice(entries):
    at = place(entries, "released", 4)
    return [*entries[: at + 1], *entries[at:]]


def too_soon(entries):
    """Clients of an attempt that was given up come back in the next round: they took part in it all the same."""
    entries[place(entries, "begun", 5)]["clients"] = entries[place(entries, "begun", 6)]["clients"]
    return entries


def another_artifact(folder):
    (folder / MECHANISM).unlink()
    tff_mf.save(tff_mf.Identity(), folder / MECHANISM)


def old_checkpoint(*gone):
    """A state from before the end was put back, and lines of the log were lost with it, or not."""

    def edit(folder):
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "checkpoint_4.safetensors").write_bytes(b"keys")
        for kind in gone:
            lost(kind)(folder)

    return edit


BEGUN = {"kind": "begun", "round": 9, "attempt": 2, "clients": ["c0"], "divisor": 2, "clip_norm": 1.0, "nonce": "0"}
FEWER = {"kind": "MinSep", "min_sep": 4, "max_participations": 2}
HEAD, ROWS = "round,seconds,loss\n", "".join(f"{number},0.5,0.5\n" for number in range(1, 10))
# A mistake, and what is named: the field or the file, and how it is said to be wrong.
MISTAKES = {
    # The ledger.
    "a lost attempt": (lost("begun", 5), "one release a round: attempt 2 of round 5 follows 0"),
    "a lost round": (lost("begun", 3), "one release a round: round 3 was released and never begun"),
    "a lost release": (lost("released", 3), "one release a round: round 4 was released before round 3"),
    "a lost last release": (lost("released", 9), "log: metrics.csv has an evaluation of round 9"),
    "a lost end": (lost("ended"), "log: ledger.jsonl does not say that the run ended"),
    "a lost beginning": (lost("opened"), "log: ledger.jsonl: line 1 belongs elsewhere"),
    "a ledger cut in a line": (cut(LEDGER), "log: ledger.jsonl: line "),
    "an empty ledger": (written(LEDGER, ""), "log: ledger.jsonl: its first line is missing"),
    "no ledger": (without(LEDGER), "log: ledger="),
    "no ledger, and no report": (without(LEDGER, "report.json", "report.md"), "log: ledger="),
    "lines in another order": (lines(swapped), "one release a round: round 2 was released"),
    "a line twice": (lines(twice), "one release a round: round 4 was released more than once"),
    "a round again after its release": (inserted(1, **BEGUN), "one release a round: round 9 was begun again"),
    "a release of no round": (inserted(1, kind="released", round=10), "one release a round: round 10 was released and"),
    "a line after the end": (inserted(0, kind="released", round=10), "one release a round: 'released' follows the"),
    "an end of other rounds": (changed("ended", None, rounds=8), "one release a round: the run ended after 8 rounds"),
    "another attempt": (changed("begun", 3, attempt=2), "one release a round: attempt 2 of round 3 follows 0"),
    "no whole number": (changed("begun", 3, attempt=True), "log: ledger.jsonl: line 6 is damaged"),
    "no hash": (changed("opened", None, bound_to=None), "log: ledger.jsonl: line 1 is damaged"),
    "no time": (changed("opened", None, time="2026-01-02"), "log: ledger.jsonl: line 1 is damaged"),
    "another client": (changed("begun", 3, clients=["c9", "c8"]), "sampler: round 3 had another cohort"),
    "a client twice in a round": (changed("begun", 3, clients=["c0"] * 2), "one release a round: round 3 has the"),
    "a client too soon": (lines(too_soon), "participation: a client took part in rounds"),
    "another divisor": (changed("begun", 3, divisor=3.0), "divisor: sums were divided by 2.0, 3.0"),
    "another clip norm": (changed("begun", 3, clip_norm=0.5), "clipping: the clip norm was 0.5 to 1.0"),
    "a restart": (changed("begun", 9, restarts=True), "restarts: the noise runs without restart"),
    "counts that contradict": (lines(lambda e: with_reports(e, came=2)), "log: ledger.jsonl: line 7 is damaged"),
    "counts by another word": (lines(lambda e: with_reports(e, refused={"ε≤0.01": 1})), "log: ledger.jsonl: line 7"),
    "more counts than clients": (
        lines(lambda e: with_reports(e, came=4, counted=3)),
        "one release a round: round 3 counts 3 reports of 2 clients",
    ),
    # The plan, whose hash is in run.json, and run.json, whose hash is in the ledger.
    "another σ": (in_json("plan.json", noise_multiplier=50.0), "report: plan.noise_multiplier"),
    "another δ": (in_json("plan.json", delta=1e-5), "report: plan.delta"),
    "fewer rounds": (in_json("plan.json", rounds=8), "log: 9 rounds ran, 8 were accounted for"),
    "another norm in the plan": (
        in_json("plan.json", clip_norm=2.0),
        "clipping: the clip norm was 1.0 to 1.0, and 2.0",
    ),
    "a larger cohort": (in_json("plan.json", cohort=200), "cohort: the noise was scaled for cohorts of 200"),
    "another schema": (in_json("plan.json", sampling=FEWER), "participation: a client took part in rounds"),
    "a seed": (in_json("plan.json", insecure_seed=3), "randomness: TEST ONLY"),
    "any edit of the plan": (replaced("plan.json", "{", "{ "), "plan: plan.json was edited after the run began"),
    "another population": (in_json("run.json", population=30_000), "report: run.population"),
    "another sampler": (in_json("run.json", sampler="by hand"), "report: run.sampler"),
    "any edit of run.json": (replaced("run.json", "{", "{ "), "log: run.json was edited after the run began"),
    "another artifact": (another_artifact, "mechanism: the artifact is not the one of run.json: its hash differs"),
    # Metrics, and tables of others.
    "no metrics": (without(METRICS), "report: files.metrics.csv"),
    "more cells than columns": (
        written(METRICS, HEAD + ROWS + "9,1,1,0.7\n"),
        "log: metrics=",
    ),
    "a column without a name": (written(METRICS, "round,seconds,loss,\n" + ROWS), "log: metrics="),
    "two columns of a name": (written(METRICS, "round,seconds,loss,loss\n" + ROWS), "log: metrics="),
    "a second table": (
        written(METRICS, HEAD + ROWS + "round,seconds,loss\n"),
        "log: metrics=",
    ),
    "half a round": (written(METRICS, HEAD + ROWS + "9.5,0.1,0.2\n"), "log: metrics="),
    "a text in a number": (written(METRICS, HEAD + ROWS.replace("3,0.5", "3,ann")), "log: metrics="),
    "no rounds": (written(METRICS, "seconds,loss\n0.5,0.5\n"), "log: metrics="),
    "rows of later rounds": (written(METRICS, HEAD + ROWS + "10,1,1\n"), "log: metrics.csv has round 10"),
    "accuracy on those that train": (
        lambda folder: metrics(folder, 9, ["round", "seconds", "loss", "train_accuracy"]),
        "released without noise: metrics.csv has train_accuracy",
    ),
    "a table of others": (written("Train.Csv", "round,loss\n1,0.7\n"), "released without noise: 'Train.Csv' is not"),
    "damaged evaluated clients": (written("evaluated.json", "{"), "released without noise: evaluated="),
    "evaluated clients that train": (
        written("evaluated.json", '["c0"]'),
        "released without noise: evaluated.json has 1",
    ),
    # Model and summary.
    "another model": (written("model.safetensors", "another"), "model: model.safetensors is missing, or its hash"),
    "no model": (without("model.safetensors"), "model: model.safetensors is missing, or its hash"),
    "an edited accuracy": (in_json("summary.json", accuracy=0.9), "report: accuracy"),
    # Keys that a copy of an old folder brings back.
    "an old checkpoint": (old_checkpoint(), "warning: checkpoints has the state of round 4, with keys of the noise"),
    "an older checkpoint than the ledger": (
        old_checkpoint("ended"),
        "warning: checkpoints has the state of round 4, and",
    ),
    "an unfinished file": (written(".0.tff-mf.tmp", "keys"), "warning: a killed process left .0.tff-mf.tmp"),
    # The report and its pages.
    "a smaller ε": (in_claim(epsilon=0.1), "report: claim.epsilon"),
    "a smaller δ": (in_claim(delta=1e-7), "report: claim.delta"),
    "another field": (in_json("report.json", headline="ε≤0.1"), "report: report= … 'headline' is not a known key"),
    "a number for words": (in_json("report.json", warnings=5), "report: report= … warnings=5"),
    "a report of another format": (in_json("report.json", report=1), "report: report= … report=1"),
    "a report cut": (cut("report.json"), "report: report= … report.json' is damaged"),
    "a field twice": (replaced("report.json", "{", '{\n "kind": "planned",'), "report: report= … 'kind'"),
    "no report": (without("report.json"), "report: report.json is missing"),
    "the planned report": (lambda folder: shutil.copy(folder / "planned.json", folder / "report.json"), "report: kind"),
    "an edited page": (replaced("report.md", "σ: 5.000", "σ: 50.00"), "report: report.md"),
    "a cut page": (cut("report.md"), "report: report.md"),
    "no page": (without("report.md"), "report: report.md"),
    "an edited web page": (replaced("report.html", "σ: 5.000", "σ: 50.00"), "report: report.html"),
    "a web page cut": (cut("report.html", 0.02), "report: report.html"),
}
# Files of another run in the folder of this one.
MIXED = {
    "plan.json": "plan: plan.json was edited after the run began",
    "run.json": "log: run.json was edited after the run began",
    MECHANISM: "mechanism: the artifact is not the one of run.json",
    LEDGER: "log: run.json was edited after the run began",
    METRICS: "report: files.metrics.csv",
    "report.json": "report: claim.epsilon",
    "report.md": "report: report.md",
}


def named(folder, what):
    """Asserts that the check names a mistake, and that no ε is stated where a rule is violated."""
    done = invoke("report", folder, "--check", "--json")
    result = json.loads(done.stdout)
    said = [f"{reason['field']}: {reason['text']}" for reason in result["reasons"]]
    said += [f"report: {name}" for name in result["differs"]] + [f"warning: {text}" for text in result["warnings"]]
    begins, *parts = what.split(" … ")
    assert any(text.startswith(begins) and all(part in text for part in parts) for text in said), said
    assert done.exit_code == (1 if result["reasons"] or result["differs"] else 0)
    assert done.exit_code or what.startswith("warning: ")
    headline = reports.write(folder, realised=True).headline
    assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY") if result["reasons"] else "ε≤")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(run, mistake):
    edit, what = MISTAKES[mistake]
    edit(run)
    named(run, what)


@pytest.mark.parametrize("name", MIXED)
def test_a_file_of_another_run_is_named(run, another, name):
    if name == "report.md":
        # Its HTML would be named too.
        (run / "report.html").unlink()
    (run / name).unlink()
    shutil.copy(another / name, run / name)
    named(run, MIXED[name])


@pytest.mark.parametrize("mistake", ["a report of another format", "a number for words", "no page", "an edited page"])
def test_a_report_is_written_anew(run, mistake):
    MISTAKES[mistake][0](run)
    assert critical(run) != []
    assert invoke("report", run).exit_code == 0
    assert critical(run) == []


# Values of run.json that no run has.
NO_VALUES = {
    "versions": [None, [], {"tff-mf": 3}],
    "command": [None, "x", [1]],
    "cohorts": [None, {}, [1]],
    "settings": [[], 1],
    "released_without_noise": [None, ["x"], [{"name": 1}]],
    "evaluation_columns": [None, "loss", [["x"]]],
    "simulation": [None, 1, "yes"],
    "sampler": [None, 1, []],
    "mechanism_sha256": [None, 3],
    "population": [10**400, 0.5, True, "x", -1],
    "clients_per_person": [10**400, 10**300, True, 0, None],
    "adjacency": [None, []],
    "round": [9],
}


@pytest.mark.parametrize("name", NO_VALUES)
def test_a_field_of_run_json_of_another_type_is_named(run, name):
    text = (run / "run.json").read_text()
    for value in NO_VALUES[name]:
        (run / "run.json").write_text(json.dumps({**json.loads(text), name: value}))
        with pytest.raises(tff_mf.InputError, match=rf"{name}=|'{name}'|{name} must"):
            reports.check(run)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (in_json("plan.json", noise_multiplier=float("nan")), "NaN"),
        (in_json("plan.json", rounds=9.0), "rounds=9.0"),
        (in_json("plan.json", sampling={**FEWER, "kind": "SingleParticipation"}), "min_sep"),
        (in_json("plan.json", grid=None, dimension=5), "dimension"),
        (without("plan.json"), "plan.json"),
        (cut("plan.json"), "plan=.*plan.json"),
        (without(MECHANISM), MECHANISM),
        (cut(MECHANISM), MECHANISM),
        (in_json("run.json", version=2), "version=2"),
        (without("run.json"), "is not a run folder: run.json is missing"),
        (cut("run.json"), "run=.*run.json.* damaged"),
    ],
)
def test_a_record_that_no_run_has_is_refused(run, edit, text):
    edit(run)
    with pytest.raises(tff_mf.InputError, match=text):
        invoke("report", run, "--check")
