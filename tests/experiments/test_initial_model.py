"""A run that starts from a given model: which models are refused, what the report says, and how it is resumed."""

import hashlib
import itertools
import json

import msgspec
import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import initial_model as named_models
from tff_mf.experiments.runs import model_file
from tff_mf.experiments.training import deployment

from . import small_runs
from .shared import critical, invoke
from .small_runs import NETWORK, WORDS

TENSORS = {"0": np.arange(6, dtype=np.float32).reshape(2, 3), "1": np.ones(3, np.float32)}


def written(folder, tensors=TENSORS, words=WORDS, run=None):
    path = small_runs.write_model(folder, tensors, words)
    if run is not None:
        (folder / "configuration.toml").write_text(run)
    return path


def expected(tensors=TENSORS):
    return [np.zeros_like(each) for each in tensors.values()]


def read(path, folder, vocab_size=3):
    return named_models.read(named_models.given(str(path), dataset="pydoc"), folder, vocab_size)


def test_a_model_is_read_with_its_words_and_kept(tmp_path):
    path, run = written(tmp_path / "before"), tmp_path / "run"
    run.mkdir()
    found = read(path, run)
    assert found.vocabulary == WORDS
    for value, own in zip(found.parameters(expected()), TENSORS.values(), strict=True):
        np.testing.assert_array_equal(value, own)
    found.keep(run)
    path.unlink()
    # The copy is enough, and is the one that the settings name.
    assert named_models.read(found.named, run, 3) == found
    assert typed.convert(msgspec.to_builtins(found.named), named_models.InitialModel) == found.named


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"0": TENSORS["0"], "two": TENSORS["1"]}, "does not say in which order"),
        ({"0": TENSORS["0"].T, "1": TENSORS["1"]}, r"float32 \[3, 2\] as its tensor '0'.* has float32 \[2, 3\]: take"),
        ({"0": TENSORS["0"], "1": np.full(3, np.nan, np.float32)}, "not finite in its tensor '1'"),
    ],
)
def test_a_model_of_other_settings_is_refused(tmp_path, tensors, named):
    with pytest.raises(tff_mf.InputError, match=f"^initial_model=.*{named}"):
        read(written(tmp_path, tensors), tmp_path).parameters(expected())


@pytest.mark.parametrize("text", [None, '["a", 1]', '["a", "a"]', "["])
def test_a_model_without_its_words_is_refused(tmp_path, text):
    path = written(tmp_path)
    words = tmp_path / "vocabulary.json"
    words.unlink() if text is None else words.write_text(text)
    with pytest.raises(tff_mf.InputError, match=r"^initial_model=.* needs vocabulary\.json beside it"):
        named_models.given(str(path), dataset="pydoc")


def test_a_file_that_changed_after_the_start_is_refused(tmp_path):
    path = written(tmp_path)
    named = named_models.given(str(path), dataset="pydoc")
    (tmp_path / "vocabulary.json").write_text(json.dumps(["of", "the", "a"]))
    with pytest.raises(tff_mf.InputError, match="has another vocabulary than at the start"):
        named_models.read(named, tmp_path, 3)
    written(tmp_path, {**TENSORS, "1": np.zeros(3, np.float32)})
    with pytest.raises(tff_mf.InputError, match="is another model than at the start"):
        named_models.read(named, tmp_path, 3)
    path.unlink()
    with pytest.raises(tff_mf.InputError, match="and the run has no copy of it"):
        named_models.read(named, tmp_path, 3)


