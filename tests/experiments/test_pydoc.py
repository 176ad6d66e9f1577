import hashlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

from tff_mf.base.errors import InputValueError
from tff_mf.experiments.training.datasets import named_data, pydoc, sqlite

# Enough text for three splits, little enough for a test.
PACKAGES = "click,hypothesis,requests"


WRITE = """
import json, sys
from tff_mf.experiments.training.datasets import pydoc
print(json.dumps(pydoc.write_pydoc(sys.argv[1], sys.argv[2].split(","))))
"""


def _written(path, packages, *, seed):
    """What a process with a hash seed of its own returns that writes a file."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", WRITE, str(path), packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The same packages, written by two processes with different hash seeds, and what the first returned."""
    folder = tmp_path_factory.mktemp("pydoc")
    counts = _written(folder / "a", PACKAGES, seed="1")
    _written(folder / "b", ",".join(reversed(PACKAGES.split(","))), seed="2")
    return folder, counts


def _rows(path, query):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_the_same_environment_gives_the_same_bytes(written):
    folder, _ = written
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_the_file_is_to_the_byte_what_tffs_writer_makes(tmp_path):
    import tensorflow as tf
    import tensorflow_federated as tff

    def examples(name):
        # The order in which TensorFlow serializes features.
        about = {**dict.fromkeys(("title", "tags"), name), "score": 0, "type": "answer", "tokens": ""}
        others = {**about, "creation_date": pydoc.NO_DATE}
        return [{**others, "score": 300 * size, "tokens": f"{name} é " * size} for size in (1, 30, 2000)]

    def dataset_of(name):
        columns = {key: [example[key] for example in examples(name)] for key in sqlite.FEATURES}
        return tf.data.Dataset.from_tensor_slices(columns)

    names = ["one", "two", "x" * 200]
    splits = {name: f"split {name}" for name in names}
    tff.simulation.datasets.save_to_sql_client_data(
        names, dataset_of, str(tmp_path / "tff"), split_names_by_client_id=splits
    )
    sqlite.write(tmp_path / "ours", ((name, splits[name], examples(name)) for name in names))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "tff").read_bytes()
    with pytest.raises(FileExistsError):
        sqlite.write(tmp_path / "ours", [])


def test_clients_are_split_by_name_and_have_enough_sentences(written):
    folder, _ = written
    rows = _rows(folder / "a", "SELECT client_id, split_name, num_examples FROM client_metadata")
    assert all(split == pydoc.split_of(name) for name, split, _ in rows)
    assert min(number for *_, number in rows) >= 8
    assert {"click.core", "requests.sessions"} <= {name for name, *_ in rows}
    assert len({name for name, *_ in rows}) == len(rows)


def test_a_file_in_the_cache_is_taken_if_it_is_whole_and_otherwise_written_anew(written, tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path / "made" / "here"))
    monkeypatch.setattr(pydoc, "PACKAGES", ("click", "requests"))
    of_two = named_data.cached_pydoc()
    monkeypatch.setattr(pydoc, "PACKAGES", ("click",))
    path = named_data.cached_pydoc()
    # Another environment is another file.
    assert path.parent == of_two.parent == tmp_path / "made" / "here"
    assert path != of_two
    whole = path.read_bytes()
    # Another whole file is not the one that would be written.
    path.write_bytes((written[0] / "a").read_bytes())
    assert named_data.cached_pydoc() == path
    assert path.read_bytes() == (written[0] / "a").read_bytes() != whole
    for damaged in (whole[: len(whole) // 2], b"", b"not SQLite at all" * 100):
        path.write_bytes(damaged)
        assert named_data.cached_pydoc() == path
        assert path.read_bytes() == whole


def test_packages_that_are_not_here_are_refused(tmp_path):
    for names in (["click", "no-such"], []):
        with pytest.raises(InputValueError, match=r"packages=\[.*not installed here"):
            pydoc.write_pydoc(tmp_path / "data", names)
    with pytest.raises(InputValueError, match=r"too little text: .* modules"):
        pydoc.write_pydoc(tmp_path / "data", ["iniconfig"])
    assert list(tmp_path.iterdir()) == []


def test_split_of_is_eight_one_one():
    counts = dict.fromkeys(sqlite.SPLITS, 0)
    for number in range(10_000):
        counts[pydoc.split_of(f"client{number}")] += 1
    assert counts == pytest.approx({"train": 8000, "heldout": 1000, "test": 1000}, abs=150)
    # By SHA-256 as it is defined, so that no release moves a client.
    share = int(hashlib.sha256(b"json.decoder").hexdigest()[:16], 16) / 16**16
    assert pydoc.split_of("json.decoder") == ("train" if share < 0.8 else "heldout" if share < 0.9 else "test")


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
