"""TFF's own EMNIST pipeline becomes private by changing at most ten lines."""

import difflib

import numpy as np
import pytest

pytest.importorskip("tensorflow_federated")

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.emnist import char_recognition_tasks

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


def test_at_most_ten_lines_change():
    changes = list(difflib.ndiff(PLAIN.splitlines(), PRIVATE.splitlines()))
    added = [line for line in changes if line.startswith("+ ")]
    assert 0 < len(added) <= 10, added


def test_a_tutorial_is_private(tmp_path, monkeypatch):
    """The lines that change are the same for every task of `tff.simulation.baselines`."""
    monkeypatch.chdir(tmp_path)
    scope = {"task": emnist()}
    before = tf.nest.flatten(scope["task"].model_fn().trainable_variables)
    exec(compile(PRIVATE, "tutorial", "exec"), scope)
    scope["training"].close()
    assert [each.shape for each in scope["weights"].trainable] == [tuple(each.shape) for each in before]
    assert all(np.isfinite(each).all() for each in scope["weights"].trainable)
    assert scope["plan"].epsilon <= 8.0
    assert reports.check(tmp_path / "run").problems == []
