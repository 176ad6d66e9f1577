"""Bundles: what is in them, that they are refused when anything is wrong, and that a model is published alone."""

import json
import re
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import tampering
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import bundles, reports
from tff_mf.experiments.bundles import _device_file, _manifest, _rounds, verification
from tff_mf.experiments.cli import cli
from tff_mf.experiments.runs import folders, server_loop
from tff_mf.experiments.runs.ledger import ReportCounts


def call(*arguments):
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def copy(bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "copy")
    return tmp_path / "copy"


def set_in(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_deployment_has_the_whole_cohort_and_all_of_its_noise(bundle):
    run = reports.read_record(bundle.folder)
    assert (run.clients_per_round, run.cohort, run.divisor) == (4, 4, 4)
    assert run.noise_multiplier == 8.0
    assert not run.simulation
    planned = json.loads((bundle.folder / "planned.json").read_text())
    assert planned["claim"]["epsilon_as_run"] == pytest.approx(
        tff_mf.epsilon(tff_mf.Tree(200, variant="full"), 200, run.schema, noise_multiplier=8.0, delta=1e-6), rel=1e-9
    )
    policy = bundles.read_policy(bundle.folder)
    assert (policy.min_sep, policy.max_participations, policy.timer_hours) == (10, 12, 2.5)


def test_the_manifest_lists_the_contents(bundle):
    manifest, digest = bundles.read_manifest(bundle.folder)
    assert digest == bundle.digest
    assert set(manifest.stages) == {
        *("initialize", "prepare", "work", "zero", "accumulate", "merge", "report", "update", "replay")
    }
    assert manifest.lite.path == "device/work.tflite"
    assert len(manifest.forms) == 12
    assert max(stage.graph_bytes for stage in manifest.stages.values()) < 5e6
    assert stat.S_IMODE((bundle.folder / "server" / "initial.safetensors").stat().st_mode) == 0o600
    assert set(manifest.files) == set(_manifest.file_entries(bundle.folder))
    assert [path.name for path in bundle.folder.parent.iterdir() if "partial" in path.name] == []


def test_no_warning_of_keys_where_there_are_none(bundle):
    assert bundle.warnings == []
    assert stat.S_IMODE((bundle.folder / "server").stat().st_mode) == 0o700


def test_one_byte_changed_in_any_file_is_found(copy):
    for path in sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size):
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        assert [each.file for each in bundles.refusals(copy)] == [path.relative_to(copy).as_posix()]
        path.write_bytes(content)
    assert bundles.refusals(copy) == []


# What would be found if graphs were run that are not those that are exported again. Every file fits every other one,
# and only the graphs do something else than run.json says.
OTHER_GRAPHS = {
    "less noise": ({"noise_multiplier": 16.0}, ["server/update"], "round 1"),
    # The noise is the same: only what devices send may be twice as large.
    "a larger clip norm": (
        {"clip_norm": 0.5, "noise_multiplier": 16.0},
        ["device/work", "device/work.tflite"],
        "above clip_norm=0.5",
    ),
}


@pytest.mark.parametrize("case", OTHER_GRAPHS)
def test_graphs_that_deviate_from_run_json_are_refused(case, copy):
    changes, files, reason = OTHER_GRAPHS[case]
    settings = json.loads((copy / "run.json").read_text())["settings"]
    set_in(copy / "run.json", **changes, settings={**settings, **changes})
    reports.write(copy, realised=False)
    _device_file.write_device_policy(copy)
    tampering.listed(copy)
    assert bundles.refusals(copy) == []
    found = _rounds.run(copy, rounds=1)
    assert [each.file for each in found] == files
    assert all(reason in each.reason for each in found)


