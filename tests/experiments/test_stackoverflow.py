"""StackOverflow's file is there whole or not at all, whatever happens to the download."""

import contextlib
import os
import shutil
import sqlite3
import urllib.error

import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf.experiments.training.datasets import named_data, sqlite, stackoverflow

COUNTS = {"the": 2, "a": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path))
    monkeypatch.setattr(stackoverflow, "CLIENTS", {"train": 1, "heldout": 1, "test": 1})
    return tmp_path


@pytest.fixture
def served(monkeypatch, of_stackoverflow):
    """Stands in for TFF's downloader, which also writes to the final name as data come."""

    def serve(change=lambda path: None, fail=None, count_failure=None):
        calls = []

        def load_data(cache_dir):
            calls.append(cache_dir)
            target = shutil.copy(of_stackoverflow, f"{cache_dir}/{stackoverflow.FILE_NAME}")
            change(target)
            if fail is not None:
                raise fail

        def load_word_counts(cache_dir):
            if count_failure is not None:
                raise count_failure
            return COUNTS

        monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_data", load_data)
        monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_word_counts", load_word_counts)
        return calls

    return serve


def left_over(cache):
    return sorted(path.name for path in cache.iterdir() if path.name != ".stackoverflow-lock")


def test_a_download_is_kept_with_its_word_counts_and_not_made_again(cache, served):
    calls = served()
    path = named_data.data_file("stackoverflow")
    assert named_data.data_file("stackoverflow") == path == cache / "stackoverflow.sqlite"
    assert len(calls) == 1
    assert dict(sqlite.load_word_counts(path)) == COUNTS
    assert sqlite.load(path).train.client_ids == ["synthetic_1"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA index_list(examples)").fetchall()
    assert left_over(cache) == ["stackoverflow.sqlite"]


def cut_off(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def without_a_client(path):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO client_metadata VALUES ('another', 'test', 1)")


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        ({"change": cut_off}, "damaged"),
        ({"change": without_a_client}, "not whole"),
        ({"fail": urllib.error.URLError("Name or service not known")}, "dataset='pydoc'"),
        ({"count_failure": Exception("URL fetch failure")}, "copy the file"),
    ],
)
def test_what_is_not_whole_is_never_kept(cache, served, failure, named):
    served(**failure)
    with pytest.raises(tff_mf.InputError, match=named):
        stackoverflow.cached_stackoverflow()
    assert left_over(cache) == []
    served()
    assert stackoverflow.cached_stackoverflow().is_file()


def test_what_a_killed_download_left_is_removed(cache, served):
    killed = cache / ".stackoverflow-abc.d"
    killed.mkdir()
    (killed / stackoverflow.FILE_NAME).write_bytes(b"SQLite format 3\0, and then the connection broke")
    served()
    stackoverflow.cached_stackoverflow()
    assert left_over(cache) == ["stackoverflow.sqlite"]


def test_a_kept_file_that_was_cut_off_later_is_refused(cache, served):
    served()
    cut_off(stackoverflow.cached_stackoverflow())
    with pytest.raises(tff_mf.InputError, match="damaged"):
        stackoverflow.cached_stackoverflow()


def test_a_file_of_the_format_is_named_with_and_without_its_prefix(of_stackoverflow):
    for name in (f"sqlite:{of_stackoverflow}", str(of_stackoverflow)):
        assert named_data.data_file(name) == of_stackoverflow
    with pytest.raises(tff_mf.InputError, match="sqlite:nothing"):
        named_data.data_file("sqlite:nothing")
