"""Effect of 20 % hostile devices on a deployment of 30 rounds, compared with the same devices not reporting.

    python benchmarks/hostile.py              # four seeds: some minutes
    python benchmarks/hostile.py --seeds 1    # a sample

Each device trains on real text, the documentation of one SciPy module. There is almost no noise, so that the effect of
hostile devices is visible; nothing here is private. Runs with the same seed have the same devices, hostile devices and
cohorts. `benchmarks/killed_server.py` kills the server of such a run.

The clip norm bounds the effect of poisoning devices: h of them in a round move the mean by at most
h·clip_norm/divisor.
"""

import argparse
import json
import os
import pathlib
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection

import numpy as np
import safetensors.numpy
import tensorflow as tf

from tff_mf.experiments import bundles, coordination, reports
from tff_mf.experiments.bundles import building
from tff_mf.experiments.bundles._source import deployed_again
from tff_mf.experiments.bundles.stages import Stages
from tff_mf.experiments.datasets import _example_proto
from tff_mf.experiments.datasets.pydoc import write_pydoc
from tff_mf.experiments.training import task

ROUNDS, COHORT, SHARE, SENTENCES, CLIP_NORM = 30, 12, 0.2, 32, 1.0
SETTINGS = f"""[run]
mechanism = "blt"
buffers = 2
rounds = {ROUNDS}
clients_per_round = {COHORT}
delta = 1e-6
min_sep = 10
max_participations = 3
noise_multiplier = 0.01
clip_norm = {CLIP_NORM}
client_learning_rate = 1.0
server_learning_rate = 1.0
model = "conv"
vocab_size = 200
embedding_size = 16
units = 16
batch_size = 4
max_examples = {SENTENCES}
"""


def sentences(data: pathlib.Path, split: str) -> dict[str, list[str]]:
    """Returns the sentences of each client of a split."""
    found: dict[str, list[str]] = {}
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    for client, example in sqlite3.connect(data).execute(query, (split,)):
        found.setdefault(client, []).append(_example_proto.strings(example, "tokens")[0].decode())
    return {client: texts[:SENTENCES] for client, texts in found.items()}


def hostile_devices(examples: dict, seed: int) -> list[str]:
    """Returns the hostile devices, a fifth of all."""
    chosen = np.random.default_rng(seed).permutation(sorted(examples))[: round(SHARE * len(examples))]
    return [str(device) for device in chosen]


def fleet(bundle: pathlib.Path, out: pathlib.Path, examples: dict, kinds: tuple[str, ...], seed: int):
    """Returns a fleet of devices, a fifth of which is hostile."""
    bad = hostile_devices(examples, seed) if kinds else []
    return coordination.HostileFleet(
        out / "devices.jsonl",
        examples=examples,
        policy=bundles.read_policy(bundle),
        work=Stages(bundle).lite_work,
        settings=coordination.DeviceSettings(at_night=1.0, by_day=1.0, seed=seed),
        hostile={device: kinds[index % len(kinds)] for index, device in enumerate(bad)},
        files=out / "files",
    )


def evaluated(bundle: pathlib.Path, model: pathlib.Path, heldout: dict) -> dict[str, float]:
    """Returns loss and accuracy of a model on clients that did not train."""
    settings, _, vocabulary = deployed_again(bundle)
    keras_model = task.build_keras_model(settings.model, vocabulary=vocabulary, seed=0)
    weights = safetensors.numpy.load_file(model)
    keras_model.set_weights([weights[str(index)] for index in range(len(weights))])
    words, following = (
        np.concatenate([each[name] for each in heldout.values()]) for name in ("examples__0", "examples__1")
    )
    logits = keras_model(words, training=False).numpy()
    kept = following != 0
    chances = tf.nn.log_softmax(logits).numpy()
    loss = -np.take_along_axis(chances, following[..., None], -1)[..., 0][kept].mean()
    return {"loss": float(loss), "accuracy": float((logits.argmax(-1) == following)[kept].mean())}


def run(bundle: pathlib.Path, root: pathlib.Path, examples: dict, kinds: tuple[str, ...], seed: int) -> pathlib.Path:
    """Runs a deployment and returns its folder."""
    root.mkdir(parents=True)
    coordination.Coordinator(bundle, root / "run", fleet(bundle, root, examples, kinds, seed), seed=seed).run()
    return root / "run"