def test_the_same_data_are_known_under_every_name(tmp_path, monkeypatch):
    """Runs of compare name the file of the cache, and a path can be written in many ways: each gave too small an ε."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sqlite").write_bytes(b"1")
    (tmp_path / "copy.sqlite").write_bytes(b"1")
    (tmp_path / "other.sqlite").write_bytes(b"2")
    (tmp_path / "link.sqlite").symlink_to("a.sqlite")
    names = ["a.sqlite", "./a.sqlite", "sqlite:a.sqlite", f"{tmp_path}/a.sqlite", "copy.sqlite", "sqlite:link.sqlite"]
    cached = f"sqlite:/cache/pydoc-{'0a' * 8}.sqlite"
    same = {
        *itertools.product(names, repeat=2),
        ("pydoc", cached),
        (cached, "pydoc"),
        ("elsewhere/a.sqlite", "a.sqlite"),
    }
    other = {
        ("a.sqlite", "other.sqlite"),
        ("pydoc", "a.sqlite"),
        (cached, "stackoverflow"),
        ("gone.sqlite", "a.sqlite"),
    }
    for earlier, now in same | other:
        path = written(tmp_path / "run", run=f'[run]\ndataset = "{earlier}"\n')
        assert named_models.given(str(path), dataset=now).same_data == ((earlier, now) in same), (earlier, now)
    # A link to a model, without the settings of its run.
    written(tmp_path / "run", run='[run]\ndataset = "a.sqlite"\n')
    linked = written(tmp_path / "linked")
    linked.unlink()
    linked.symlink_to("../run/model.safetensors")
    assert named_models.given(str(linked), dataset="a.sqlite").same_data


# A rate at which no weight but 0 moves: the end of the run is its start.
FLAGS = ["--mechanism", "identity", "--set", "server_learning_rate=1e-30"]


# Killed and resumed without the file: test_secret_cohorts.py.
def test_a_run_from_a_public_model_says_so(small_data, tmp_path):
    folder, path = tmp_path / "run", written(tmp_path / "public", NETWORK)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    small_runs.trained(folder, small_data, [*FLAGS, "--set", f"initial_model={path}"])
    for weight, own in zip(model_file.read_from(folder)[0].values(), NETWORK.values(), strict=True):
        np.testing.assert_array_equal(weight, own)
    assert json.loads((folder / "run.json").read_text())["initial_model"]["sha256"] == digest
    assert json.loads((folder / "vocabulary.json").read_text()) == WORDS
    assert "ε≤" in reports.build(folder, realised=True).headline
    assert digest[:16] in (folder / "report.md").read_text()
    assert critical(folder) == []
    with pytest.raises(tff_mf.InputError, match=r"initial_model=.* cannot be exported"):
        deployment.read_source(folder)
    # A copy that was exchanged is not the model of run.json.
    other = {**NETWORK, "1": np.zeros_like(NETWORK["1"])}
    written(tmp_path / "other", other).rename(folder / "initial_model.safetensors")
    assert any("initial_model.safetensors is missing, or is not" in each for each in critical(folder))


def test_a_run_from_a_model_of_the_same_clients_states_no_epsilon(small_data, tmp_path):
    """The two guarantees compose, and the ε of the second alone is too small: nothing prints it."""
    folder = tmp_path / "run"
    path = written(tmp_path / "private", NETWORK, run=f'[run]\ndataset = "sqlite:{small_data}"\n')
    refused = invoke(
        *small_runs.arguments(folder, small_data, [*FLAGS, "--set", f"initial_model={path}"]), catch_exceptions=True
    )
    assert isinstance(refused.exception, tff_mf.InputError)
    assert "initial_model=" in str(refused.exception)
    assert not folder.exists()
    done = small_runs.trained(folder, small_data, [*FLAGS, "--set", f"initial_model={path}", "--without-epsilon"])
    assert "NO ε CAN BE STATED: initial model: " in done.stdout
    assert "ε≤" not in done.stdout
    for realised in (False, True):
        headline = reports.build(folder, realised=realised).headline
        assert headline.startswith("NO ε CAN BE STATED")
        assert "on the same data set" in headline


def test_equal_models_have_equal_files():
    weights = {f"layer/{index}": np.full(3, index, np.float32) for index in (2, 0, 1)}
    contents = {model_file.content(weights, {"average": np.zeros(2)}) for _ in range(20)}
    assert len(contents) == 1
    trainable, others = model_file.read(contents.pop())
    assert (list(trainable), list(others)) == (list(weights), ["average"])
