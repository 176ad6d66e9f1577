"""TFF's own EMNIST, StackOverflow and Shakespeare pipelines become private by changing at most ten lines."""

import difflib

import numpy as np
import pytest

pytest.importorskip("tensorflow_federated")

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.emnist import char_recognition_tasks
from tensorflow_federated.python.simulation.baselines.shakespeare import char_prediction_tasks
from tensorflow_federated.python.simulation.baselines.stackoverflow import word_prediction_tasks

from tff_mf.experiments import reports

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


# Long: the recurrent models take half a minute, and the lines that change are those of EMNIST.
@pytest.mark.parametrize(
    "task", [emnist, *(pytest.param(each, marks=pytest.mark.long) for each in (stackoverflow, shakespeare))]
)
def test_a_tutorial_is_private(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"task": task()}
    before = tf.nest.flatten(scope["task"].model_fn().trainable_variables)
    exec(compile(PRIVATE, "tutorial", "exec"), scope)
    scope["training"].close()
    assert [each.shape for each in scope["weights"].trainable] == [tuple(each.shape) for each in before]
    assert all(np.isfinite(each).all() for each in scope["weights"].trainable)
    assert scope["plan"].epsilon <= 8.0
    assert reports.check(tmp_path / "run").problems == []
