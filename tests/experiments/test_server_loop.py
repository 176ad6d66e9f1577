"""Rounds are begun and released once, or refused: writes that fail, forks, copies of a folder, older logs."""

import errno
import json
import os
import shutil

import numpy as np
import pytest
from run_folders import ANSWERS, plan

import tff_mf
from tff_mf.experiments import guard, reports
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import names, server_loop
from tff_mf.experiments.runs.checkpoints import Checkpoints
from tff_mf.experiments.runs.ledger import read_ledger
from tff_mf.experiments.runs.participation_log import read_entries
from tff_mf.experiments.runs.rules import Rules, Schema
from tff_mf.numerics.digits import rounded_up

from .shared import critical, said

RULES = Rules(
    rounds=6,
    schema=Schema.of(tff_mf.MinSep(min_sep=3, max_participations=2)),
    divisor=2.0,
    clip_norm=1.0,
    restart_every=None,
)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    (made / names.RUN_JSON).write_text("{}")
    return made


def opened(folder):
    return server_loop.open_loop(folder, rules=RULES)


def resumed(loop):
    return loop.resume(Checkpoints(loop.folder / names.CHECKPOINTS, {}), every_round=True)


def train(folder, until, name="c"):
    """Releases the rounds that are left up to one, each with its own clients."""
    with opened(folder) as loop:
        number = resumed(loop)
        while number < until:
            number = loop.begin([f"{name}{number}"])
            loop.finish({"weights": np.full(2, number)})


@pytest.mark.parametrize("fails", [1, 2, 3], ids=["who takes part", "that it begins", "that it is released"])
def test_after_a_write_that_failed_no_round_is_begun_until_the_run_is_opened_again(folder, monkeypatch, fails):
    train(folder, 1)
    real, calls = os.write, []

    def write(descriptor, content):
        calls.append(content)
        if len(calls) == fails:
            real(descriptor, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content)

    def round_two(loop):
        loop.begin(["d"])
        loop.finish({"weights": np.full(2, 2)})

    with opened(folder) as loop:
        resumed(loop)
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            round_two(loop)
        for _ in range(2):
            with pytest.raises(tff_mf.InputError, match="open the run again"):
                loop.begin(["e"])
    monkeypatch.undo()
    train(folder, 3)
    on_disk = [(each.round_number, each.client) for each in read_entries(folder / names.PARTICIPATION)]
    assert ((2, "d") in on_disk) == (fails > 1)


def test_a_forked_process_begins_and_releases_nothing(folder):
    with opened(folder) as loop:
        resumed(loop)
        loop.begin(["a"])
        child = os.fork()
        if not child:
            refused = 0
            for work in (lambda: loop.finish({"weights": np.zeros(2)}), lambda: loop.begin(["b"])):
                try:
                    work()
                except tff_mf.InputError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        loop.finish({"weights": np.ones(2)})
        assert loop.last_released == 1


def test_a_lock_that_was_deleted_lets_no_other_process_in(tmp_path):
    with files.alone(tmp_path):
        (tmp_path / files.FOLDER_LOCK).unlink()
        with pytest.raises(tff_mf.InputError, match="is in use"), files.alone(tmp_path):
            pass
    with files.alone(tmp_path):
        pass


@pytest.mark.parametrize("name", ["e", "d"], ids=["other cohorts", "the same cohorts"])
def test_a_state_of_a_copy_of_the_folder_that_went_on_is_refused(folder, tmp_path, name):
    train(folder, 2)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    train(folder, 4, name="d")
    train(copy, 4, name=name)
    shutil.copytree(copy / names.CHECKPOINTS, folder / names.CHECKPOINTS, dirs_exist_ok=True)
    with pytest.raises(tff_mf.InputError, match=r"ledger\.jsonl"):
        train(folder, 5)


def test_a_log_that_is_newer_than_ledger_and_state_tells_that_a_round_was_released(folder, tmp_path):
    train(folder, 2)
    with opened(folder) as loop:
        resumed(loop)
        loop.begin(["a"])
        shutil.copytree(folder, tmp_path / "before")
        loop.finish({"weights": np.full(2, 3)})
        loop.begin(["b"])
    shutil.copy(tmp_path / "before" / names.LEDGER, folder)
    shutil.rmtree(folder / names.CHECKPOINTS)
    shutil.copytree(tmp_path / "before" / names.CHECKPOINTS, folder / names.CHECKPOINTS)
    with pytest.raises(tff_mf.InputError, match="was released, and its newest checkpoint is of round 2"):
        train(folder, 3)


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
