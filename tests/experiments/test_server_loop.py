"""Rounds are begun and released once, or refused: writes that fail, forks, copies of a folder, older logs."""

import errno
import itertools
import os
import shutil

import numpy as np
import pytest

import tff_mf
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import names
from tff_mf.experiments.runs.folders import Checkpoints
from tff_mf.experiments.runs.ledger import Rules, read_ledger

from .shared import open_loop, took_part

RULES = Rules(
    rounds=6,
    schema=tff_mf.MinSep(min_sep=3, max_participations=2),
    divisor=2.0,
    clip_norm=1.0,
)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    (made / names.RUN_JSON).write_text("{}")
    return made


def opened(folder):
    return open_loop(folder, RULES)


def resumed(loop, **more):
    return loop.resume(Checkpoints(loop.folder / names.CHECKPOINTS, {}), **more)


def train(folder, until, name="c"):
    """Releases the rounds that are left up to one, each with its own clients."""
    with opened(folder) as loop:
        number = resumed(loop)
        while number < until:
            number = loop.begin([f"{name}{number}"])
            loop.finish({"weights": np.full(2, number)})


@pytest.mark.parametrize("fails", [1, 2], ids=["who takes part", "that it is released"])
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
    assert ((2, "d") in took_part(folder)) == (fails > 1)


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


@pytest.fixture
def versions(folder):
    """Each version of the ledger and of the checkpoint of a run whose fourth round was begun twice.

    With what it tells: the attempts that began and the last release, and the attempt of the state.
    """
    began, released, state = [], 0, (0, 0)
    books, states = {None: ([], 0)}, {}

    def keep():
        books[(folder / names.LEDGER).read_bytes()] = (began[:], released)
        files = (folder / names.CHECKPOINTS).glob("*.safetensors")
        states[tuple((path.name, path.read_bytes()) for path in files)] = state

    for process in ([(1, 1), (2, 1), (3, 1), (4, 1)], [(4, 2)]):
        with opened(folder) as loop:
            resumed(loop)
            keep()
            for round_number, attempt in process:
                loop.begin([f"{round_number}.{attempt}"])
                began.append((round_number, attempt))
                keep()
                if (round_number, attempt) != (4, 1):
                    loop.finish({"weights": np.full(2, round_number)})
                    released, state = round_number, began[-1]
                    keep()
    shutil.rmtree(folder / names.CHECKPOINTS)
    return books, states


@pytest.mark.parametrize("more", [{"published": 3}, {}], ids=str)
def test_files_of_several_ages_release_nothing_twice_and_forget_nobody(folder, versions, more):
    """A run goes on exactly if its files tell one story: against what each version tells, in all combinations."""
    went_on = 0
    for (book, (began, released)), (state, (newest, attempt)) in itertools.product(
        *(each.items() for each in versions)
    ):
        (folder / names.LEDGER).unlink(missing_ok=True)
        if book is not None:
            (folder / names.LEDGER).write_bytes(book)
        shutil.rmtree(folder / names.CHECKPOINTS, ignore_errors=True)
        (folder / names.CHECKPOINTS).mkdir()
        for name, content in state:
            (folder / names.CHECKPOINTS / name).write_bytes(content)
        expected = newest >= max(released, more.get("published", 0))
        expected &= newest == 0 or (newest, attempt) in began
        found = True
        try:
            with opened(folder) as loop:
                loop.resume(Checkpoints(folder / names.CHECKPOINTS, {}), **more)
                assert loop.next_round == newest + 1
                clients = [f"{number}.{again}" for number, again in began]
                free = [who for who in clients if abs(newest + 1 - int(who[0])) not in (1, 2)]
                assert loop.allowed(clients) == free
        except tff_mf.InputError:
            found = False
        assert found == expected, (began, released, newest, attempt)
        if found:
            went_on += 1
            record = read_ledger(folder / names.LEDGER)
            assert (record.impossible, record.problems) == ([], [])
            assert [(each.round, each.attempt) for each in record.begun] == began
            assert list(record.released) == list(range(1, newest + 1))
    assert went_on > 3
