"""Bundles: what is in them, which runs are refused, and that a model is published alone."""

import json
import re
import shutil
import stat
import subprocess

import numpy as np
import pytest
import safetensors.numpy

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import export
from tff_mf.experiments.runs import folders, server_loop
from tff_mf.experiments.runs.ledger import ReportCounts
from tff_mf.experiments.runs.rules import Rules
from tff_mf.experiments.training import deployment

from .shared import invoke


def test_a_deployment_has_the_whole_cohort_and_all_of_its_noise(bundle):
    run = reports.read_record(bundle.folder)
    assert (run.plan.clients_per_round, run.plan.cohort) == (4, 4)
    assert run.plan.noise_multiplier == 8.0
    assert not run.simulation
    planned = json.loads((bundle.folder / "planned.json").read_text())
    assert planned["claim"]["epsilon_as_run"] == pytest.approx(
        tff_mf.epsilon(tff_mf.Tree(200, variant="full"), 200, run.plan.participation, noise_multiplier=8.0, delta=1e-6),
        rel=1e-9,
    )
    min_sep, timer = _eligibility(bundle.folder)
    # 200 rounds, 10 apart and 12 of them at most: 17 apart.
    assert min_sep["min_sep_policy"] == {
        "current_index": 1,
        "minimum_separation": 16,
        "min_trustworthiness_period": f"{17 * 900}s",
    }
    assert timer["swor_policy"] == {"min_period": "9000s"}


def _eligibility(folder):
    return json.loads((folder / export.DEVICE_POLICY).read_text())["population_eligibility_spec"][
        "eligibility_policies"
    ]


def test_a_bundle_lists_its_files_for_sha256sum(bundle, tmp_path):
    copy = shutil.copytree(bundle.folder, tmp_path / "copy")
    names = [line.split("  ")[1] for line in (copy / "SHA256SUMS").read_text().splitlines()]
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert set(names) == files - {"SHA256SUMS"}
    for name in ("initialize", "prepare", "zero", "accumulate", "merge", "report", "update"):
        assert f"server/{name}/saved_model.pb" in names
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


def test_no_warning_of_keys_where_there_are_none(bundle):
    assert bundle.warnings == []
    assert stat.S_IMODE((bundle.folder / "server").stat().st_mode) == 0o700


def test_runs_that_cannot_be_exported_are_refused_and_left_unchanged(bundle, tmp_path):
    for path, field in ((tmp_path / "none", "run="), (tmp_path, "configuration.toml")):
        with pytest.raises(tff_mf.InputError, match=field):
            deployment.read_source(path)
    source = deployment.read_source(bundle.config)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    with pytest.raises(tff_mf.InputError, match=r"out=.*empty"):
        deployment.write(source, full, round_minutes=15.0)
    with pytest.raises(tff_mf.InputError, match="round_minutes"):
        deployment.write(source, tmp_path / "new", round_minutes=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (full / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("settings", "population", "why"),
    [("noise_multiplier = 0.0", None, "noise: there is no noise"), ("noise_multiplier = 8.0", 4, "delta: δ = ")],
    ids=["no noise", "delta"],
)
def test_a_deployment_without_an_epsilon_is_not_exported(bundle, tmp_path, settings, population, why):
    config, out = tmp_path / "own.toml", tmp_path / "bundle"
    text, replaced = re.subn(r"^noise_multiplier = .*$", settings, bundle.config.read_text(), flags=re.M)
    assert replaced == 1
    config.write_text(re.sub(r"^delta = .*$", "delta = 0.3", text, flags=re.M) if population else text)
    more = [] if population is None else ["--population", population]
    result = invoke("export", config, "--out", out, *more, catch_exceptions=True)
    assert isinstance(result.exception, tff_mf.InputError)
    assert f"NO ε CAN BE STATED: {why}" in str(result.exception)
    assert not out.exists()


def test_a_run_is_exported_with_its_own_mechanism_and_words(bundle, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copyfile(bundle.config, run / "configuration.toml")
    folders.keep_mechanism(run, tff_mf.Tree(200, variant="online"))
    (run / "vocabulary.json").write_text(json.dumps(["of", "the"]))
    source = deployment.read_source(run, insecure_seed=5)
    assert source.plan.mechanism == tff_mf.Tree(200, variant="online")
    assert source.vocabulary == ["of", "the"]
    assert source.plan.insecure
    assert source.plan.noise_multiplier_as_run == 8.0


@pytest.fixture
def trained(bundle, tmp_path):
    """A deployment of the bundle's settings that ended after a round, with the reports of its devices counted."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "plan.json", "mechanism.safetensors", "vocabulary.json"):
        shutil.copyfile(bundle.folder / name, run / name)
    counts = ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1})
    with server_loop.open_loop(run, rules=Rules.of(tff_mf.Plan.load(run))) as loop:
        loop.released(loop.begin(["a", "b", "c", "d"]), reports=counts)
        loop.record_end()
    initial = safetensors.numpy.load_file(bundle.folder / "server" / "initial.safetensors")
    prefix = "model__trainable__"
    model = {name.removeprefix(prefix): value for name, value in initial.items() if name.startswith(prefix)}
    safetensors.numpy.save_file(model, run / "model.safetensors")
    reports.write(run, realised=True)
    return run


def test_a_model_is_published_with_its_report_and_nothing_else(trained, tmp_path):
    import tensorflow as tf

    out = tmp_path / "published"
    assert deployment.write_model(trained, out)["lite"] == "model.tflite"
    inside = out / "model" / "assets.extra" / "report.json"
    assert inside.read_bytes() == (out / "report.json").read_bytes()
    mine, public = (json.loads((folder / "report.json").read_text()) for folder in (trained, out))
    assert mine.pop("device_reports")["came"] == 5
    assert public == mine
    assert not any("Reports of devices" in path.read_text() for path in out.rglob("report.*"))
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
