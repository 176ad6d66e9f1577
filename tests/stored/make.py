"""Stores small files of every kind with the version that is installed, for the tests of every later version.

    python tests/stored/make.py NEW_FOLDER WORK_FOLDER

Calls the command line and the documented Python interface only, so that each release can store its own. See
README.md. Comparisons store the absolute path of their data: WORK_FOLDER, which must not exist, should be neutral, such
as /data/stored.
"""

import asyncio
import gzip
import importlib.util
import io
import json
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np

import tff_mf

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")
DATA = "data.sqlite"
SCHEMA = ("--rounds", "9", "--min-sep", "3", "--max-participations", "3")
FOUND = {
    "blt": ("blt", "--buffers", "2"),
    "banded": ("banded", "--bands", "3"),
    "banded-toeplitz": ("banded-toeplitz", "--bands", "3"),
    "banded-inverse": ("banded-inverse", "--bands", "3"),
    "dense": ("dense",),
    "dense-momentum": ("dense", "--workload", "momentum", "--momentum", "0.9"),
    "structured": ("structured", "--diagonals", "2", "--rank", "1"),
}
SAVED = {
    "identity": tff_mf.Identity(),
    "production": tff_mf.BLT.production("b400"),
    "tree-full": tff_mf.Tree(9, variant="full"),
    "tree-online": tff_mf.Tree(9, variant="online"),
}
ROUNDS = 9
TRAIN = (
    *("train", "--dataset", f"sqlite:{DATA}", "--rounds", str(ROUNDS), "--clients-per-round", "3", "--delta", "1e-6"),
    *("--min-sep", "2", "--max-participations", "5", "--model", "conv", "--vocab-size", "30"),
    *("--embedding-size", "4", "--units", "4", "--max-examples", "1", "--batch-size", "1"),
    *("--evaluate-every", "4", "--evaluation-examples", "20", "--checkpoint-every", "2"),
)
FINISHED = (*TRAIN, "--mechanism", "blt", "--buffers", "2", "--noise-multiplier", "5", "--out", "finished")
# Of a seed, so that the run that is resumed must end as the one that was never stopped.
SEEDED = (*TRAIN, "--noise-multiplier", "0.5", "--insecure-seed", "7")
STOPPED = {
    "stopped-blt": (*SEEDED, "--mechanism", "blt", "--buffers", "2"),
    "stopped-banded": (*SEEDED, "--mechanism", "banded", "--bands", "2"),
    # As it is used: with fresh keys from the system.
    "stopped-secure": (*TRAIN, "--noise-multiplier", "5", "--mechanism", "banded", "--bands", "2"),
}
STOPPED_AFTER = 5
ANSWERS = {
    "trusted": "the server's operator",
    "unit": "one made-up client",
    "clients_of_one_person": 1,
    "population": 20_000,
    "enforcement": "the server's sampler",
    "participation_depends_on_data": False,
    "tuning_runs": 2,
    "pretraining": "none",
    "other_releases": "none",
    "state_is_secret": True,
}
COMPARISON = f"""[run]
dataset = "sqlite:{DATA}"
rounds = 4
clients_per_round = 2
min_sep = 2
max_participations = 2
delta = 1e-6
noise_multiplier = 1.0
model = "conv"
vocab_size = 30
embedding_size = 4
units = 4
max_examples = 1
batch_size = 1
evaluate_every = 4
evaluation_examples = 10

[[grid]]
mechanism = ["identity", "tree-online"]
"""


