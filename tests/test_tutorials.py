"""The notebooks of docs/tutorials that need TensorFlow, and TFF's own pipelines, which ten changed lines make private.

Notebooks without TensorFlow are in tests/tff_mf and tests/flower.
"""

import difflib
import pathlib
import re
import runpy
import shlex
import subprocess

import numpy as np
import pytest

pytest.importorskip("tensorflow_federated")

import tensorflow as tf
import tensorflow_federated as tff
from click.testing import CliRunner
from tensorflow_federated.python.simulation.baselines.emnist import char_recognition_tasks
from tensorflow_federated.python.simulation.baselines.shakespeare import char_prediction_tasks
from tensorflow_federated.python.simulation.baselines.stackoverflow import word_prediction_tasks

from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli

HERE = pathlib.Path(__file__).resolve().parent.parent
FOLDER = HERE / "docs" / "tutorials"
NOTEBOOKS = runpy.run_path(str(HERE / "docs" / "notebooks.py"))
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
LINKS = re.compile(r"\]\(([^)\s#]+)")
# For a quick run in CI: what stands in a notebook, and what takes its place; what it prints then is not compared.
SHORTER = {
    "emnist": {
        "range(200)": "range(40)",
        "ROUNDS = 40": "ROUNDS = 2",
        "min_sep=20, max": "min_sep=1, max",
        "dataset.repeat(NUM_EPOCHS)": "dataset",
        "(swapped(name)) for name in mechanisms}": '(swapped(name)) for name in ["BLT"]}',
        'assert accuracies["BLT"] > accuracies["independent"]': "",
    },
}


def sources(path, kind):
    cells = NOTEBOOKS["read"](path)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def in_this_process(line):
    """What a line prints: tff-mf's without another import of TensorFlow."""
    if not line.startswith("tff-mf "):
        return NOTEBOOKS["shell"](line)
    command, _, filtered = line.partition(" | ")
    done = CliRunner().invoke(cli, shlex.split(command)[1:], catch_exceptions=False, standalone_mode=False)
    if not filtered:
        return done.stdout
    piped = subprocess.run(["bash", "-c", filtered], input=done.stdout, capture_output=True, text=True, check=True)
    return piped.stdout


# Long: another test runs a notebook with less data.
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("emnist", marks=pytest.mark.long),  # A shorter one runs in CI.
        "central-keras",
        pytest.param("next-word", marks=pytest.mark.long),  # Lines as those of docs/command-line.md, which run in CI.
        pytest.param("deploy", marks=pytest.mark.long),  # test_runner.py runs a bundle, docs/deployment.md the lines.
    ],
)
def test_a_notebook_prints_its_stored_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for cell, text in NOTEBOOKS["printed"](NOTEBOOKS["read"](PATHS[name]), in_this_process):
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))


@pytest.mark.parametrize("name", SHORTER)
def test_a_notebook_runs_with_less_data(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = NOTEBOOKS["read"](PATHS[name])
    text = "".join(sources(PATHS[name], "code"))
    assert all(old in text for old in SHORTER[name])
    for cell in notebook["cells"]:
        for old, new in SHORTER[name].items():
            cell["source"] = ["".join(cell["source"]).replace(old, new)]
    *_, (_, said) = NOTEBOOKS["printed"](notebook)
    assert said.startswith("client-level DP (zero-out): ε = 2.000")


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_links_and_stored_output_of_a_notebook_are_sound(path):
    for link in LINKS.findall("".join(sources(path, "markdown"))):
        assert "://" in link or (FOLDER / link).exists(), link
    outputs = [NOTEBOOKS["stored"](cell) for cell in NOTEBOOKS["read"](path)["cells"] if cell["cell_type"] == "code"]
    assert sum(map(bool, outputs)) >= 5
    assert not [text for text in outputs if "Traceback" in text or "/tmp/" in text]
    assert path.stat().st_size < 200_000


# As in TFF's tutorials, for a task of `tff.simulation.baselines`, which has data, preprocessing and model of each.
PLAIN = """
import numpy as np
import tensorflow_federated as tff

train = task.datasets.train_data
preprocess = task.datasets.train_preprocess_fn

process = tff.learning.algorithms.build_weighted_fed_avg(
    task.model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
)
state = process.initialize()
for round_num in range(2):
    cohort = np.random.choice(train.client_ids, size=2, replace=False)
    result = process.next(state, [preprocess(train.create_tf_dataset_for_client(client)) for client in cohort])
    state = result.state
    print(round_num, result.metrics)
weights = process.get_model_weights(state)
"""
PRIVATE = """
import tff_mf
import tensorflow_federated as tff
from tff_mf import aggregators

train = task.datasets.train_data
preprocess = task.datasets.train_preprocess_fn

plan = tff_mf.plan(population=len(train.client_ids), clients_per_round=2, rounds=2, epsilon=8.0, delta=1e-3)
training = aggregators.private_fed_avg(
    plan,
    task.model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    folder="run",
)
for cohort in training.cohorts(train.client_ids):
    training.next({client: preprocess(train.create_tf_dataset_for_client(client)) for client in cohort})
print(training.evaluate(task.datasets.get_centralized_test_data()), training.report())
weights = training.model()
"""
SPEC = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2, max_elements=2)
WORDS = ["to", "be", "or", "not"]


def clients(example):
    """Client data in a format, of four clients that train and one that does not."""
    made = ({name: example() for name in names} for names in (("ann", "bob", "carol", "dave"), ("eve",)))
    return {
        name: tff.simulation.datasets.TestClientData(data)
        for name, data in zip(("train_data", "test_data"), made, strict=True)
    }


def emnist():
    images = clients(lambda: {"label": np.arange(3, dtype=np.int32), "pixels": np.full([3, 28, 28], 0.5, np.float32)})
    return char_recognition_tasks.create_character_recognition_task_from_datasets(
        SPEC, SPEC, model_id="2nn", only_digits=True, **images
    )


def stackoverflow():
    fields = ("creation_date", "score", "tags", "title", "type")
    posts = clients(lambda: {"tokens": np.array(["to be or not", "not to be"]), **{each: ["", ""] for each in fields}})
    return word_prediction_tasks.create_word_prediction_task_from_datasets(
        SPEC, SPEC, 4, WORDS, 1, **posts, validation_data=posts["test_data"]
    )


def shakespeare():
    lines = clients(lambda: {"snippets": np.array(["to be, or not to be", "that is the question"])})
    return char_prediction_tasks.create_character_prediction_task_from_datasets(SPEC, SPEC, sequence_length=8, **lines)


def test_at_most_ten_lines_change():
    changes = list(difflib.ndiff(PLAIN.splitlines(), PRIVATE.splitlines()))
    added = [line for line in changes if line.startswith("+ ")]
    assert 0 < len(added) <= 10, added


# Long: test_docs.py runs README's lines; experiments/test_private_training.py trains models of all kinds so.
@pytest.mark.long
@pytest.mark.parametrize("task", [emnist, stackoverflow, shakespeare])
def test_a_tutorial_is_private(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"task": task()}
    before = tf.nest.flatten(scope["task"].model_fn().trainable_variables)
    exec(compile(PRIVATE, "tutorial", "exec"), scope)
    scope["training"].close()
    assert [each.shape for each in scope["weights"].trainable] == [tuple(each.shape) for each in before]
    assert all(np.isfinite(each).all() for each in scope["weights"].trainable)
    assert scope["plan"].epsilon <= 8.0
    assert [each for each in reports.check(tmp_path / "run") if each.severity == "critical"] == []
