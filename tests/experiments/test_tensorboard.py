"""TensorBoard has, of privacy, what the report of a run that stopped there would state."""

import json
import re
import shutil

import numpy as np
import pytest
import run_folders
import tensorflow as tf
from run_folders import ANSWERS

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import names, server_loop
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.training import program, rounds
from tff_mf.numerics import digits

from . import stand_in
from .shared import small_settings
from .test_cohorts_of_runs import SMALL


@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    """Rounds that compute nothing: all that is written is what the command writes."""
    stand_in.put_in_place(monkeypatch)


SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=4)
PRIVACY = run_folders.plan(
    mechanism=tff_mf.Tree(8), rounds=8, sampling=SCHEMA, cohort=4, noise_multiplier=8.0, clip_norm=0.5
)
SETTINGS = small_settings(PRIVACY, **SMALL, tensorboard=True)
OWN = {"clip_norm", "noise_stddev_of_z_in_the_mean", "epsilon_so_far", "epsilon_so_far_of_those_that_train"}


class Stopped(Exception):
    pass


def stop_at(number):
    def on_round(round_number, metrics):
        if round_number == number:
            raise Stopped

    return on_round


def scalars(folder):
    """The values of each curve by round; of one that was released twice, the last."""
    found = {}
    for events in sorted((folder / names.TENSORBOARD).iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(events)):
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def headline(folder):
    """ε as the report of a run states it, whose questions are all answered, and that of those that train."""
    text = reports.headline(reports.build(folder, realised=True, answers=ANSWERS))
    return [float(each) for each in re.findall(r"ε≤([\d.]+)", text)], text


def test_epsilon_so_far_is_what_the_report_would_state(small_data, tmp_path):
    with pytest.raises(Stopped):
        program.run(SETTINGS, PRIVACY, data=small_data, out=tmp_path, on_round=stop_at(4))
    ended = tmp_path.with_name("ended")
    shutil.copytree(tmp_path, ended)
    with server_loop.open_loop(ended) as loop:
        loop.record_end()
    (stated, as_float32), text = headline(ended)
    assert "n=4 rounds" in text
    found = scalars(tmp_path)
    assert set(found["epsilon_so_far"]) == {2, 4}
    assert all(0 <= each - stated < 1e-6 for each in found["epsilon_so_far"].values())
    assert found["epsilon_so_far_of_those_that_train"][4] == pytest.approx(as_float32)
    # A run that stops early states what was planned.
    assert stated == float(digits.rounded_up(PRIVACY.epsilon))
    assert set(found["clip_norm"].values()) == {0.5}
    assert found["noise_stddev_of_z_in_the_mean"][1] == 8.0 * 2 / 4 * 0.5 / 2
    assert set(found) - OWN == {"seconds", *reports.read_record(tmp_path).evaluation_columns}

    program.run(SETTINGS, PRIVACY, data=small_data, out=tmp_path, execution=ExecutionSettings(resume=True))
    (stated, _), text = headline(tmp_path)
    assert "n=8 rounds" in text
    found = scalars(tmp_path)["epsilon_so_far"]
    assert set(found) == {2, 4, 6, 8}
    assert 0 <= found[8] - stated < 1e-6
    assert found[8] <= found[6]

    for name, change in (
        ("insecure_seed", lambda run: run | {"insecure_seed": 3}),
        ("delta", lambda run: run | {"delta": 0.5}),
        ("max_participations", lambda run: run | {"max_participations": 1, "participation": "MinSep"}),
    ):
        file = tmp_path / names.RUN_JSON
        before = file.read_bytes()
        file.write_text(json.dumps(change(json.loads(before))))
        assert reports.claim_so_far(tmp_path) is None, name
        file.write_bytes(before)
    assert reports.claim_so_far(tmp_path) is not None


@pytest.mark.parametrize("epsilon", [2.0, 2.0001, 0.1, 7.999, 1e-9, 123.4567])
def test_what_tensorboard_keeps_is_never_smaller(epsilon):
    kept = np.float32(rounds._upwards(epsilon))
    assert float(kept) >= float(digits.rounded_up(epsilon)) >= epsilon
    assert float(kept) < epsilon + 0.0011 + epsilon * 1e-6
