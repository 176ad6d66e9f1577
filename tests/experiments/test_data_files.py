"""Data sets as SQLite files: TFF's format to the letter, and a download that is there whole or not at all."""

import contextlib
import os
import shutil
import sqlite3
import urllib.error

import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.stackoverflow import word_prediction_tasks

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments.training.datasets import named_data, pydoc, sqlite, stackoverflow

# A client of each split.
CLIENTS = {
    split: next(name for name in map("package.{}".format, range(100)) if pydoc.split_of(name) == split)
    for split in pydoc.SPLIT_NAMES
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file written the way `pydoc` writes it."""
    path = tmp_path_factory.mktemp("written") / "file.sqlite"
    pydoc._write(path, {name: ["a b", "b c d"] for name in CLIENTS.values()})
    return str(path)


def test_tffs_own_stackoverflow_clients_are_read_unchanged(of_stackoverflow):
    splits = sqlite.load(of_stackoverflow)
    original = tff.simulation.datasets.stackoverflow.get_synthetic()
    for split, client in (
        (splits.train, "synthetic_1"),
        (splits.validation, "synthetic_2"),
        (splits.test, "synthetic_3"),
    ):
        assert split.client_ids == [client]
        assert split.element_type_structure == original.element_type_structure
        read = list(split.create_tf_dataset_for_client(client).as_numpy_iterator())
        assert read == list(original.create_tf_dataset_for_client(client).as_numpy_iterator())


def test_one_client_is_found_without_reading_all(written):
    connection = sqlite3.connect(written)
    query = "EXPLAIN QUERY PLAN SELECT * FROM examples WHERE client_id = 'a' and split_name ='train'"
    assert "USING INDEX" in str(connection.execute(query).fetchall())
    connection.close()


def test_tffs_word_prediction_task_takes_it(written):
    splits = sqlite.load(written)
    task = word_prediction_tasks.create_word_prediction_task_from_datasets(
        tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2),
        None,
        sequence_length=4,
        vocab=list(sqlite.load_word_counts(written)),
        num_out_of_vocab_buckets=1,
        train_data=splits.train,
        test_data=splits.test,
        validation_data=splits.validation,
    )
    dataset = task.datasets.get_centralized_test_data()
    ((inputs, targets),) = list(dataset.as_numpy_iterator())
    # Vocabulary a, b, c, d is 1 to 4; 5 is out of vocabulary, 6 begins and 7 ends a sentence, 0 pads.
    assert sorted(inputs.tolist()) == [[6, 1, 2, 7], [6, 2, 3, 4]]
    assert sorted(targets.tolist()) == [[1, 2, 7, 0], [2, 3, 4, 7]]


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


def test_a_file_without_word_counts_is_read_through_for_them(of_stackoverflow):
    """TFF's writer makes no table of them; what is counted is clients, and those of the train split alone."""
    counts = sqlite.load_word_counts(of_stackoverflow)
    original = tff.simulation.datasets.stackoverflow.get_synthetic().create_tf_dataset_for_client("synthetic_1")
    words = {word for example in original.as_numpy_iterator() for word in example["tokens"].decode().split()}
    assert dict(counts) == dict.fromkeys(words, 1)
    assert list(counts) == sorted(words)
    assert list(sqlite.load_word_counts(of_stackoverflow, 2)) == sorted(words)[:2]


def test_words_of_several_clients_are_counted_as_the_table_counts_them(written, tmp_path):
    path = tmp_path / "without.sqlite"
    with open(written, "rb") as file:
        path.write_bytes(file.read())
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE word_counts")
    connection.commit()
    connection.close()
    assert list(sqlite.load_word_counts(path).items()) == list(sqlite.load_word_counts(written).items())


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
        (lambda whole: b"some,text\n" * 100, "not an SQLite file"),
        (lambda whole: whole[:50], "not an SQLite file"),
        (lambda whole: whole[:-1], "is damaged"),
        (lambda whole: whole[:4096], "is damaged"),
        (lambda whole: whole[:100] + b"\xff" * (len(whole) - 100), "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(damaged, change, message):
    damaged.write_bytes(change(damaged.read_bytes()))
    with pytest.raises(InputValueError, match=message):
        sqlite.load(damaged)


def test_a_first_client_without_examples_is_no_damage(damaged):
    with contextlib.closing(sqlite3.connect(damaged)) as connection, connection:
        connection.execute(
            "INSERT INTO client_metadata (rowid, client_id, split_name, num_examples) VALUES (-1, '', 'train', 0)"
        )
    sqlite.load(damaged)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE examples", "table 'examples' lacks client_id, serialized_example_proto, split_name"),
        ("DROP TABLE client_metadata", "table 'client_metadata' lacks"),
        ("ALTER TABLE examples RENAME COLUMN serialized_example_proto TO proto", "lacks serialized_example_proto"),
        ("UPDATE client_metadata SET split_name = 'train'", "has the splits 'train', and lacks 'heldout', 'test'"),
        ("DELETE FROM examples WHERE split_name = 'test'", "no examples in its split 'test'"),
        ("UPDATE examples SET serialized_example_proto = 'text'", "has the features none"),
        ("UPDATE examples SET serialized_example_proto = x'0aff'", "has the features none"),
    ],
)
def test_another_format_is_refused(damaged, statement, message):
    connection = sqlite3.connect(damaged)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(InputValueError, match=message):
        sqlite.load(damaged)


@pytest.mark.parametrize(
    ("more", "found", "lacks"),
    [
        ({}, "'default_split'", "'train', 'heldout', 'test'"),
        ({"split_names_by_client_id": ["train", "validation", "test"]}, "'test', 'train', 'validation'", "'heldout'"),
    ],
)
def test_a_file_with_other_splits_names_those_that_it_has_and_those_that_are_needed(tmp_path, more, found, lacks):
    """TFF's own writer gives all clients one split, unless it is told."""
    data, path = tff.simulation.datasets.stackoverflow.get_synthetic(), tmp_path / "file.sqlite"
    named = {key: dict(zip(sorted(data.client_ids), value, strict=True)) for key, value in more.items()}
    tff.simulation.datasets.save_to_sql_client_data(
        data.client_ids, data.create_tf_dataset_for_client, str(path), **named
    )
    with pytest.raises(
        tff_mf.InputError, match=f"has the splits {found}, and lacks {lacks} of 'train'.*split_names_by"
    ):
        sqlite.load(path)


def test_other_features_are_refused(tmp_path):
    path = str(tmp_path / "other.sqlite")
    tff.simulation.datasets.save_to_sql_client_data(
        ["a", "b", "c"],
        lambda client: tf.data.Dataset.from_tensor_slices({"tokens": ["x y"], "label": [1]}),
        path,
        split_names_by_client_id={"a": "train", "b": "heldout", "c": "test"},
    )
    with pytest.raises(InputValueError, match="has the features label, tokens, not creation_date, score"):
        sqlite.load(path)


COUNTS = {"the": 2, "a": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def with_all_clients(of_stackoverflow, tmp_path_factory):
    """TFF's three clients, and the names alone of as many others as StackOverflow has."""
    path = shutil.copy(of_stackoverflow, tmp_path_factory.mktemp("all") / stackoverflow.FILE_NAME)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for split, count in stackoverflow.CLIENTS.items():
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
            target = shutil.copy(with_all_clients, f"{cache_dir}/{stackoverflow.FILE_NAME}")
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
    assert len(sqlite.load(path).train.client_ids) == stackoverflow.CLIENTS["train"]
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
