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


def in_checkpoints(name):
    """A file with keys, of a process that was killed, or of a copy of an old folder that was put back."""

    def edit(folder):
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / name).write_bytes(b"keys")

    return edit


BEGUN = {"kind": "begun", "round": 9, "attempt": 2, "clients": ["c0"], "divisor": 2, "clip_norm": 1.0, "nonce": "0"}
FEWER = {"kind": "MinSep", "min_sep": 4, "max_participations": 2}
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
    "lines in another order": (lines(swapped), "one release a round: round 2 was released"),
    "a line twice": (lines(twice), "one release a round: round 4 was released more than once"),
    "a round again after its release": (inserted(1, **BEGUN), "one release a round: round 9 was begun again"),
    "a release of no round": (inserted(1, kind="released", round=10), "one release a round: round 10 was released and"),
    "a line after the end": (inserted(0, kind="released", round=10), "one release a round: 'released' follows the"),
    "an end of other rounds": (changed("ended", None, rounds=8), "one release a round: the run ended after 8 rounds"),
    "no hash": (changed("opened", None, bound_to=None), "log: ledger.jsonl: line 1 is damaged"),
    "the ledger of another run": (changed("opened", None, bound_to="0" * 64), "log: run.json was edited after the run"),
    "another client": (changed("begun", 3, clients=["c9", "c8"]), "sampler: round 3 had another cohort"),
    "a client twice in a round": (changed("begun", 3, clients=["c0"] * 2), "one release a round: round 3 has the"),
    "a client too soon": (lines(too_soon), "participation: a client took part in rounds"),
    "another divisor": (changed("begun", 3, divisor=3.0), "divisor: sums were divided by 2.0, 3.0"),
    "another clip norm": (changed("begun", 3, clip_norm=0.5), "clipping: the clip norm was 0.5 to 1.0"),
    "a restart": (changed("begun", 9, restarts=True), "restarts: the noise runs without restart"),
    "counts that contradict": (lines(lambda e: with_reports(e, came=2)), "log: ledger.jsonl: line 7 is damaged"),
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
    "another field": (in_json("report.json", headline="ε≤0.1"), "report: report= … 'headline' is not a known key"),
    "a report of another format": (in_json("report.json", report=1), "report: report= … report=1"),
    "no report": (without("report.json"), "report: report.json is missing"),
    "the planned report": (lambda folder: shutil.copy(folder / "planned.json", folder / "report.json"), "report: kind"),
    "an edited page": (replaced("report.md", "σ: 5.000", "σ: 50.00"), "report: report.md"),
    "an edited web page": (replaced("report.html", "σ: 5.000", "σ: 50.00"), "report: report.html"),
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
    # Its picture takes half a second.
    (folder / "report.html").unlink()
    headline = reports.write(folder, realised=True).headline
    assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY") if result["reasons"] else "ε≤")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(run, mistake):
    edit, what = MISTAKES[mistake]
    edit(run)
    named(run, what)


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
        (in_json("plan.json", sampling={**FEWER, "kind": "SingleParticipation"}), "min_sep"),
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
