"""Export for everybody: a training of one's own becomes a bundle, whose graphs the tutorial's program drives."""

import dataclasses
import functools
import json
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import private_run
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import guard, reports
from tff_mf.experiments.guard import export
from tff_mf.experiments.runs import names

from .shared import critical, invoke, took_part

SERVE = pathlib.Path(__file__).parents[2] / "docs" / "serve.py"
SGD = tff.learning.optimizers.build_sgdm
PLAN = tff_mf.plan(**private_run.SETTING)


@functools.cache
def model():
    layers = [tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1)]
    spec = private_run.dataset().element_spec
    return tff.learning.models.functional_model_from_keras(
        tf.keras.Sequential(layers), tf.keras.losses.MeanSquaredError(), spec
    )


def opened(folder, plan=PLAN, model=None, **more):
    return aggregators.private_fed_avg(
        plan, model or globals()["model"](), client_optimizer_fn=SGD(0.1), folder=folder, **more
    )


def initial_model(bundle):
    stored = safetensors.numpy.load_file(bundle / "server" / "initial.safetensors")
    return [stored[f"model__trainable__{index}"] for index in range(2)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a run that was exported after its first round, and the model that it began with."""
    root = tmp_path_factory.mktemp("exported")
    with opened(root / "run") as training:
        first = training.model().trainable
        training.next({client: private_run.dataset() for client in next(training.cohorts(private_run.CLIENTS))})
        planned = training.export(root / "bundle", batch_size=2, client_epochs=2, task_name="mine")
        assert planned.claim.epsilon == pytest.approx(PLAN.for_model(3).epsilon, rel=1e-9)
        training.report(end=True)
    return root, first


def test_a_bundle_has_the_plan_and_begins_with_the_model_that_the_training_began_with(exported):
    root, first = exported
    bundle = root / "bundle"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=bundle, check=True)
    assert (bundle / "device" / "work.tflite").exists()
    assert all(map(np.array_equal, initial_model(bundle), first))
    record, of_run = reports.read_record(bundle), reports.read_record(root / "run")
    assert record.plan == dataclasses.replace(of_run.plan, sampling=PLAN.participation, population=None)
    assert (record.population, record.about) == (8, of_run.about)
    assert json.loads((bundle / export.DEVICE_POLICY).read_text())["devices_alone_suffice"]
    assert critical(bundle) == []


def test_a_bundle_of_secret_cohorts_states_the_epsilon_of_cohorts_that_are_known(tmp_path):
    secret = {"sampling": tff_mf.BallsInBins(groups=4, clients_per_round=2), "secret_cohorts": True, "delta": 1e-2}
    plan = tff_mf.plan(**{**private_run.SETTING, **secret})
    with opened(tmp_path / "run", plan) as training:
        amplified = training.plan.epsilon
        planned = training.export(tmp_path / "bundle", batch_size=2)
    assert planned.claim.epsilon > 1.1 * amplified
    stored = tff_mf.Plan.load(tmp_path / "bundle")
    assert (stored.secret_cohorts, stored.sampling) == (False, plan.participation)
    assert planned.claim.epsilon == pytest.approx(stored.epsilon, rel=1e-9)


def test_the_tutorials_program_drives_a_bundle_and_resumes(exported, tmp_path, monkeypatch, capsys):
    bundle, folder = exported[0] / "bundle", tmp_path / "served"
    monkeypatch.setattr(sys, "argv", ["serve.py", str(bundle), str(folder)])
    checkpoints, finish = folder / names.CHECKPOINTS, guard.RunGuard.finish

    def stopped(guarded, *given):
        finish(guarded, *given)
        if guarded.last_released == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(guard.RunGuard, "finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            runpy.run_path(str(SERVE))
    (state,) = checkpoints.glob("checkpoint_2*")
    assert state.stat().st_mode & 0o777 == 0o600
    served = runpy.run_path(str(SERVE))
    assert capsys.readouterr().out.count("is released") == 2
    assert list(checkpoints.iterdir()) == []
    assert critical(folder) == []
    assert [number for number, _ in took_part(folder)] == [1, 1, 2, 2, 3, 3]
    # Whatever devices send, a mean is bounded: by ζ, and by noise of σ = 1.
    weights = [value for name, value in served["state"].items() if "global_model_weights__trainable" in name]
    moved = [now - first for now, first in zip(weights, initial_model(bundle), strict=True)]
    assert 0 < np.sqrt(sum(np.sum(np.square(part)) for part in moved)) < 3 * (1 + 10)
    assert len(SERVE.read_text().splitlines()) <= 70


def test_a_training_with_restarts_is_not_exported(tmp_path):
    plan = tff_mf.plan(**{**private_run.SETTING, "mechanism": "identity"}, restart_every=2)
    refused = pytest.raises(tff_mf.InputError, match="restart_every=2 cannot be exported")
    with opened(tmp_path / "run", plan) as training, refused:
        training.export(tmp_path / "bundle", batch_size=2)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("more", [(), ("--model-only",)])
def test_what_has_no_model_in_its_folder_is_not_exported_from_there(exported, tmp_path, more):
    result = invoke("export", exported[0] / "run", "--out", tmp_path / "bundle", *more, catch_exceptions=True)
    words = r"private_fed_avg.*training\.export.*training\.model\(\).*model\.safetensors.*export_process"
    assert re.search(words, str(result.exception))
    assert not (tmp_path / "bundle").exists()


def test_a_script_that_has_ended_and_is_started_again_exports_nothing_over_its_export(exported):
    root, _ = exported
    with opened(root / "run") as training, pytest.raises(tff_mf.InputError, match=r"not an empty folder.*remove"):
        training.export(root / "bundle", batch_size=2, client_epochs=2, task_name="mine")


def test_a_model_that_lite_cannot_have_is_exported_with_a_warning(tmp_path):
    with private_run.opened(tmp_path / "run") as training, pytest.warns(UserWarning, match="TensorFlow Lite"):
        training.export(tmp_path / "bundle", batch_size=2)
    assert (tmp_path / "bundle" / "device" / "work" / "saved_model.pb").exists()
