"""A run that is stopped, however it is stopped, goes on to the same end, and releases nothing twice."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import run_folders
import safetensors.numpy

import tff_mf
from tff_mf.experiments.runs import folders, layers, names
from tff_mf.experiments.runs.folders import ExecutionSettings

from .shared import StoppedError, invoke, rows, small_settings, stop_after, took_part, train
from .small_runs import KILLED

ROUNDS = 9
# The squares of past updates are in the checkpoint.
ADAM = {"server_optimizer": "adam", "server_learning_rate": 0.5, "server_momentum": 0.5, "server_adaptivity": 0.01}


def privacy(**changes):
    schema = tff_mf.MinSep(min_sep=2, max_participations=5)
    own = {"sampling": schema, "clients_per_round": 3, "noise_multiplier": 0.01, "insecure_seed": 7}
    return run_folders.plan(**{**own, **changes})


def run(data, out, *, plan=None, **more):
    plan = plan or privacy()
    return train(data, out, plan, small_settings(plan, **ADAM), **more)


def assert_same_files(found_in, expected_in):
    """All but the time that rounds took, and the attempts that were given up."""
    assert set(took_part(found_in)) == set(took_part(expected_in))
    found, expected = (rows(folder / names.METRICS) for folder in (found_in, expected_in))
    assert [row["round"] for row in found] == [str(number) for number in range(1, ROUNDS + 1)]
    assert [{**row, "seconds": None} for row in found] == [{**row, "seconds": None} for row in expected]


@pytest.fixture(scope="module")
def whole(small_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return run(small_data, out), out


def test_nothing_released_is_run_again_and_only_noise_ahead_is_fresh(small_data, tmp_path):
    """Every evaluation is on disk before it is released, whatever the distance between checkpoints."""
    out = tmp_path / "run"
    plan = privacy(insecure_seed=None)
    released, again, last = [], [], []

    def on_round(number, metrics):
        if metrics:
            released.append(number)
        stop_after(5)(number, metrics)

    def keys(version):
        tensors = safetensors.numpy.load_file(out / "checkpoints" / f"checkpoint_{version}.safetensors").values()
        (found,) = (tensor for tensor in tensors if tensor.dtype == np.int64 and tensor.ndim == 2)
        return found

    with pytest.raises(StoppedError):
        run(small_data, out, plan=plan, checkpoint_every=1000, on_round=on_round)
    saved = keys(4)

    def on_round_again(number, metrics):
        again.append(number)
        if number == ROUNDS:
            # The end of the run deletes them.
            last.append(keys(ROUNDS))

    run(small_data, out, plan=plan, checkpoint_every=1000, resume=True, on_round=on_round_again)
    assert released == [4]
    assert again == [5, 6, 7, 8, 9]
    assert saved.shape == (4, 2)
    np.testing.assert_array_equal(last[0][:4], saved)
    assert len({tuple(key) for key in last[0]}) == ROUNDS


def test_a_run_that_has_ended_is_not_resumed_without_its_report(tmp_path, whole):
    folder = shutil.copytree(whole[1], tmp_path / "run")
    (folder / names.REPORT).unlink()
    with pytest.raises(tff_mf.InputError, match="has ended"):
        folders.resumable_folder(folder)


def test_a_run_that_was_stopped_before_its_settings_were_written_has_them_once_it_is_resumed(small_data, tmp_path):
    """Its next process may be killed too, and needs what the first one did not write."""
    with pytest.raises(StoppedError):
        run(small_data, tmp_path, resume=True, on_round=stop_after(1))
    nothing = layers.Layer.of({}, layers.FLAG)
    assert layers.settings(layers.begun(nothing, tmp_path)) == small_settings(privacy(), **ADAM)


def test_the_mechanism_of_a_run_is_kept_as_it_was_found(tmp_path):
    assert folders.begun_mechanism(tmp_path) is None
    found = tff_mf.optimize_blt(rounds=20, participation=tff_mf.SingleParticipation(), buffers=2)
    folders.keep_mechanism(tmp_path, found)
    assert folders.begun_mechanism(tmp_path) == found


def test_execution_settings_are_checked():
    for wrong in ({"checkpoint_every": 0}, {"restarts": -1}):
        with pytest.raises(tff_mf.InputError, match=next(iter(wrong))):
            ExecutionSettings(**wrong)


FLAGS = shlex.split(
    """train --mechanism production:b100 --rounds 9 --min-sep 2 --max-participations 5 --clients-per-round 3
    --delta 1e-6 --noise-multiplier 0.01 --insecure-seed 7 --model conv --vocab-size 100 --embedding-size 4 --units 4
    --max-examples 1 --batch-size 1 --evaluate-every 4 --evaluation-examples 20 --checkpoint-every 2
    --grid none --without-epsilon"""
) + [word for name, value in ADAM.items() for word in ("--set", f"{name}={value}")]


def test_a_killed_run_is_resumed_and_leaves_no_worker(small_data, tmp_path, whole, forks):
    out = tmp_path / "run"
    command = [*FLAGS, "--dataset", f"sqlite:{small_data}", "--out", str(out)]
    with (tmp_path / "log").open("w") as log:
        # It stops where it would save round 6, so that it is killed there however busy the machine is.
        stopping = [str(signal.SIGSTOP.value), "checkpoint_6.safetensors", *command]
        process = forks.start(KILLED, stopping, stdout=log.fileno(), stderr=log.fileno())
    deadline = time.monotonic() + 300
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(rows(out / names.METRICS)) == 5
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=100)
    assert not (out / names.SUMMARY).exists()
    _, alive = psutil.wait_procs(workers, timeout=100)
    assert alive == []
    left = [out / name / ".0.tff-mf.tmp" for name in (".", "checkpoints")]
    for path in left:
        path.write_bytes(b"keys")
    finished = invoke(*command, "--resume")
    assert finished.exit_code == 0, finished.output
    # With the keys in them, the noise could be removed from the models.
    assert list((out / names.CHECKPOINTS).iterdir()) == []
    assert not left[0].exists()
    assert_same_files(out, whole[1])


# Fills the disk after some rounds: from there on, rounds write into pages that they have, but for TensorFlow's.
FILLING = """
import pathlib, sys, threading, time
ledger = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]) / "ledger.jsonl"
def fill():
    while not ledger.exists() or ledger.read_text().count('"released"') < 3:
        time.sleep(0.01)
    try:
        with (ledger.parent.parent / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
threading.Thread(target=fill, daemon=True).start()
from tff_mf.experiments.cli import main; main()
"""


def test_a_full_disk_is_one_line_whoever_notices_it_first(small_data, tmp_path):
    """On a file system that is full, of a mount that no other process sees."""
    mounted = ["unshare", "--user", "--map-root-user", "--mount"]
    mounted += ["sh", "-c", 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"', str(tmp_path)]
    try:
        probed = subprocess.run([*mounted, "true"], capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"needs a file system of its own: {error}")
    if probed.returncode:
        pytest.skip(f"needs a file system of its own: {probed.stderr.strip()}")
    flags = [*FLAGS, "--dataset", f"sqlite:{small_data}", "--out", str(tmp_path / "run")]
    for name, value in (("--rounds", 400), ("--max-participations", 200), ("--evaluate-every", 400)):
        flags[flags.index(name) + 1] = str(value)
    flags[flags.index("--checkpoint-every") + 1] = "400"
    with open(os.devnull) as nothing:
        done = subprocess.run(
            [*mounted, sys.executable, "-c", FILLING, *flags], stdin=nothing, capture_output=True, text=True
        )
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "tensorflow" not in done.stderr
    assert last.startswith("tff-mf: ")
    assert last.endswith("No space left on device; saved files are intact (train: --resume)")
