"""What passed a second attack on the checker and on the logs. The runs are folders; nothing is trained."""

import json
import os
import pathlib
import shutil
import sys

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.guard import opening
from tff_mf.experiments.output.digits import rounded_up
from tff_mf.experiments.run_folder.ledger import read_ledger
from tff_mf.experiments.run_folder.participation_log import read_entries

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders
from run_folders import ANSWERS, change_json, cohorts, plan, run, start

PAIRS = tff_mf.MinSep(min_sep=2, max_participations=2)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "good"
    return folder, run_folders.whole(folder, audited=False)


def copied(good, folder):
    shutil.copytree(good[0], folder)
    return folder


def critical(folder, **more):
    return [f"{each.field}: {each.text}" for each in reports.check(folder, **more) if each.severity == "critical"]


def invoke(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


def guarded(folder):
    folder.mkdir(exist_ok=True)
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    return opening.open_guard(folder, plan(rounds=6, participation=PAIRS), clip_norm=1.0, sampler="by hand")


def listed(folder):
    return [(each.round_number, each.attempt, each.client) for each in read_entries(folder / "participation.csv")]


def began(folder):
    return [(each.round, each.attempt) for each in read_ledger(folder / "ledger.jsonl").begun]


@pytest.fixture
def put_back(tmp_path):
    """A run that released three rounds, with the ledger of before the third."""
    with guarded(tmp_path / "run") as guards:
        for number, _ in guards.cohorts([["a", "b"], ["c", "d"], ["e", "f"]]):
            if number == 3:
                before = (tmp_path / "before").read_bytes()
            guards.released(number)
            (tmp_path / "before").write_bytes((tmp_path / "run" / "ledger.jsonl").read_bytes())
    (tmp_path / "run" / "ledger.jsonl").write_bytes(before)
    return tmp_path / "run"


def test_a_ledger_of_before_does_not_forget_who_took_part(put_back):
    with guarded(put_back) as guards:
        assert (3, 1) in began(put_back)
        guards.goes_on_after(2)
        guards.begin(["g", "h"])
        assert guards.allowed(["e", "i"]) == ["i"]
        guards.released(3)
    assert listed(put_back)[4:6] == [(3, 1, "e"), (3, 1, "f")]
    assert began(put_back) == [(1, 1), (2, 1), (3, 1), (3, 2)]


def test_a_ledger_of_before_and_a_checkpoint_of_now_release_nothing_twice(put_back):
    with guarded(put_back) as guards:
        guards.goes_on_after(3)
        assert guards.next_round == 4
    record = read_ledger(put_back / "ledger.jsonl")
    assert record.released == {1: 1, 2: 1, 3: 1}
    assert record.impossible == []


def test_a_kill_between_the_two_logs_leaves_an_attempt_that_counts(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with guarded(folder) as guards:
        guards.released(guards.begin(["a", "b"]))
        monkeypatch.setattr(guards._log._book, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            guards.begin(["c", "d"])
    assert began(folder) == [(1, 1)]
    monkeypatch.undo()
    with guarded(folder) as guards:
        guards.goes_on_after(1)
        for number, _ in guards.cohorts([["e", "f"], ["a", "b"], ["c", "d"], ["g", "h"], ["e", "f"]]):
            guards.released(number)
        guards.end()
    assert began(folder)[1:3] == [(2, 1), (2, 2)]
    assert critical(folder) == []
    assert reports.build(folder, realised=True)["participation"]["observed_max_participations"] == 2


@pytest.mark.parametrize("lines", [0, 1])
def test_an_emptied_ledger_is_no_new_run(tmp_path, lines):
    with guarded(tmp_path / "one") as guards:
        guards.released(guards.begin(["a", "b"]))
    with guarded(tmp_path / "two") as guards:
        for number, _ in guards.cohorts([["a", "b"], ["c", "d"]]):
            guards.released(number)
    for name in ("one", "two"):
        path = tmp_path / name / "ledger.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    before = listed(tmp_path / "two")
    if lines:
        # As a kill within the first round leaves it.
        with guarded(tmp_path / "one") as guards:
            assert not guards.knows_its_round
        assert began(tmp_path / "one") == [(1, 1)]
    else:
        with pytest.raises(tff_mf.InputError, match=r"no ledger\.jsonl"), guarded(tmp_path / "one"):
            pass
    assert listed(tmp_path / "one") == [(1, 1, "a"), (1, 1, "b")]
    refusal = "the ledger lacks" if lines else r"no ledger\.jsonl"
    with pytest.raises(tff_mf.InputError, match=refusal), guarded(tmp_path / "two"):
        pass
    assert listed(tmp_path / "two") == before


def test_an_attempt_that_cannot_follow_is_refused(put_back):
    text = (put_back / "participation.csv").read_text()
    (put_back / "participation.csv").write_text(text.replace("3,1,", "3,2,"), newline="")
    with pytest.raises(tff_mf.InputError, match="does not follow from the ledger"), guarded(put_back):
        pass


def test_a_run_without_its_ledger_is_no_plan(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    (folder / "ledger.jsonl").unlink()
    assert invoke(folder).stdout.startswith("# Privacy report (realised)\n\n**NO ε CAN BE STATED")
    assert invoke(folder, "--check").exit_code == 1


@pytest.mark.parametrize("left", [".lock", "checkpoints", "metrics.csv"])
def test_anything_of_a_run_is_a_run(good, tmp_path, left):
    folder = tmp_path / "run"
    start(folder)
    reports.write(folder, realised=False)
    assert critical(folder) == []
    (folder / left).mkdir()
    assert any("ledger.jsonl" in each for each in critical(folder))


def test_a_plan_says_that_it_is_one(good, tmp_path):
    """All that a run writes is removed: what is left is a plan, which says that nothing ran."""
    folder = copied(good, tmp_path / "run")
    for name in os.listdir(folder):
        if name not in ("run.json", "mechanism.safetensors", "answers.json", "planned.json", "planned.md"):
            (folder / name).unlink()
    assert json.loads((folder / "planned.json").read_text())["headline"].startswith("Planned: ")
    assert "no file of a run that began is here" in " ".join(each.text for each in reports.check(folder))
    assert critical(folder, held=good[1]["digest"])
    for name in ("planned.json", "planned.md"):
        (folder / name).unlink()
    found = reports.check(folder)
    assert ("warning", "there is no report to check") in {(each.severity, each.text) for each in found}
    assert invoke(folder, "--check").exit_code == 0
    assert invoke(folder, "--check", "--digest", good[1]["digest"]).exit_code == 1
    done = invoke(folder)
    assert "nothing has run here" in done.stderr
    assert "\n\n**Planned: client-level" in done.stdout


@pytest.mark.parametrize("released", [False, True])
def test_rounds_of_nobody_do_not_hide_that_a_run_was_stopped(tmp_path, released):
    with guarded(tmp_path / "run") as guards:
        for number, clients in guards.cohorts([["a", "b"], ["c", "d"], [], [], [], []]):
            if clients or released:
                guards.released(number)
        report = guards.end()
    assert critical(tmp_path / "run") == []
    planned = report["accountant"]["planned"]
    assert planned["epsilon"] > report["accountant"]["realised"]["epsilon"]
    assert f"(μ={rounded_up(planned['mu'])})" in report["headline"]
    assert "stopped after 2 of 6" in " ".join(each["text"] for each in report["findings"])


ROWS = "".join(f"{number},0.5,0.5\n" for number in range(1, 10))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("round,seconds,loss\n" + ROWS.replace("3,0.5,0.5", "3,0.5,0.5,0.731"), "4 cells"),
        ("round,seconds,loss,\n" + ROWS, "name of its own"),
        ("round,seconds,loss,loss\n" + ROWS, "name of its own"),
        ("round,seconds,loss\n" + ROWS + "round,seconds,train_loss\n", "'round', which is no whole number"),
        ("round,seconds,loss\n" + ROWS + "9.5,0.1,0.2\n", "'9.5'"),
        ("round,seconds,loss\n" + ROWS.replace("3,0.5", "3,loss of ann"), "could not convert"),
        ("seconds,loss\n0.5,0.5\n", "no column 'round'"),
    ],
)
def test_every_cell_of_the_metrics_has_a_name_and_a_round(good, tmp_path, text, named):
    folder = copied(good, tmp_path / "run")
    (folder / "metrics.csv").write_text("round,seconds,loss\n" + ROWS)
    reports.write(folder, realised=True)
    assert critical(folder) == []
    (folder / "metrics.csv").write_text(text)
    reports.write(folder, realised=True)
    assert any("metrics.csv" in each and named in each for each in critical(folder))


@pytest.mark.parametrize("name", ["train_metrics.csv", "metrics.CSV", "Participation.Csv"])
def test_a_table_that_no_run_writes_is_found(good, tmp_path, name):
    folder = copied(good, tmp_path / "run")
    (folder / name).write_text("round,train_loss\n1,0.7\n")
    reports.write(folder, realised=True)
    assert any(name in each for each in critical(folder))


@pytest.mark.parametrize(("delta", "stated"), [(1e-3, False), (1.6e-4, True)])
def test_delta_is_held_against_the_population_that_a_simulation_stands_for(tmp_path, delta, stated):
    """Twelve clients by two for cohorts of 1000 stand for 6000."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "answers.json").write_text(json.dumps({**ANSWERS, "population": 12}))
    privacy = plan(rounds=6, participation=PAIRS, cohort=1000, delta=delta)
    with opening.open_guard(folder, privacy, clip_norm=1.0, sampler="by hand", simulation=True) as guards:
        for number, _ in guards.cohorts([[f"c{index}", f"d{index}"] for index in range(6)]):
            guards.released(number)
        report = guards.end()
    assert report["setting"]["population"] == 6000
    assert ("ε≤" in report["headline"]) == stated
    assert bool(critical(folder)) != stated


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amplified_statement", "client-level zero-out DP, ε≤0.010 with amplification by sampling"),
        ("amplified_epsilon", 0.01),
        ("parameters", "ε≤0.010"),
        ("parameters", True),
        ("validation_accuracy", "ρ=0.001, ε≤0.010"),
        ("seconds", [1.5]),
        ("tff_mf_version", "1.0, ε≤0.010"),
        ("tff_mf_version", 3),
    ],
)
def test_no_field_of_a_summary_states_what_does_not_follow(good, tmp_path, name, value):
    folder = copied(good, tmp_path / "run")
    right = {"parameters": 3, "validation_accuracy": 0.5, "tff_mf_version": tff_mf.__version__}
    change_json(folder / "summary.json", lambda found: {**found, **right})
    reports.write(folder, realised=True)
    assert critical(folder) == []
    (folder / "summary.json").write_text(json.dumps({name: value}))
    reports.write(folder, realised=True)
    assert any(each.startswith("summary: ") and name in each for each in critical(folder))


WRONG = {
    "versions": [None, [], {"tff-mf": 3}],
    "command": [None, "x", [1]],
    "cohorts": [None, {}, [1]],
    "settings": [None, []],
    "released_without_noise": [None, ["x"], [{"name": 1}]],
    "evaluation_columns": [None, "loss", [["x"]]],
    "simulation": [None, 1, "yes"],
    "sampler": [None, 1, []],
    "mechanism_sha256": [None, 3],
    "insecure_seed": ["x", 0.5, True, 10**400],
    "population": [10**400, 0.5, True, "x", -1],
    "cohort": [10**400, 10**300, None, "x"],
    "rounds": [True, 9.0, None, []],
    "noise_multiplier": [1e308, True, "x", None],
    "divisor": [True, "x", 10**400],
    "adjacency": [None, []],
    "participation": [None, []],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, several in WRONG.items() for value in several])
def test_a_field_of_another_type_is_named(good, tmp_path, name, value):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "run.json", lambda found: {**found, name: value})
    for arguments in ([folder], [folder, "--check"]):
        done = CliRunner().invoke(cli, ["report", *map(str, arguments)])
        assert isinstance(done.exception, tff_mf.InputError)
        assert f"{name}=" in str(done.exception)


@pytest.mark.parametrize("name", ["clients_of_one_person", "population", "tuning_runs"])
@pytest.mark.parametrize("value", [10**400, 10**300, True])
def test_an_answer_that_no_figure_bears_is_named(good, tmp_path, name, value):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "answers.json", lambda found: {**found, name: value})
    done = CliRunner().invoke(cli, ["report", str(folder)])
    assert isinstance(done.exception, tff_mf.InputError)
    assert f"{name}=" in str(done.exception)


def test_what_may_be_answered_at_most_has_figures(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "answers.json", lambda found: {**found, "clients_of_one_person": 10**12})
    reports.write(folder, realised=False)
    report = reports.write(folder, realised=True)
    stored = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert stored["accountant"] == report["accountant"]
    assert critical(folder) == []


def test_a_run_of_every_round_states_what_it_realised(tmp_path):
    start(tmp_path / "run")
    run(tmp_path / "run", rounds=cohorts())
    report = reports.write(tmp_path / "run", realised=True)
    assert not any("stopped after" in each["text"] for each in report["findings"])
