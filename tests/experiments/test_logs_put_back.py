"""Logs of a guarded run that are older than its other files, or were cut: nobody is forgotten."""

import json

import pytest
from run_folders import ANSWERS, plan

import tff_mf
from tff_mf.experiments import guard, reports
from tff_mf.experiments.runs.ledger import read_ledger
from tff_mf.experiments.runs.participation_log import read_entries
from tff_mf.numerics.digits import rounded_up

from .shared import critical, said

PAIRS = tff_mf.MinSep(min_sep=2, max_participations=2)


def guarded(folder):
    folder.mkdir(exist_ok=True)
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    return guard.open_guard(folder, plan(rounds=6, sampling=PAIRS), sampler="by hand")


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
        monkeypatch.setattr(guards._book, "begin", killed)
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
    assert f"(μ={rounded_up(planned['mu'])})" in reports.headline(report)
    assert "stopped after 2 of 6" in " ".join(said(report["findings"]))
