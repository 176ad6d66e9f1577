"""Data sets as SQLite files: of TFF's format; text of docstrings; a download that is whole or not there."""

import collections
import contextlib
import hashlib
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
import tensorflow_federated as tff

from tff_mf.base.errors import InputValueError
from tff_mf.experiments import data

from .shared import by_tff

# Enough text for three splits, little enough for a test.
PACKAGES = ["click", "hypothesis", "requests"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path / "made" / "here"))
    return tmp_path / "made" / "here"


def write_by_process(path, packages, *, seed):
    """Writes the data set of packages in a process with a hash seed of its own."""
    line = "import sys; from tff_mf.experiments import data; data.write_pydoc(sys.argv[1], sys.argv[2:])"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, "-c", line, path, *packages], env=environment, check=True, timeout=120)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file of the packages."""
    path = tmp_path_factory.mktemp("pydoc") / "file.sqlite"
    write_by_process(path, PACKAGES, seed="1")
    return path


def test_the_same_environment_gives_the_same_bytes(written, tmp_path):
    write_by_process(tmp_path / "other", PACKAGES[::-1], seed="2")
    assert (tmp_path / "other").read_bytes() == written.read_bytes()
    names = [name for split in data.SPLITS for name in data.client_ids(written, split)]
    assert {"click.core", "requests.sessions"} <= {*names}
    assert len(names) == len({*names})


def test_a_file_that_tff_wrote_and_one_that_it_reads_have_the_same_clients_and_sentences(of_stackoverflow, tmp_path):
    original = tff.simulation.datasets.stackoverflow.get_synthetic()
    sentences = {}
    for split, client in zip(data.SPLITS, original.client_ids, strict=True):
        assert data.client_ids(data.checked(of_stackoverflow), split) == [client]
        dataset = original.create_tf_dataset_for_client(client)
        sentences[split, client] = [example["tokens"].decode() for example in dataset.as_numpy_iterator()]
    data.write(tmp_path / "ours", sentences)
    for (split, client), own in sentences.items():
        for path in (of_stackoverflow, tmp_path / "ours"):
            (examples,) = data.first_examples(path, split, [client], most=99)
            assert data.texts(examples) == own
            assert data.number_of_sentences(path, split) == len(own) > 1
        read = by_tff(tmp_path / "ours", split).create_tf_dataset_for_client(client)
        assert [example["tokens"].decode() for example in read.as_numpy_iterator()] == own


def test_clients_whose_names_differ_by_case_have_their_own_examples(tmp_path):
    data.write(tmp_path / "data", {("train", "Ann"): ["a b"], ("train", "ann"): ["c d"]})
    with contextlib.closing(sqlite3.connect(tmp_path / "data")) as file, file:
        file.execute("PRAGMA writable_schema = ON")
        file.execute("UPDATE sqlite_master SET sql = replace(sql, 'client_id TEXT', 'client_id TEXT COLLATE NOCASE')")
    found = data.first_examples(tmp_path / "data", "train", ["Ann", "ann"], most=9)
    assert [data.texts(own) for own in found] == [["a b"], ["c d"]]


def test_the_vocabulary_is_of_the_words_that_most_clients_use(written):
    used = collections.Counter()
    clients = data.client_ids(written, "train")
    for own in data.first_examples(written, "train", clients, most=10**6):
        used.update({*itertools.chain.from_iterable(text.split() for text in data.texts(own))})
    expected = sorted(used, key=lambda word: (-used[word], word))
    assert len(expected) > 100
    for number in (2, len(expected) + 1):
        assert data.most_used_words(written, number) == expected[:number]


def test_split_of_is_eight_one_one():
    counts = collections.Counter(data.split_of(f"client{number}") for number in range(10_000))
    assert counts == pytest.approx({"train": 8000, "heldout": 1000, "test": 1000}, abs=150)
    # By SHA-256 as it is defined, so that no release moves a client.
    place = int(hashlib.sha256(b"json.decoder").hexdigest()[:16], 16) / 16**16
    assert data.split_of("json.decoder") == ("train" if place < 0.8 else "heldout" if place < 0.9 else "test")


def test_clients_never_import_and_a_sentence_belongs_to_the_first(tmp_path):
    numbers = {"a": range(8), "b": range(16), "c": range(10, 24), "d": range(50, 57)}
    for name, which in numbers.items():
        sentences = "\n".join(f"This is sentence number {n} of it." for n in which)
        (tmp_path / name).write_text(f'"""{sentences}"""\nraise SystemExit("imported")\n')
    (tmp_path / "e").write_bytes(b'def (\xff\xfe\x00 """It is so.')
    clients = data.clients_of({name: tmp_path / name for name in ("a", "b", "c", "d", "e", "missing")})
    assert {name: len(own) for name, own in clients.items()} == {"a": 8, "b": 8, "c": 8}
    assert clients["c"][0] == "this is sentence number 16 of it ."


def test_a_file_in_the_cache_is_taken_if_it_is_whole_and_otherwise_written_anew(written, cache, monkeypatch):
    monkeypatch.setattr(data, "PACKAGES", ("click", "requests", "no-such-package"))
    of_two = data.cached_pydoc()
    monkeypatch.setattr(data, "PACKAGES", ("click",))
    path = data.data_file("pydoc")
    # Another environment is another file.
    assert path.parent == of_two.parent == cache
    assert path != of_two
    whole = path.read_bytes()
    # Another whole file is not the one that would be written.
    shutil.copy(written, path)
    assert data.cached_pydoc() == path
    assert path.read_bytes() == written.read_bytes() != whole
    for damaged in (whole[: len(whole) // 2], b"", b"not SQLite at all" * 100):
        path.write_bytes(damaged)
        assert data.cached_pydoc() == path
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[:100] + b"\xff" * (len(whole) - 100),
        "DROP TABLE examples",
        "UPDATE client_metadata SET split_name = 'train'",
        "DELETE FROM examples WHERE split_name = 'test'",
        "UPDATE examples SET serialized_example_proto = x'0aff'",
    ],
)
def test_a_damaged_file_or_another_format_is_refused(written, tmp_path, change):
    path = shutil.copy(written, tmp_path / "damaged.sqlite")
    if callable(change):
        path.write_bytes(change(path.read_bytes()))
    else:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
    with pytest.raises(InputValueError, match=r"path=.*damaged\.sqlite"):
        data.most_used_words(data.data_file(f"sqlite:{path}"), 9)


def test_a_download_is_kept_if_it_is_whole_and_not_made_again(cache, of_stackoverflow, monkeypatch):
    """TFF's downloader writes to the final name as data come."""
    stackoverflow, failures = tff.simulation.datasets.stackoverflow, ["cut off", "no connection", None]

    def load_data(cache_dir):
        path, failure = shutil.copy(of_stackoverflow, f"{cache_dir}/{data.STACKOVERFLOW}"), failures.pop(0)
        if failure == "cut off":
            os.truncate(path, os.path.getsize(path) // 2)
        elif failure is not None:
            raise OSError(failure)

    monkeypatch.setattr(stackoverflow, "load_data", load_data)
    for _ in range(2):
        with pytest.raises(InputValueError):
            data.data_file("stackoverflow")
        assert list(cache.iterdir()) == []
    assert data.data_file("stackoverflow") == data.data_file("stackoverflow") == cache / data.STACKOVERFLOW
    assert failures == []
    counts = {"the": 2, "a": 1}
    monkeypatch.setattr(stackoverflow, "load_word_counts", lambda cache_dir, vocab_size: [*counts][:vocab_size])
    assert data.most_used_words(cache / data.STACKOVERFLOW, 1) == ["the"]
