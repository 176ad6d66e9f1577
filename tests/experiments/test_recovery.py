"""A run that is stopped, however it is stopped, goes on to the same end, and releases nothing twice."""

import json

import numpy as np
import pytest
import run_folders
import safetensors.numpy

import tff_mf
from tff_mf.experiments.runs import names
from tff_mf.experiments.runs.settings import FLAG, Layer, RunSettings

from . import small_runs
from .shared import StoppedError, invoke, rows, small_settings, stop_after, took_part, train

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


# One sentence of a client: the order of more is random.
REPEATABLE = [
    *("--mechanism", "production:b100", "--noise-multiplier", "0.01", "--set", "insecure_seed=7", "--without-epsilon"),
    *("--set", "max_examples=1", "--set", "batch_size=1", "--set", "server_momentum=0.5"),
]


def test_a_killed_run_is_resumed_to_the_end_of_a_whole_one(small_data, tmp_path, forks):
    """Also where a process was killed before that left keys, with which the noise could be removed from the models."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    small_runs.trained(whole, small_data, REPEATABLE)
    small_runs.killed(forks, folder, small_data, REPEATABLE)
    for name in (".", names.CHECKPOINTS):
        (folder / name / ".0.tff-mf.tmp").write_bytes(b"keys")
    small_runs.trained(folder, small_data, [*REPEATABLE, "--resume"])
    assert list((folder / names.CHECKPOINTS).iterdir()) == []
    assert not (folder / ".0.tff-mf.tmp").exists()
    # All but the time that rounds took, and the attempts that were given up.
    assert set(took_part(folder)) == set(took_part(whole))
    of_both = [[{**row, "seconds": None} for row in rows(each / names.METRICS)] for each in (folder, whole)]
    assert of_both[0] == of_both[1]
    assert len(of_both[0]) == small_runs.ROUNDS
