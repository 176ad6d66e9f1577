"""Bundles on a grid: what is in them, hostile devices, which runs are refused, and that a model is published alone."""

import dataclasses
import json
import shutil
import stat
import subprocess

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import tff_mf
from tff_mf.experiments import reports, train
from tff_mf.experiments.runs.ledger import ReportCounts, Rules

from .shared import Kept, invoke, open_loop

GRID = tff_mf.Grid(bits=14, max_clients=1000)


def test_a_deployment_has_the_whole_cohort_and_all_of_its_noise(bundle):
    run = reports.read_record(bundle.folder)
    assert (run.plan.clients_per_round, run.plan.cohort) == (4, 4)
    assert run.plan.noise_multiplier == 8.0
    assert not run.simulation
    assert run.plan.grid == GRID
    setting = tff_mf.Tree(200, variant="full"), 200, run.plan.participation
    # Of a convolution over three words, with 60 words and four special ones, of width 4, and 4 filters.
    dimension = 64 * 4 + (3 * 4 + 1) * 4 + (4 + 1) * 64
    charged, plain = (
        tff_mf.guarantee(*setting, noise_multiplier=8.0, **more).epsilon(1e-6)
        for more in ({"grid": GRID, "dimension": dimension}, {})
    )
    assert charged > plain * (1 + 1e-9)
    planned = json.loads((bundle.folder / "planned.json").read_text())
    assert planned["claim"]["epsilon_as_run"] == pytest.approx(charged, rel=1e-12)


def test_a_bundle_lists_its_files_for_sha256sum(bundle, tmp_path):
    copy = shutil.copytree(bundle.folder, tmp_path / "copy")
    names = [line.split("  ")[1] for line in (copy / "SHA256SUMS").read_text().splitlines()]
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert set(names) == files - {"SHA256SUMS"}
    assert {"device/work/saved_model.pb", "device/work.tflite", "device/tokenize/saved_model.pb"} <= set(names)
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=copy, capture_output=True, check=False)
    assert checked.returncode == 0
    with (copy / "run.json").open("a") as file:
        file.write(" ")
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=copy, capture_output=True, check=False)
    assert checked.returncode == 1


def test_only_its_owner_reads_the_initial_state_and_writes_any_file(bundle):
    assert stat.S_IMODE((bundle.folder / "server" / "initial.safetensors").stat().st_mode) == 0o600
    assert not any(path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for path in bundle.folder.rglob("*"))
    assert [path.name for path in bundle.folder.parent.iterdir() if "partial" in path.name] == []
    # No warning of keys where there are none.
    assert bundle.warnings == []
    assert stat.S_IMODE((bundle.folder / "server").stat().st_mode) == 0o700