def call(*arguments, code=0):
    """Runs a command in the current folder; its output goes to a file, since TFF's worker may keep a pipe open."""
    with open("log.txt", "w+") as log, open("errors.txt", "w+") as errors:
        done = subprocess.run([COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=errors, timeout=600)
        log.seek(0)
        errors.seek(0)
        if done.returncode != code:
            raise SystemExit(f"{arguments} ended with {done.returncode}: {errors.read()}")
        return log.read()


def pack(name, to):
    """Writes a folder or file of the current folder as an archive that has neither times nor owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted([pathlib.Path(name), *pathlib.Path(name).rglob("*")]):
            entry = archive.gettarinfo(path)
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with path.open("rb") if path.is_file() else io.BytesIO() as content:
                archive.addfile(entry, content)
    (to / f"{name}.tar.gz").write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def store_artifacts(folder):
    """One artifact of each kind, and what each must be when it is loaded."""
    made = pathlib.Path("artifacts")
    made.mkdir()
    for name, arguments in FOUND.items():
        call("optimize", *arguments, *SCHEMA, "--out", str(made / f"{name}.safetensors"))
    for name, mechanism in SAVED.items():
        tff_mf.save(mechanism, made / f"{name}.safetensors")
    participation = tff_mf.MinSep(min_sep=3, max_participations=3)
    expected = {}
    for path in sorted(made.glob("*.safetensors")):
        mechanism = tff_mf.load(path)
        expected[path.stem] = {
            "class": type(mechanism).__name__,
            "encoder": mechanism.encoder(9).tolist(),
            "sensitivity": tff_mf.sensitivity(mechanism, 9, participation),
            "digest": tff_mf.artifacts.content_digest(mechanism).hex(),
            "shown": json.loads(call("show", str(path), *SCHEMA, "--json")),
        }
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in expected.items()]
    (made / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    shutil.copytree(made, folder / made)


def write_data():
    """Made-up sentences of 16 clients, by TFF in the format of StackOverflow."""
    import tensorflow as tf
    import tensorflow_federated as tff

    words = [
        *("a", "the", "is", "in", "of", "and", "to", "we", "one", "two", "noise", "round", "model", "client"),
        *("mean", "sum", "row", "key", "bit", "end", "big", "red"),
    ]
    generator = np.random.default_rng(0)
    like = tff.simulation.datasets.stackoverflow.get_synthetic()
    (first, *_) = like.client_ids
    example = next(iter(like.create_tf_dataset_for_client(first)))
    splits = {f"client{n:02d}": "train" if n < 12 else ("heldout", "test")[n % 2] for n in range(16)}

    def sentences(_):
        texts = [" ".join(generator.choice(words, 6)) for _ in range(3)]
        return tf.data.Dataset.from_tensor_slices(
            {name: tf.constant(texts) if name == "tokens" else tf.stack([value] * 3) for name, value in example.items()}
        )

    tff.simulation.datasets.save_to_sql_client_data(list(splits), sentences, DATA, split_names_by_client_id=splits)


def store_finished(folder):
    """A run that ended, was answered for and audited, with an ε in its report."""
    call(*FINISHED)
    pathlib.Path("finished/answers.json").write_text(json.dumps(ANSWERS))
    call("report", "finished", "--json")
    call("audit", "finished", "--json")
    call("report", "finished", "--check", "--json")
    pack("finished", folder)


def store_stopped(name, folder):
    """A run that was killed between two checkpoints, and of a seeded one the metrics without interruption."""
    if "--insecure-seed" in STOPPED[name]:
        call(*STOPPED[name], "--out", f"whole-{name}")
        shutil.copyfile(f"whole-{name}/metrics.csv", folder / f"{name}-metrics.csv")
    metrics = pathlib.Path(name, "metrics.csv")
    with open("log.txt", "w") as log:
        command = [COMMAND, *STOPPED[name], "--out", name]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not metrics.exists() or metrics.read_text().count("\n") <= STOPPED_AFTER:
        if process.poll() is not None:
            raise SystemExit(f"{name} ended before it was killed")
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if pathlib.Path(name, "summary.json").exists() or not list(pathlib.Path(name, "checkpoints").glob("*.safetensors")):
        raise SystemExit(f"{name} was killed too late: make it again")
    pathlib.Path(name, "answers.json").write_text(json.dumps(ANSWERS))
    pack(name, folder)


def store_checkpoints(folder):
    """A small process's checkpoints, with and without the rows of its noise, and what its next rounds release."""
    import tensorflow_federated as tff

    from tff_mf import aggregators

    aggregator = aggregators.build_mf_aggregator(
        "artifacts/banded.safetensors",
        clip_norm=0.5,
        noise_multiplier=1.0,
        clients_per_round=4,
        insecure_seed=3,
    )
    with aggregators.tff_session():
        process = aggregator.create(tff.TensorType(np.float32, [5]))
        state, released = process.initialize(), []
        managers = [
            aggregators.CheckpointManager(f"checkpoints/{rows}", aggregator=aggregator, rows=rows)
            for rows in ("replay", "save")
        ]
        for number in range(1, 7):
            output = process.next(state, [np.full(5, 0.1 * number, np.float32)] * 4)
            state = output.state
            released.append(np.asarray(output.result).tolist())
            if number == 4:
                for manager in managers:
                    asyncio.run(manager.save(state, number))
    pathlib.Path("checkpoints/released.json").write_text(json.dumps(released))
    pack("checkpoints", folder)


def device_update(bundle, deployment, name):
    """Trains as a device does, with the graphs of a bundle, and puts the update where the runner takes it."""
    # A compiled runner would be a file of the bundle that its manifest does not name.
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("stored_runner", bundle / "runner.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    words = np.random.default_rng(len(name)).integers(1, 20, size=(3, 20))
    sent, about = runner.decoded((deployment / "sent.safetensors").read_bytes())
    update = runner.Stages(bundle).work({"examples__0": words, "examples__1": np.roll(words, -1, axis=-1)}, sent)
    aside = deployment / "updates" / f".{name}"
    aside.write_bytes(runner.encoded({key: np.asarray(value) for key, value in update.items()}, about))
    aside.rename(deployment / "updates" / f"{name}.safetensors")


def store_bundle(folder):
    """A bundle, and a deployment by its own runner that was stopped in the middle of round 2."""
    printed = json.loads(call("export", "finished", "--out", "bundle", "--population", "20000", "--json"))
    (folder / "bundle-digest.txt").write_text(printed["digest"] + "\n")
    pack("bundle", folder)
    bundle, deployment = pathlib.Path("bundle"), pathlib.Path("deployment")

    def run(command, *arguments):
        subprocess.run([sys.executable, bundle / "runner.py", command, deployment, *arguments], check=True)

    run("start", "--digest", printed["digest"])
    for number in (1, 2):
        devices = [f"device{number}-{index}" for index in range(3)]
        pathlib.Path("chosen.txt").write_text("\n".join(devices))
        run("prepare", "--devices", "chosen.txt")
        for name in devices[: 3 if number == 1 else 1]:
            device_update(bundle, deployment, name)
        run("accumulate")
        if number == 1:
            run("update")
    pack("deployment", folder)


def store_comparison(folder):
    """A comparison, whose runs must not be done again."""
    pathlib.Path("comparison.toml").write_text(COMPARISON)
    (folder / "comparison.toml").write_text(COMPARISON)
    call("compare", "comparison.toml", "--out", "comparison", "--jobs", "2", "--json")
    for picture in pathlib.Path("comparison").glob("*.png"):
        picture.unlink()
    pack("comparison", folder)


def store_guarded(folder):
    """The folder of a pipeline of somebody's own, whose guard was closed after three of its rounds."""
    from tff_mf.experiments import guard
    from tff_mf.experiments.privacy import plan_privacy

    plan = plan_privacy(
        mechanism=tff_mf.BLT.production("b100"),
        rounds=6,
        participation=tff_mf.MinSep(min_sep=2, max_participations=3),
        delta=1e-6,
        clients_per_round=2,
        noise_multiplier=5.0,
    )
    with guard.open_guard("guarded", plan, clip_norm=1.0, sampler="by hand") as guarded:
        for clients in (["ann", "bob"], ["carol", "dan"], ["ann", "bob"]):
            guarded.released(guarded.begin(clients))
    pathlib.Path("guarded/answers.json").write_text(json.dumps(ANSWERS))
    pack("guarded", folder)


def check_no_path(folder):
    """Raises if a stored file names a folder of the machine that it was made on, other than WORK_FOLDER."""
    folders = (pathlib.Path(tff_mf.__file__).parents[1], pathlib.Path.home(), tempfile.gettempdir())
    machine = [f"{each}/".encode() for each in folders]
    for path in sorted(folder.rglob("*.*")):
        contents = {path.name: path.read_bytes()} if path.is_file() else {}
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                contents = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
        for name, content in contents.items():
            if any(each in content for each in machine):
                raise SystemExit(f"{name} in {path} has a path of this machine")


def main():
    folder, work = (pathlib.Path(each).resolve() for each in sys.argv[1:])
    folder.mkdir(parents=True)
    work.mkdir(parents=True)
    os.chdir(work)
    store_artifacts(folder)
    write_data()
    pack(DATA, folder)
    store_finished(folder)
    for name in STOPPED:
        store_stopped(name, folder)
    store_checkpoints(folder)
    store_guarded(folder)
    store_bundle(folder)
    store_comparison(folder)
    lines = {name: shlex.join([*arguments, "--out", name]) for name, arguments in STOPPED.items()}
    about = {"version": tff_mf.__version__, "python": platform.python_version(), "rounds": ROUNDS, "stopped": lines}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    check_no_path(folder)


if __name__ == "__main__":
    main()