def test_verify_by_command(bundle, tmp_path):
    finished = call("verify", bundle.folder, "--files-only", "--digest", bundle.digest)
    assert finished.exit_code == 0
    assert bundle.digest in finished.stdout
    (tmp_path / "empty").mkdir()
    program = f"import sys; sys.argv = ['tff-mf', 'verify', {str(tmp_path / 'empty')!r}]\n"
    program += "sys.modules['tensorflow'] = None\nfrom tff_mf.experiments.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "manifest.json is missing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_runs_that_cannot_be_exported_are_refused_and_left_unchanged(bundle, tmp_path):
    for path, field in ((tmp_path / "none", "run="), (tmp_path, "configuration.toml")):
        with pytest.raises(tff_mf.InputError, match=field):
            bundles.read_source(path)
    from tff_mf.experiments.bundles import building

    source = bundles.read_source(bundle.config)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    with pytest.raises(tff_mf.InputError, match=r"out=.*empty"):
        building.export(source, full, round_minutes=15.0)
    with pytest.raises(tff_mf.InputError, match="round_minutes"):
        building.export(source, tmp_path / "new", round_minutes=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (full / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("settings", "population", "why"),
    [("noise_multiplier = 0.0", None, "there is no noise"), ("noise_multiplier = 8.0", 4, "delta: δ = ")],
    ids=["no noise", "delta"],
)
def test_a_deployment_without_an_epsilon_is_not_exported(bundle, tmp_path, settings, population, why):
    config, out = tmp_path / "own.toml", tmp_path / "bundle"
    text, replaced = re.subn(r"^noise_multiplier = .*$", settings, bundle.config.read_text(), flags=re.M)
    assert replaced == 1
    config.write_text(re.sub(r"^delta = .*$", "delta = 0.3", text, flags=re.M) if population else text)
    more = [] if population is None else ["--population", population]
    result = call("export", config, "--out", out, *more)
    assert isinstance(result.exception, tff_mf.InputError)
    assert f"NO ε CAN BE STATED: {why}" in str(result.exception)
    assert not out.exists()


def test_a_run_is_exported_with_its_own_mechanism_and_words(bundle, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copyfile(bundle.config, run / "configuration.toml")
    folders.keep_mechanism(run, tff_mf.Tree(200, variant="online"))
    (run / "vocabulary.json").write_text(json.dumps(["of", "the"]))
    source = bundles.read_source(run, insecure_seed=5)
    assert source.privacy.mechanism == tff_mf.Tree(200, variant="online")
    assert source.vocabulary == ["of", "the"]
    assert source.privacy.insecure
    assert source.privacy.noise_multiplier_as_run == 8.0


def written_tensors(folder, name, **tensors):
    (folder / name).write_bytes(safetensors.numpy.save(tensors))
    return folder / name


def test_an_initial_model_may_have_other_last_bits_and_matrices_of_noise_may_not(tmp_path):
    model, matrix = np.array([[1.0, -2.0], [1e-5, 0.0]], np.float32), np.array([0.1, 0.7])
    again = written_tensors(tmp_path, "again", model__trainable__0=model, constant__0=matrix)
    for change in (0.0, 1e-6, -1.9e-6):
        found = written_tensors(tmp_path, "found", model__trainable__0=model + np.float32(change), constant__0=matrix)
        assert verification.same_initial(found, again)
    others = [
        {"model__trainable__0": model + np.float32(3e-6), "constant__0": matrix},
        {"model__trainable__0": model * np.float32("nan"), "constant__0": matrix},
        {"model__trainable__0": model.astype(np.float64), "constant__0": matrix},
        {"model__trainable__0": model[:1], "constant__0": matrix},
        {"model__trainable__0": model, "constant__0": np.nextafter(matrix, 1.0)},
        {"model__trainable__0": model, "constant__0": matrix, "model__trainable__1": model},
        {"model__trainable__0": model},
    ]
    for tensors in others:
        assert not verification.same_initial(written_tensors(tmp_path, "found", **tensors), again)
    for content in (again.read_bytes() + b" ", b"", again.read_bytes()[:-1]):
        (tmp_path / "found").write_bytes(content)
        assert not verification.same_initial(tmp_path / "found", again)


@pytest.fixture
def trained(bundle, tmp_path):
    """A deployment of the bundle's settings that ended after a round, with the reports of its devices counted."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "mechanism.safetensors", "vocabulary.json"):
        shutil.copyfile(bundle.folder / name, run / name)
    counts = ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1})
    with server_loop.open_loop(run) as loop:
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

    from tff_mf.experiments.bundles import publishing

    out = tmp_path / "published"
    assert publishing.export_model(trained, out)["lite"] == "model.tflite"
    inside = out / "model" / "assets.extra" / "report.json"
    assert inside.read_bytes() == (out / "report.json").read_bytes()
    mine, public = (json.loads((folder / "report.json").read_text()) for folder in (trained, out))
    assert mine.pop("device_reports")["came"] == 5
    assert public == {**mine, "findings": [each for each in mine["findings"] if each["field"] != "device_reports"]}
    assert public["findings"] != mine["findings"]
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
