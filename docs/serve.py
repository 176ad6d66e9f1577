"""Three rounds of an exported deployment, in plain TensorFlow: every second device is hostile.

python docs/serve.py BUNDLE FOLDER: BUNDLE is what training.export or tff-mf export wrote. Run again, it resumes.
"""

import pathlib
import random
import sys

import numpy as np
import safetensors.numpy
import tensorflow as tf

import tff_mf
from tff_mf.experiments import guard
from tff_mf.experiments.runs.folders import Checkpoints

ROUNDS = 3
bundle, folder = map(pathlib.Path, sys.argv[1:])
plan = tff_mf.Plan.load(bundle)
devices = [f"device {index}" for index in range(plan.rounds * plan.clients_per_round)]
stages = ("initialize", "prepare", "zero", "accumulate", "report", "update")
graphs = {name: tf.saved_model.load(str(bundle / "server" / name)) for name in stages}
graphs["work"] = tf.saved_model.load(str(bundle / "device" / "work"))


def inputs(name):
    return graphs[name].signatures["serving_default"].structured_input_signature[1]


def run(name, given):
    """Runs a graph on the tensors that it needs, which it takes and returns by their names."""
    return graphs[name].signatures["serving_default"](**{key: tf.constant(given[key]) for key in inputs(name)})


# Stands for the examples of every device: four of them, of the shapes and types that the model takes.
examples = {
    name: tf.ones([size or 4 for size in spec.shape], spec.dtype)
    for name, spec in inputs("work").items()
    if name.startswith("examples")
}
with guard.open_guard(folder, plan, sampler="uniform, of those allowed", population=len(devices)) as guarded:
    states = Checkpoints(folder / "checkpoints", {})
    if last := guarded.resume(states):
        stored, state = states.load(last)[0], inputs("update")
        state = {name: tf.io.parse_tensor(stored[name].tobytes(), state[name].dtype) for name in stored}
    else:
        state = run("initialize", safetensors.numpy.load_file(bundle / "server" / "initial.safetensors"))
    while guarded.last_round < ROUNDS:
        cohort = random.sample(guarded.allowed(devices), plan.clients_per_round)
        number = guarded.begin(cohort)  # who takes part is on disk before anybody trains
        sent, total = run("prepare", state), run("zero", {})
        for device in cohort:
            update = run("work", {**examples, **sent})
            if devices.index(device) % 2:
                update = {name: tf.fill(value.shape, value.dtype.max) for name, value in update.items()}
            total = run("accumulate", {**total, **update})  # clips it again, whatever was sent
        released = run("update", {**state, **run("report", total)})
        state = {name: value for name, value in released.items() if name.startswith("state__")}
        as_bytes = {name: tf.io.serialize_tensor(value).numpy() for name, value in state.items()}
        guarded.finish({name: np.frombuffer(value, np.uint8) for name, value in as_bytes.items()})
        print(f"round {number} is released")  # only now its model may leave the server
    weights = {name: value.numpy() for name, value in state.items() if "global_model_weights__trainable" in name}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(weights))
    print(guarded.end())  # deletes the states too, with the keys of the noise
