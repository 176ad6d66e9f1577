"""Data sets as SQLite files: TFF's format to the letter; text of docstrings; a download that is whole or not there."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import urllib.error

import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments.training.datasets import named_data, pydoc, sqlite

# Enough text for three splits, little enough for a test.
PACKAGES = ["click", "hypothesis", "requests"]
WRITE = """
import json, sys
from tff_mf.experiments.training.datasets import pydoc
print(json.dumps(pydoc.write_pydoc(sys.argv[1], sys.argv[2:])))
"""
COUNTS = {"the": 2, "a": 1}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path / "made" / "here"))
    return tmp_path / "made" / "here"


def write_by_process(path, packages, *, seed):
    """What a process with a hash seed of its own returns that writes the data set of packages."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", WRITE, str(path), *packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file of the packages."""
    path = tmp_path_factory.mktemp("pydoc") / "file.sqlite"
    counts = write_by_process(path, PACKAGES, seed="1")
    assert min(counts["clients"].values()) > 0
    return path


def rows(path, query):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_the_same_environment_gives_the_same_bytes(written, tmp_path):
    write_by_process(tmp_path / "other", PACKAGES[::-1], seed="2")
    assert (tmp_path / "other").read_bytes() == written.read_bytes()
    clients = rows(written, "SELECT client_id, split_name, num_examples FROM client_metadata")
    assert all(split == pydoc.split_of(name) for name, split, _ in clients)
    assert min(number for *_, number in clients) >= 8
    assert {"click.core", "requests.sessions"} <= {name for name, *_ in clients}
    assert len({name for name, *_ in clients}) == len(clients)


def test_the_file_is_to_the_byte_what_tffs_writer_makes(tmp_path):
    def examples(name):
        # The order in which TensorFlow serializes features.
        about = {**dict.fromkeys(("title", "tags"), name), "score": 0, "type": "answer", "tokens": ""}
        others = {**about, "creation_date": pydoc.NO_DATE}
        return [{**others, "score": 300 * size, "tokens": f"{name} é " * size} for size in (1, 30, 2000)]

    def dataset_of(name):
        columns = {key: [example[key] for example in examples(name)] for key in sqlite.FEATURES}
        return tf.data.Dataset.from_tensor_slices(columns)

    splits = {name: f"split {name}" for name in ("one", "two", "x" * 200)}
    tff.simulation.datasets.save_to_sql_client_data(
        list(splits), dataset_of, str(tmp_path / "tff"), split_names_by_client_id=splits
    )
    sqlite.write(tmp_path / "ours", ((name, split, examples(name)) for name, split in splits.items()))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "tff").read_bytes()
    with pytest.raises(FileExistsError):
        sqlite.write(tmp_path / "ours", [])


def test_tffs_own_stackoverflow_clients_are_read(of_stackoverflow):
    original = tff.simulation.datasets.stackoverflow.get_synthetic()
    for split, client in zip(sqlite.SPLITS, original.client_ids, strict=True):
        assert sqlite.clients(sqlite.checked(of_stackoverflow), split) == [client]
        tokens = [each["tokens"].decode() for each in original.create_tf_dataset_for_client(client).as_numpy_iterator()]
        (examples,) = sqlite.first_examples(of_stackoverflow, split, [client], most=99)
        assert sqlite.texts(examples) == tokens
        assert sqlite.number_of_sentences(of_stackoverflow, split) == len(tokens) > 1


def test_word_counts_are_of_clients_also_without_their_table(written, tmp_path):
    counts = sqlite.load_word_counts(written)
    assert list(counts.items()) == sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert counts["the"] <= len(sqlite.clients(written, "train"))
    assert list(sqlite.load_word_counts(written, 2)) == list(counts)[:2]
    assert len(sqlite.load_word_counts(written, len(counts) + 1)) == len(counts)
    bare = shutil.copy(written, tmp_path / "bare")
    with contextlib.closing(sqlite3.connect(bare)) as connection, connection:
        connection.execute("DROP TABLE word_counts")
    assert sqlite.load_word_counts(bare) == counts
    for size, error in ((0, InputValueError), (-1, InputValueError), (2.0, InputTypeError), (True, InputTypeError)):
        with pytest.raises(error, match="vocab_size"):
            sqlite.load_word_counts(written, size)


def test_split_of_is_eight_one_one():
    counts = dict.fromkeys(sqlite.SPLITS, 0)
    for number in range(10_000):
        counts[pydoc.split_of(f"client{number}")] += 1
    assert counts == pytest.approx({"train": 8000, "heldout": 1000, "test": 1000}, abs=150)
    # By SHA-256 as it is defined, so that no release moves a client.
    place = int(hashlib.sha256(b"json.decoder").hexdigest()[:16], 16) / 16**16
    assert pydoc.split_of("json.decoder") == ("train" if place < 0.8 else "heldout" if place < 0.9 else "test")


DOCSTRING = """Returns the mean of a :class:`Stream` of *numbers*.

