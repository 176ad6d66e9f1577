"""A search for the learning rate on private clients, with one ε for all of it: `python docs/search.py FOLDER`.

Started again after a kill, it goes on: the number of runs and their rates are drawn once, and every run resumes itself.
"""

import json
import pathlib
import secrets
import shutil
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.base import files
from tff_mf.experiments import reports

RATES = (0.1, 0.3, 1.0, 3.0)
x = np.random.default_rng(0).normal(size=(120, 20, 5)).astype(np.float32)  # 120 clients, 20 examples each
labelled = zip(x, (x.sum(axis=2, keepdims=True) > 0).astype(np.float32), strict=True)
data = {f"client {i}": tf.data.Dataset.from_tensor_slices(one).batch(20) for i, one in enumerate(labelled)}
clients, others = list(data)[:100], list(data)[100:]


def model_fn():
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(1)]),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        input_spec=data["client 0"].element_spec,
        metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
    )


folder = pathlib.Path(sys.argv[1])
plan = tff_mf.plan(
    population=len(clients), clients_per_round=10, rounds=10, epsilon=8.0, delta=1e-3, search=tff_mf.Search(mean=2)
)
print(plan)
drawn, selected = folder / "drawn.json", folder / "selected"
folder.mkdir(mode=0o700, exist_ok=True)
if not drawn.exists() and not selected.exists():
    # On disk before the first run, readable by its owner only: nobody else may learn how many runs there are.
    rates = [secrets.choice(RATES) for _ in range(plan.search.draw())]
    files.write_atomically(drawn, json.dumps(rates), mode=0o600)
scores = []
# Once a run is selected, none is trained or selected again.
for number, rate in enumerate([] if selected.exists() else json.loads(drawn.read_text())):
    optimizer = tff.learning.optimizers.build_sgdm(rate)
    training = aggregators.private_fed_avg(
        plan, model_fn, client_optimizer_fn=optimizer, folder=folder / f"run-{number}"
    )
    for cohort in training.cohorts(clients):
        training.next({client: data[client] for client in cohort})
    # Of clients that never train: the score is not protected.
    score = training.evaluate({client: data[client] for client in others})["binary_accuracy"]
    training.report()
    scores.append((score, number, rate))
if scores:
    score, best, rate = max(scores)
    (folder / f"run-{best}").rename(selected)
    print(f"learning rate {rate}, accuracy {100 * score:.1f} %")
for other in folder.glob("run-*"):
    shutil.rmtree(other)
drawn.unlink(missing_ok=True)
print(reports.read(selected / "report.json"))
