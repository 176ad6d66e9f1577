"""A deployment of 30 rounds with 20 % hostile devices: what they cost, what is counted, and a server that is killed.

    python benchmarks/hostile.py                        # five seeds, 50 kills: a quarter of an hour
    python benchmarks/hostile.py --seeds 2 --kills 4    # a sample

Devices train on real text, a module of SciPy's documentation each. There is next to no noise, so that it can be seen
what hostile devices do; nothing here is private.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import sys
import tempfile
import time

import numpy as np
import safetensors.numpy
import tensorflow as tf

from tff_mf.experiments import bundles, coordination, ledger, reports, task
from tff_mf.experiments.bundles import building
from tff_mf.experiments.bundles._source import deployed_again
from tff_mf.experiments.bundles.stages import Stages
from tff_mf.experiments.datasets import _example_proto
from tff_mf.experiments.datasets.pydoc import write_pydoc

ROUNDS, COHORT, SHARE, SENTENCES = 30, 12, 0.2, 32
SETTINGS = f"""[run]
mechanism = "blt"
buffers = 2
rounds = {ROUNDS}
clients_per_round = {COHORT}
delta = 1e-6
min_sep = 10
max_participations = 3
noise_multiplier = 0.01
clip_norm = 1.0
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


def fleet(bundle: pathlib.Path, out: pathlib.Path, examples: dict, kinds: tuple[str, ...], seed: int):
    """Devices of which a fifth is hostile, and their number."""
    chance = np.random.default_rng(seed)
    bad = chance.permutation(sorted(examples))[: round(SHARE * len(examples))] if kinds else []
    return coordination.HostileFleet(
        out / "devices.jsonl",
        examples=examples,
        policy=bundles.read_policy(bundle),
        work=Stages(bundle).lite_work,
        settings=coordination.DeviceSettings(at_night=1.0, by_day=1.0, seed=seed),
        hostile={str(device): kinds[index % len(kinds)] for index, device in enumerate(bad)},
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
    """Runs one deployment, and returns its folder."""
    root.mkdir(parents=True)
    coordination.Coordinator(bundle, root / "run", fleet(bundle, root, examples, kinds, seed), seed=seed).run()
    return root / "run"


def kill(bundle: pathlib.Path, root: pathlib.Path, examples: dict, times: int) -> dict:
    """Kills the server of one run at random moments, and returns what its files say then."""
    root.mkdir(parents=True)
    # Who was chosen in an attempt that was given up has taken part: so many kills need many devices.
    examples = {f"{name} {index}": each for name, each in examples.items() for index in range(8)}
    out, generator, killed = root / "run", random.Random(0), 0
    kinds = (*coordination.MALFORMED, *coordination.POISONING)
    shown: dict[int, set[str]] = {}
    while True:
        child = os.fork()
        if not child:
            os.dup2(os.open(root / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY), 2)

            def show(number: int) -> None:
                # What was shown is what devices of the next round would be sent; a line of a file of its own.
                state = next((out / "state").glob("*.safetensors")).read_bytes()
                with (root / "shown").open("a") as file:
                    file.write(f"{number} {hashlib.sha256(state).hexdigest()}\n")
                time.sleep(0.02)

            try:
                coordination.Coordinator(bundle, out, fleet(bundle, root, examples, kinds, 0)).run(show)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        if killed < times:
            log = out / "ledger.jsonl"
            lines = log.read_text().count("\n") if log.exists() else 0
            target = lines + generator.randint(1, 3)
            while not log.exists() or log.read_text().count("\n") < target:
                time.sleep(0.001)
                if os.waitpid(child, os.WNOHANG)[0]:
                    sys.exit(f"a server ended by itself: {(root / 'log').read_text()[-300:]}")
            time.sleep(generator.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            killed += 1
        _, status = os.waitpid(child, 0)
        if status == 0 or status != signal.SIGKILL:
            break
    record = ledger.read_ledger(out / "ledger.jsonl")
    for line in (root / "shown").read_text().splitlines():
        number, digest = line.split()
        shown.setdefault(int(number), set()).add(digest)
    critical = [each.text for each in reports.check(out) if each.severity == "critical" and each.field == "log"]
    return {
        "kills": killed,
        "status of the last": status,
        "released": len(record.released),
        "released twice": sum(times > 1 for times in record.released.values()),
        "rounds shown with two models": sum(len(each) > 1 for each in shown.values()),
        "begun again": sum(record.attempts.values()) - len(record.attempts),
        "rounds without counts": ROUNDS - len(record.reports),
        "problems of the ledger": [*record.problems, *record.impossible, *critical],
    }


def compared(bundle: pathlib.Path, out: dict[str, list[pathlib.Path]], heldout: dict) -> dict:
    """Returns loss and accuracy of each kind of run, and what was counted."""
    found = {}
    for name, folders in out.items():
        scores = [evaluated(bundle, folder / "model.safetensors", heldout) for folder in folders]
        models = [safetensors.numpy.load_file(folder / "model.safetensors").values() for folder in folders]
        said = [json.loads((folder / "report.json").read_text()) for folder in folders]
        wrong = [each for folder in folders for each in reports.check(folder) if each.severity == "critical"]
        found[name] = {
            **{key: [round(score[key], 4) for score in scores] for key in ("loss", "accuracy")},
            "finite": all(np.isfinite(value).all() for model in models for value in model),
            "counts of the first": {key: each for key, each in said[0]["device_reports"].items() if key != "note"},
            "check": sorted({each.field for each in wrong}),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_pydoc(root / "data.sqlite", ["scipy"], progress=False)
        (root / "settings.toml").write_text(SETTINGS + f'dataset = "sqlite:{root / "data.sqlite"}"\n')
        bundle = root / "bundle"
        # TFF's worker is in a process of its own, so that this one can be forked.
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
        if given.kills:
            print(json.dumps({"kills": kill(bundle, root / "killed", examples, given.kills)}, indent=1), flush=True)
        kinds = {
            "honest": (),
            "without the hostile ones": (coordination.SILENT,),
            "malformed": coordination.MALFORMED,
            "poisoning": coordination.POISONING,
        }
        out = {
            name: [run(bundle, root / name / str(seed), examples, each, seed) for seed in range(given.seeds)]
            for name, each in kinds.items()
        }
        if given.seeds:
            print(json.dumps(compared(bundle, out, heldout), indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