def moved(out: pathlib.Path, hostile: Collection[str]) -> list[float]:
    """Returns the maximum distance by which hostile devices can have moved the mean of each round."""
    seen = [json.loads(line) for line in (out.parent / "devices.jsonl").read_text().splitlines()]
    rounds = Counter(entry["round"] for entry in seen if entry["device"] in hostile)
    return [rounds[number] * CLIP_NORM / COHORT for number in range(1, ROUNDS + 1)]


def compared(bundle: pathlib.Path, out: dict[str, list[pathlib.Path]], examples: dict, heldout: dict) -> dict:
    """Returns loss and accuracy of each kind of run, and the counts of its reports."""
    found, silent = {}, [_weights(folder) for folder in out["silent"]]
    for name, folders in out.items():
        scores = [evaluated(bundle, folder / "model.safetensors", heldout) for folder in folders]
        models = [_weights(folder) for folder in folders]
        said = [json.loads((folder / "report.json").read_text())["device_reports"] for folder in folders]
        wrong = [each for folder in folders for each in reports.check(folder) if each.severity == "critical"]
        bounds = [moved(folder, hostile_devices(examples, seed)) for seed, folder in enumerate(folders)]
        found[name] = {
            **{key: [round(score[key], 4) for score in scores] for key in ("loss", "accuracy")},
            "distance from silent": [
                round(float(np.linalg.norm(one - other)), 2) for one, other in zip(models, silent, strict=True)
            ],
            "finite": all(bool(np.isfinite(model).all()) for model in models),
            "mean moved at most, a round": round(float(np.mean(bounds)), 3) if name != "honest" else 0.0,
            "in the worst round": round(float(np.max(bounds)), 3) if name != "honest" else 0.0,
            "refused": sum(sum(each["refused"].values()) for each in said),
            **{key: sum(each[key] for each in said) for key in ("counted", "clipped", "zeroed")},
            "report --check": sorted({each.field for each in wrong}),
        }
    return found


def _weights(folder: pathlib.Path) -> np.ndarray:
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    return np.concatenate([weights[name].ravel() for name in sorted(weights)]).astype(np.float64)


def table(found: dict) -> str:
    """Returns the results as Markdown, with mean and standard deviation over the seeds."""
    lines = ["| devices | accuracy | loss | accuracy less that of silent, seed by seed |", "|---|---|---|---|"]
    silent = np.array(found["silent"]["accuracy"])
    for name, each in found.items():
        accuracy, loss = (
            f"{np.mean(each[key]):.4f} ± {np.std(each[key], ddof=1) if len(silent) > 1 else 0:.4f}"
            for key in ("accuracy", "loss")
        )
        differences = ", ".join(f"{value:+.4f}" for value in np.array(each["accuracy"]) - silent)
        lines.append(f"| {name} | {accuracy} | {loss} | {differences} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_pydoc(root / "data.sqlite", ["scipy"], progress=False)
        (root / "settings.toml").write_text(SETTINGS + f'dataset = "sqlite:{root / "data.sqlite"}"\n')
        bundle = root / "bundle"
        # TFF runs in a separate process, so that this one can be forked.
        child = os.fork()
        if not child:
            building.export(bundles.read_source(root / "settings.toml"), bundle, round_minutes=15.0, population=1000)
            os._exit(0)
        os.waitpid(child, 0)
        child = os.fork()
        if not child:
            stages = Stages(bundle)
            kept = {
                split: {
                    client: stages.tokenize(texts) for client, texts in sentences(root / "data.sqlite", split).items()
                }
                for split in ("train", "heldout")
            }
            (root / "examples").mkdir()
            for split, clients in kept.items():
                for client, each in clients.items():
                    np.savez(root / "examples" / f"{split} {client}.npz", **each)
            os._exit(0)
        os.waitpid(child, 0)
        loaded = {path.stem: dict(np.load(path)) for path in sorted((root / "examples").iterdir())}
        examples = {name.removeprefix("train "): each for name, each in loaded.items() if name.startswith("train ")}
        heldout = {name: each for name, each in loaded.items() if name.startswith("heldout ")}
        kinds = {
            "honest": (),
            "silent": (coordination.SILENT,),
            "malformed": coordination.MALFORMED,
            "poisoning": coordination.POISONING,
        }
        out = {
            name: [run(bundle, root / name / str(seed), examples, each, seed) for seed in range(given.seeds)]
            for name, each in kinds.items()
        }
        found = compared(bundle, out, examples, heldout)
        print(json.dumps(found, indent=1, ensure_ascii=False), table(found), sep="\n", flush=True)


if __name__ == "__main__":
    main()
