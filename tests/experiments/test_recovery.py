"""A run that is stopped, however it is stopped, goes on to the same end, and releases nothing twice."""

import json
import shlex
import signal
import time

import numpy as np
import psutil
import pytest
import run_folders
import safetensors.numpy

import tff_mf
from tff_mf.experiments.runs import names
from tff_mf.experiments.runs.settings import FLAG, Layer, RunSettings

from . import small_runs
from .shared import StoppedError, invoke, rows, small_settings, stop_after, took_part, train
from .small_runs import KILLED

ROUNDS = 9
# The momentum is in the checkpoint.
SERVER = {"server_learning_rate": 0.5, "server_momentum": 0.5}


def privacy(**changes):
    schema = tff_mf.MinSep(min_sep=2, max_participations=5)
    own = {"sampling": schema, "clients_per_round": 3, "noise_multiplier": 0.01, "insecure_seed": 7}
    return run_folders.plan(**{**own, **changes})


def run(data, out, *, plan=None, **more):
    plan = plan or privacy()
    return train(data, out, plan, small_settings(plan, **SERVER), **more)


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


def test_a_run_that_was_stopped_before_its_settings_were_written_has_them_once_it_is_resumed(small_data, tmp_path):
    """Its next process may be killed too, and needs what the first one did not write."""
    with pytest.raises(StoppedError):
        run(small_data, tmp_path, resume=True, on_round=stop_after(1))
    nothing = Layer.of({}, FLAG)
    assert nothing.resumed(tmp_path, RunSettings).settings() == small_settings(privacy(), **SERVER)


FLAGS = shlex.split(
    """train --mechanism production:b100 --rounds 9 --min-sep 2 --max-participations 5 --clients-per-round 3
    --delta 1e-6 --noise-multiplier 0.01 --set insecure_seed=7 --set model=conv --set vocab_size=100
    --set embedding_size=4 --set units=4 --set max_examples=1 --set batch_size=1 --set evaluate_every=4
    --set evaluation_examples=20 --set checkpoint_every=2 --set grid=none --without-epsilon"""
) + [word for name, value in SERVER.items() for word in ("--set", f"{name}={value}")]


def test_a_run_that_was_stopped_before_its_report_was_written_has_it_once_it_is_resumed(small_data, tmp_path):
    """Its end is in the ledger, and its keys are deleted, before the report is written."""
    folder = tmp_path / "run"
    small_runs.trained(folder, small_data, [])
    told = json.loads((folder / "report.json").read_text())
    for name in ("report.json", "report.md"):
        (folder / name).unlink()
        small_runs.trained(folder, small_data, ["--resume"])
        assert json.loads((folder / "report.json").read_text()) == told
        assert (folder / "report.md").is_file()
    over = invoke(*small_runs.arguments(folder, small_data, ["--resume"]), catch_exceptions=True)
    assert "nothing to resume" in over.output + repr(over.exception)


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