It's kept in one number, e.g. v3.5,
whatever the length: memory does not grow.

>>> this_is_code("and it is left out.")
Args:
  values: The numbers that it is of.
  axis : int, optional
  * Über-fast, and <b>not</b> ASCII, is what it is.
"""


def test_sentences_are_those_that_read_as_english():
    assert list(pydoc.sentences_of(DOCSTRING)) == [
        "returns the mean of a stream of numbers .",
        "it's kept in one number , e.g. v3.5 , whatever the length : memory does not grow .",
        "the numbers that it is of .",
    ]


def test_clients_never_import_and_a_sentence_belongs_to_the_first(tmp_path):
    numbers = {"a": range(8), "b": range(16), "c": range(10, 24), "d": range(50, 57)}
    for name, which in numbers.items():
        sentences = "\n".join(f"This is sentence number {n} of it." for n in which)
        (tmp_path / name).write_text(f'"""{sentences}"""\nraise SystemExit("imported")\n')
    (tmp_path / "e").write_bytes(b'def (\xff\xfe\x00 """It is so.')
    files = {name: tmp_path / name for name in ("a", "b", "c", "d", "e", "missing")}
    clients = pydoc.clients_of(files, progress=False)
    assert {name: len(own) for name, own in clients.items()} == {"a": 8, "b": 8, "c": 8}
    assert clients["c"][0] == "this is sentence number 16 of it ."


def test_packages_that_are_not_here_or_have_no_text_are_refused(tmp_path):
    for names in (["click", "no-such"], []):
        with pytest.raises(InputValueError, match=r"packages=\[.*not installed here"):
            pydoc.write_pydoc(tmp_path / "data", names)
    with pytest.raises(InputValueError, match=r"packages='iniconfig' have too little text: \d modules"):
        pydoc.write_pydoc(tmp_path / "data", ["iniconfig"])
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_cache_is_taken_if_it_is_whole_and_otherwise_written_anew(written, cache, monkeypatch):
    monkeypatch.setattr(pydoc, "PACKAGES", ("click", "requests"))
    of_two = named_data.cached_pydoc()
    monkeypatch.setattr(pydoc, "PACKAGES", ("click",))
    path = named_data.data_file("pydoc")
    # Another environment is another file.
    assert path.parent == of_two.parent == cache
    assert path != of_two
    whole = path.read_bytes()
    # Another whole file is not the one that would be written.
    shutil.copy(written, path)
    assert named_data.cached_pydoc() == path
    assert path.read_bytes() == written.read_bytes() != whole
    for damaged in (whole[: len(whole) // 2], b"", b"not SQLite at all" * 100):
        path.write_bytes(damaged)
        assert named_data.cached_pydoc() == path
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: b"", "not an SQLite file"),
        (lambda whole: whole[:-1], "is damaged"),
        (lambda whole: whole[:100] + b"\xff" * (len(whole) - 100), "is damaged"),
        ("DROP TABLE examples", "table 'examples' lacks client_id, serialized_example_proto, split_name"),
        ("UPDATE client_metadata SET split_name = 'train'", "has the splits 'train', and lacks 'heldout', 'test'"),
        ("DELETE FROM examples WHERE split_name = 'test'", "no examples in its split 'test'"),
        ("UPDATE examples SET serialized_example_proto = x'0aff'", "has not the features creation_date, score"),
        ("UPDATE examples SET serialized_example_proto = 7", "has not the features creation_date, score"),
    ],
)
def test_a_damaged_file_or_another_format_is_refused(written, tmp_path, change, message):
    path = shutil.copy(written, tmp_path / "damaged.sqlite")
    if callable(change):
        path.write_bytes(change(path.read_bytes()))
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
    with pytest.raises(InputValueError, match=rf"damaged.sqlite.*{message}"):
        sqlite.load_word_counts(path)


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
            change(shutil.copy(with_all_clients, f"{cache_dir}/{named_data.FILE_NAME}"))
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
    assert rows(path, "PRAGMA index_list(examples)")
    assert left_over(cache) == ["stackoverflow.sqlite"]


def cut_off(path):
    os.truncate(path, os.path.getsize(path) // 2)


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
