"""Agreement in bits between the models of a bundle's runner, with TensorFlow alone, and those of TFF.

    python benchmarks/runner_equality.py    # hides all packages but TensorFlow from the runner
    TFF_MF_PLAIN_PYTHON=venv/bin/python python benchmarks/runner_equality.py    # in an environment without the rest

Both run the same rounds with the same examples, and TFF with the keys that the runner drew. Agreement is the largest
difference in a tensor, relative to its largest number, in bits: 24 is a float32's own, and "all" is no difference.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff
from _common import small_run

from tff_mf import aggregators
from tff_mf.experiments import bundles
from tff_mf.experiments.bundles import building
from tff_mf.experiments.bundles._source import deployed_again
from tff_mf.experiments.training import learning_process
from tff_mf.experiments.training.datasets.pydoc import write_pydoc
from tff_mf.experiments.training.task import build_task

SHOWN = (1, 10, 30)
_AS_EXPORTED = {"disable_meta_optimizer": True}
# Runs differ in the number of updates in a sum, their order, and the optimization of graphs by TensorFlow.
VARIANTS = {
    "3 devices": {"cohort": 3},
    "1 device": {"cohort": 1},
    "3 devices, graphs as exported": {"cohort": 3, "options": _AS_EXPORTED},
    "3 devices, graphs as exported, reports added one by one": {"cohort": 3, "options": _AS_EXPORTED, "single": True},
    "3 devices, graphs as exported, in another order": {"cohort": 3, "options": _AS_EXPORTED, "reverse": True},
    "1 device, graphs as exported": {"cohort": 1, "options": _AS_EXPORTED},
    **{
        f"3 devices, optimized but for {name}": {"cohort": 3, "options": {name: False}}
        for name in ("remapping", "constant_folding", "arithmetic_optimization")
    },
}
HIDDEN = (
    *("tensorflow_federated", "tensorflow_privacy", "tff_mf", "safetensors", "scipy", "dp_accounting", "click"),
    "msgspec",
)
# An operator's program.
OPERATOR = """
import json, pathlib, sys
for name in HIDDEN:
    sys.modules[name] = None
import numpy as np, tensorflow as tf
bundle, out, how = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
tf.config.optimizer.set_experimental_options(how.get("options", {}))
sys.path.insert(0, str(bundle / "runner.pyz"))
import runner
data = np.load(out / "data.npz")
runner.start(out / "run", bundle)
with runner.opened(out / "run", bundle) as deployment:
    stages = deployment._stages
    for number in range(1, len(data["examples__0"]) + 1):
        chosen = [f"device{number}-{index}" for index in range(how["cohort"])]
        deployment.prepare(chosen)
        sent, about = runner.decoded((out / "run" / "sent.safetensors").read_bytes())
        for index, device in enumerate(chosen):
            update = stages.work({name: data[name][number - 1, index] for name in data}, sent)
            content = runner.encoded({name: np.asarray(value) for name, value in update.items()}, about)
            (out / "run" / "updates" / f"{device}.safetensors").write_bytes(content)
            if how.get("single"):
                deployment.accumulate()
        deployment.accumulate()
        deployment.update()
""".replace("HIDDEN", repr(HIDDEN))


def operated(bundle: pathlib.Path, root: pathlib.Path, rounds: int, how: dict) -> tuple[pathlib.Path, np.ndarray]:
    """Runs the bundle's runner, and returns its deployment and the examples, `[rounds, devices, examples, words]`."""
    root.mkdir()
    examples = np.random.default_rng(1).integers(1, 60, size=(rounds, how["cohort"], 3, 20))
    np.savez(root / "data.npz", examples__0=examples, examples__1=np.roll(examples, -1, axis=-1))
    command = [os.environ.get("TFF_MF_PLAIN_PYTHON", sys.executable), "-c", OPERATOR]
    with (root / "log").open("w") as log:
        ended = subprocess.run([*command, str(bundle), str(root), json.dumps(how)], stdout=log, stderr=log)
    if ended.returncode:
        sys.exit((root / "log").read_text()[-2000:])
    return root / "run", examples[:, ::-1] if how.get("reverse") else examples


def agreement(bundle: pathlib.Path, run: pathlib.Path, examples: np.ndarray) -> dict[str, object]:
    """Returns the number of bits in which models agree with those of TFF: the minimum over their tensors."""
    rounds = len(examples)
    keys = safetensors.numpy.load_file(run / "checkpoints" / f"checkpoint_{rounds}.safetensors")["keys"]
    settings, privacy, vocabulary = deployed_again(bundle)
    found: dict[str, object] = {}
    equal = total = 0
    task = build_task(settings, vocabulary)
    process, _ = learning_process.build_process(
        settings, privacy, task, loop=learning_process.DEVICE_LOOP, repeated_keys=keys
    )
    with aggregators.resident_context():
        state = process.set_model_weights(process.initialize(), task.initial_weights)
        for number in range(1, rounds + 1):
            clients = [
                tf.data.Dataset.from_tensor_slices((each, np.roll(each, -1, axis=-1))).take(4).batch(2)
                for each in examples[number - 1]
            ]
            state = process.next(state, clients).state
            weights = tff.structure.flatten(tff.structure.from_container(state.global_model_weights, recursive=True))
            model = safetensors.numpy.load_file(run / "models" / f"round-{number:06d}.safetensors")
            bits = math.inf
            for index, expected in enumerate(map(np.asarray, weights)):
                given = model[f"trainable__{index}"]
                difference = float(np.abs(given.astype(np.float64) - expected).max() / np.abs(expected).max())
                bits = min(bits, -math.log2(difference) if difference else math.inf)
                equal, total = equal + int((given == expected).sum()), total + expected.size
            if number in SHOWN or number == rounds:
                found[f"round {number}"] = "all" if math.isinf(bits) else round(bits, 1)
    return {**found, "equal numbers": f"{equal / total:.1%}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_pydoc(root / "data.sqlite", ["scipy"], progress=False)
        (root / "settings.toml").write_text(
            small_run(rounds=30, cohort=4, min_sep=10, max_participations=3, data=root / "data.sqlite")
        )
        bundle = root / "bundle"
        building.export(bundles.read_source(root / "settings.toml"), bundle, round_minutes=15.0, population=80)
        for variant in given.variants:
            run, examples = operated(bundle, root / variant, given.rounds, VARIANTS[variant])
            print(variant, json.dumps(agreement(bundle, run, examples)), flush=True)


if __name__ == "__main__":
    main()
