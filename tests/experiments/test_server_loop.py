"""Writes that fail, forks, copies of a folder and older files: a round is begun and released once, or refused."""

import errno
import os
import shutil

import numpy as np
import pytest

import tff_mf
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import names, server_loop
from tff_mf.experiments.runs.checkpoints import Checkpoints
from tff_mf.experiments.runs.participation_log import read_entries
from tff_mf.experiments.runs.rules import Rules, Schema

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