def test_runs_that_cannot_be_exported_are_refused_and_left_unchanged(bundle, tmp_path):
    for path, field in ((tmp_path / "none", "run="), (tmp_path, "run.json is missing")):
        with pytest.raises(tff_mf.InputError, match=field):
            train.write(path, tmp_path / "new", longest_round=15.0)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    with pytest.raises(tff_mf.InputError, match=r"out=.*empty"):
        train.write(bundle.run, full, longest_round=15.0)
    with pytest.raises(tff_mf.InputError, match="longest_round"):
        train.write(bundle.run, tmp_path / "new", longest_round=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (full / "mine").read_text() == "kept"


def rewritten(bundle, run, **changes):
    """A run with other settings than the bundle's, stopped before its first round."""
    begun = reports.read_record(bundle.run)
    plan, settings = dataclasses.replace(begun.plan, **changes), msgspec.structs.replace(begun.settings, **changes)
    reports.write_record(run, plan, settings=settings, server_learning_rate=begun.server_learning_rate)
    shutil.copyfile(bundle.run / "vocabulary.json", run / "vocabulary.json")


@pytest.mark.parametrize(
    ("changes", "population", "why"),
    [({"noise_multiplier": 0.0}, 80, "noise: there is no noise"), ({"delta": 0.3}, 4, "delta: δ = ")],
    ids=["no noise", "delta"],
)
def test_a_deployment_without_an_epsilon_is_not_exported(bundle, tmp_path, changes, population, why):
    run, out = tmp_path / "run", tmp_path / "bundle"
    rewritten(bundle, run, **changes)
    result = invoke("export", run, "--out", out, "--population", population, catch_exceptions=True)
    assert isinstance(result.exception, tff_mf.InputError)
    assert f"NO ε CAN BE STATED: {why}" in str(result.exception)
    assert not out.exists()


@pytest.fixture
def trained(bundle, tmp_path):
    """A deployment of the bundle's settings that ended after a round, with the reports of its devices counted."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "plan.json", "mechanism.safetensors", "vocabulary.json"):
        shutil.copyfile(bundle.folder / name, run / name)
    counts = ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1})
    with open_loop(run, Rules.of(tff_mf.Plan.load(run))) as loop:
        loop.resume(Kept())
        loop.begin(["a", "b", "c", "d"])
        loop.finish(None, reports=counts)
        loop.record_end()
    initial = safetensors.numpy.load_file(bundle.folder / "server" / "initial.safetensors")
    prefix = "model__trainable__"
    model = {name.removeprefix(prefix): value for name, value in initial.items() if name.startswith(prefix)}
    safetensors.numpy.save_file(model, run / "model.safetensors")
    reports.write(run, realised=True)
    return run


def test_a_model_is_published_with_its_report_and_nothing_else(trained, tmp_path):
    out = tmp_path / "published"
    assert train.write_model(trained, out)["lite"] == "model.tflite"
    assert (out / "report.json").read_bytes() == (trained / "report.json").read_bytes()
    tokenize, model = (
        tf.saved_model.load(str(out / name)).signatures["serving_default"] for name in ("tokenize", "model")
    )
    words = tokenize(sentences=tf.constant(["of the function"]))["words__0"]
    logits = model(words=words)["logits"].numpy()
    assert logits.shape == (1, 20, 64)
    lite = tf.lite.Interpreter(str(out / "model.tflite")).get_signature_runner()
    np.testing.assert_allclose(lite(words=words.numpy())["logits"], logits, rtol=1e-3, atol=1e-5)
    # d numbers, and no more: no momentum, no rows of noise.
    weights = safetensors.numpy.load_file(trained / "model.safetensors").values()
    kept = tf.train.load_checkpoint(str(out / "model" / "variables" / "variables"))
    numbers = [int(np.prod(shape)) for name, shape in kept.get_variable_to_shape_map().items() if "VALUE" in name]
    assert sum(numbers) == sum(weight.size for weight in weights)


@pytest.fixture(scope="module")
def stages(bundle):
    """The stages of the bundle, as functions from tensors to tensors by name."""
    described = bundle.graphs["stages"]
    loaded = {name: tf.saved_model.load(str(bundle.folder / stage["path"])) for name, stage in described.items()}

    def run(name, *given):
        tensors = {key: value for each in given for key, value in each.items()}
        inputs = {key: tf.convert_to_tensor(tensors[key]) for key in described[name]["inputs"]}
        found = loaded[name].signatures["serving_default"](**inputs)
        return {key: np.asarray(found[key]) for key in described[name]["outputs"]}

    return run


@pytest.fixture(scope="module")
def begun(bundle, stages):
    """The state before the first round, and the update of an honest device."""
    state = stages("initialize", safetensors.numpy.load_file(bundle.folder / "server" / "initial.safetensors"))
    words = np.ones((2, 20), np.int64)
    return state, stages("work", {"examples__0": words, "examples__1": words}, stages("prepare", state))


def _square(values):
    """Exact, of integers."""
    return sum(int(value) ** 2 for each in values for value in np.ravel(each))


def test_no_hostile_device_exceeds_the_bound_or_counts_as_many(stages, begun):
    honest = begun[1]
    *records, count = honest
    assert {value.dtype for value in honest.values()} == {np.dtype(np.int32)}
    assert 0 < _square(honest[name] for name in records) <= 4**14
    assert honest[count] == 1
    largest = np.iinfo(np.int32).max
    for update in (
        *({name: np.full_like(value, sign * largest) for name, value in honest.items()} for sign in (1, -1)),
        *({**honest, count: np.array(many, np.int32)} for many in (10**6, -1)),
    ):
        total = stages("accumulate", stages("zero"), update)
        *added, clients = (value for name, value in total.items() if "__total__" in name)
        assert _square(added) <= 4**14
        assert clients == 1
    scaled = stages("accumulate", stages("zero"), {name: np.full_like(honest[name], largest) for name in honest})
    assert _square(value for name, value in scaled.items() if "__total__0__" in name) > 0.99 * 4**14
    assert len(records) == len(added)


@pytest.mark.parametrize(("more", "released"), [(0, True), (1, False)])
def test_a_sum_of_more_clients_than_there_is_room_for_is_not_released(stages, begun, more, released):
    report = stages("report", stages("zero"))
    *_, count = report
    report[count] = np.array(GRID.max_clients + more, report[count].dtype)
    if released:
        assert stages("update", begun[0], report)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            stages("update", begun[0], report)
