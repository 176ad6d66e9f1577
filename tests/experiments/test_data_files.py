"""Data sets as SQLite files: TFF's format to the letter, and a download that is there whole or not at all."""

import contextlib
import os
import shutil
import sqlite3
import urllib.error

import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments.training.datasets import named_data, pydoc, sqlite

# A client of each split.
CLIENTS = {
    split: next(name for name in map("package.{}".format, range(100)) if pydoc.split_of(name) == split)
    for split in sqlite.SPLITS
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file written the way `pydoc` writes it."""
    path = tmp_path_factory.mktemp("written") / "file.sqlite"
    pydoc.write_clients(path, {name: ["a b", "b c d"] for name in CLIENTS.values()})
    return str(path)


def test_tffs_own_stackoverflow_clients_are_read_unchanged(of_stackoverflow):
    original = tff.simulation.datasets.stackoverflow.get_synthetic()
    for split, client in zip(sqlite.SPLITS, original.client_ids, strict=True):
        assert sqlite.clients(sqlite.checked(of_stackoverflow), split) == [client]
        tokens = [each["tokens"].decode() for each in original.create_tf_dataset_for_client(client).as_numpy_iterator()]
        (examples,) = sqlite.first_examples(of_stackoverflow, split, [client], most=99)
        assert sqlite.texts(examples) == tokens
        assert sqlite.number_of_sentences(of_stackoverflow, split) == len(tokens) > 1


def test_word_counts(written):
    assert list(sqlite.load_word_counts(written).items()) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert list(sqlite.load_word_counts(written, 2)) == ["a", "b"]
    assert len(sqlite.load_word_counts(written, 99)) == 4
    for size in (0, -1):
        with pytest.raises(InputValueError, match="vocab_size"):
            sqlite.load_word_counts(written, size)
    for size in (2.0, "2", True):
        with pytest.raises(InputTypeError, match="vocab_size"):
            sqlite.load_word_counts(written, size)


@pytest.fixture
def damaged(written, tmp_path):
    path = tmp_path / "damaged.sqlite"
    with open(written, "rb") as file:
        path.write_bytes(file.read())
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: b"", "not an SQLite file"),
        (lambda whole: whole[:-1], "is damaged"),
        (lambda whole: whole[:100] + b"\xff" * (len(whole) - 100), "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(damaged, change, message):
    damaged.write_bytes(change(damaged.read_bytes()))
    with pytest.raises(InputValueError, match=message):
        sqlite.checked(damaged)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE examples", "table 'examples' lacks client_id, serialized_example_proto, split_name"),
        ("UPDATE client_metadata SET split_name = 'train'", "has the splits 'train', and lacks 'heldout', 'test'"),
        ("DELETE FROM examples WHERE split_name = 'test'", "no examples in its split 'test'"),
        ("UPDATE examples SET serialized_example_proto = x'0aff'", "has not the features creation_date, score"),
    ],
)
def test_another_format_is_refused(damaged, statement, message):
    connection = sqlite3.connect(damaged)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(InputValueError, match=message):
        sqlite.checked(damaged)


COUNTS = {"the": 2, "a": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def with_all_clients(of_stackoverflow, tmp_path_factory):
    """TFF's three clients, and the names alone of as many others as StackOverflow has."""
    path = shutil.copy(of_stackoverflow, tmp_path_factory.mktemp("all") / named_data.FILE_NAME)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for split, count in named_data.CLIENTS.items():
            others = ((f"{split} {number}", split, 1) for number in range(count - 1))
            connection.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", others)
    return path


@pytest.fixture
def served(monkeypatch, with_all_clients):
    """Stands in for TFF's downloader, which also writes to the final name as data come."""

    def serve(change=lambda path: None, fail=None, count_failure=None):
        calls = []

        def load_data(cache_dir):
            calls.append(cache_dir)
            target = shutil.copy(with_all_clients, f"{cache_dir}/{named_data.FILE_NAME}")
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
    assert len(sqlite.clients(path, "train")) == named_data.CLIENTS["train"]
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
        named_data.cached_stackoverflow()
    assert left_over(cache) == []
    served()
    assert named_data.cached_stackoverflow().is_file()
