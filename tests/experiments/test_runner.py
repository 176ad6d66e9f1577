"""The runner that each bundle carries: its models against those of TFF, and its commands."""

import ast
import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import tampering
from runner_fleet import HIDDEN, Fleet, loaded_runner

import tff_mf
from tff_mf.experiments.bundles import runner as packaged

ROUNDS, COHORT = 3, 3


@pytest.fixture(scope="module")
def runner(bundle):
    """The bundle's own runner as a module, which loads its graphs once."""
    return loaded_runner(bundle.folder)


def test_the_runner_makes_the_models_of_tff(bundle, runner, tmp_path):
    """Without TFF, it runs in test_hostile_devices.py."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_mf import aggregators
    from tff_mf.experiments.bundles._source import deployed_again
    from tff_mf.experiments.training import learning_process
    from tff_mf.experiments.training.task import build_task

    folder = tmp_path / "run"
    examples = np.random.default_rng(1).integers(1, 60, size=(ROUNDS, COHORT, 3, 20))
    cohorts = [[f"device{number}-{index}" for index in range(COHORT)] for number in range(ROUNDS)]
    words = dict(zip(itertools.chain(*cohorts), examples.reshape(-1, 3, 20), strict=True))
    fleet = Fleet(tmp_path / "devices", runner, bundle.folder, folder, words=words, hostile={})
    runner.start(folder, bundle.folder)
    with runner.opened(folder, bundle.folder) as deployment:
        for cohort in cohorts:
            deployment.prepare(cohort, minutes=30)
            for _ in itertools.chain(*map(fleet.report, cohort)):
                deployment.accumulate()
            deployment.update()
    keys = safetensors.numpy.load_file(folder / "checkpoints" / f"checkpoint_{ROUNDS}.safetensors")["keys"]
    settings, privacy, vocabulary = deployed_again(bundle.folder)
    task = build_task(settings, vocabulary)
    process, _ = learning_process.build_process(
        settings, privacy, task, loop=learning_process.DEVICE_LOOP, repeated_keys=keys
    )
    with aggregators.resident_context():
        state = process.set_model_weights(process.initialize(), task.initial_weights)
        for number in range(ROUNDS):
            clients = [
                tf.data.Dataset.from_tensor_slices((each, np.roll(each, -1, axis=-1))).take(4).batch(2)
                for each in examples[number]
            ]
            state = process.next(state, clients).state
            weights = tff.structure.flatten(tff.structure.from_container(state.global_model_weights, recursive=True))
            found = safetensors.numpy.load_file(folder / "models" / f"round-{number + 1:06d}.safetensors")
            for index, expected in enumerate(map(np.asarray, weights)):
                # Up to the last bits: TFF optimizes the graph of clients' work, which the runner runs as it is.
                np.testing.assert_allclose(found[f"trainable__{index}"], expected, rtol=1e-5, atol=1e-7)


@pytest.fixture
def call(runner, tmp_path, capsys):
    """A function that calls a command, and returns what it printed."""
    (tmp_path / "chosen").write_text("a\nb\nc\n")

    def called(command, *more, folder=tmp_path / "run", status=0):
        capsys.readouterr()
        assert runner.main([command, str(folder), *map(str, more)]) == status
        printed = capsys.readouterr()
        if status:
            assert printed.out == ""
            assert len(printed.err.splitlines()) == 1
            return printed.err
        return json.loads(printed.out)

    return called


@pytest.fixture
def begun(call, tmp_path, runner, bundle):
    """The folder of a deployment whose first round was begun, and a function that writes an update."""
    call("start")
    call("prepare", "--devices", tmp_path / "chosen", "--minutes", 60)
    _, about = runner.decoded((tmp_path / "run" / "sent.safetensors").read_bytes())
    types = runner.check_files(bundle.folder).update_types
    update = {name: np.full(spec["shape"], 0.01, spec["dtype"]) for name, spec in types.items()}

    def write(name, content=None, **changes):
        path = tmp_path / "run" / "updates" / name
        path.write_bytes(runner.encoded(update, {**about, **changes}) if content is None else content)
        return path

    return tmp_path / "run", write, update


def test_a_file_counts_by_its_name_and_not_after_the_round(begun, call):
    folder, write, _ = begun
    for name in ("a.safetensors", "b.txt", ".b.safetensors", "stranger.safetensors"):
        write(name)
    write(os.fsdecode(b"\xff.safetensors"))
    found = call("accumulate")["counts"]
    assert found == {"came": 4, "counted": 1, "clipped": 0, "zeroed": 0, "refused": {"not chosen": 3}}
    assert [path.name for path in (folder / "updates").iterdir()] == [".b.safetensors"]
    write("b.safetensors")
    assert call("update")["counts"] == found
    model = safetensors.numpy.load_file(folder / "models" / "round-000001.safetensors")
    assert all(np.isfinite(value).all() for value in model.values())


class Claims:
    """An object with a shape and a type that are right, and no numbers."""

    dtype, shape = np.dtype(np.float32), (64, 4)


@pytest.mark.parametrize("value", [Claims(), [[0.0] * 4] * 64, np.zeros((64, 4), ">f4"), np.zeros((64, 4), object)])
def test_updates_that_are_not_arrays_of_their_type_are_refused(begun, runner, bundle, value):
    _, _, update = begun
    name = next(iter(update))
    with pytest.raises(runner._bundle.RefusedUpdateError, match="dtype"):
        runner._bundle.checked({**update, name: value}, runner.check_files(bundle.folder).update_types)


def test_only_the_owner_can_read_secrets_and_keys_replace_rows(begun, call):
    folder, write, _ = begun
    write("a.safetensors")
    call("accumulate")
    for path in (folder, folder / "checkpoints", folder / "updates", folder / "taken"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for name in (
        *("checkpoints/checkpoint_0.safetensors", "sum.safetensors", "sent.safetensors"),
        *("ledger.jsonl", "participation.csv"),
    ):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    call("update")
    (kept,) = (folder / "checkpoints").iterdir()
    tensors = safetensors.numpy.load_file(kept)
    assert tensors["keys"].shape == (1, 2)
    assert not [name for name in tensors if "rows" in name]
    call("stop")
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == [".lock", "ledger.jsonl", "participation.csv", "round-000001.safetensors"]
    assert "no round follows" in call("prepare", "--devices", folder.parent / "chosen", status=2)


def test_unfinished_files_of_a_killed_process_are_deleted(begun, call, runner):
    folder, write, _ = begun
    write("a.safetensors")
    call("accumulate")
    for path in (
        folder / "checkpoints" / "checkpoint_1.safetensors",
        folder / "sum.safetensors",
        folder / "models" / "a",
    ):
        child = os.fork()
        if not child:
            os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
            runner._deployment.files.write_atomically(path, b"secret")
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(list(folder.rglob(".*.tff-mf.tmp"))) == 3
    call("resume")
    assert list(folder.rglob(".*.tff-mf.tmp")) == []
    assert call("update")["released"] == 1


def test_a_state_is_stepped_once(begun, call, runner, bundle, monkeypatch):
    folder, write, _ = begun
    write("a.safetensors")
    call("accumulate")
    with (folder / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "in use by process" in call("update", status=2)
    with monkeypatch.context() as patch:
        # Even a process that no lock kept out: before it saves, and when it does.
        patch.setattr(runner._deployment, "alone", contextlib.nullcontext)
        with runner.opened(folder, bundle.folder) as one, runner.opened(folder, bundle.folder) as other:
            one.update()
            with pytest.raises(runner.InputError, match="No such file"):
                other.update()
            with pytest.raises(FileExistsError):
                one._states.save(1, one._state(), {})
    assert "no round that was begun" in call("update", status=2)


def test_the_state_of_another_deployment_is_refused(begun, call, tmp_path):
    folder, _, _ = begun
    call("start", folder=tmp_path / "other")
    name = "checkpoints/checkpoint_0.safetensors"
    shutil.copyfile(tmp_path / "other" / name, folder / name)
    (folder / "sent.safetensors").unlink()
    assert "and not of this one" in call("resume", status=2)


def test_the_last_round_is_final(begun, runner, bundle, tmp_path):
    folder, _, _ = begun
    with runner.opened(folder, bundle.folder) as deployment:
        deployment._loop._rules = dataclasses.replace(deployment._loop._rules, rounds=1)
        deployment.update()
        with pytest.raises(runner.InputError, match="no round follows, of 1"):
            deployment.prepare(["x"])


def test_devices_are_refused_outside_the_accounted_schema(begun, call, tmp_path):
    call("update")
    assert "took part in round 1: min_sep=10" in call("prepare", "--devices", tmp_path / "chosen", status=2)
    for text, reason in (("d\nd\n", "twice"), ("../d\n", "letters"), ("\n\xff", "letters")):
        (tmp_path / "chosen").write_text(text)
        assert reason in call("prepare", "--devices", tmp_path / "chosen", status=2)
    (tmp_path / "chosen").write_text("d\n")
    assert call("prepare", "--devices", tmp_path / "chosen")["round"] == 2
    assert "was begun" in call("prepare", "--devices", tmp_path / "chosen", status=2)
    again = call("prepare", "--devices", tmp_path / "chosen", "--again")
    assert (again["round"], again["attempt"]) == (2, 2)


def test_a_deployment_of_another_bundle_is_refused(begun, call, runner, bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "other")
    tampering.manifested(lambda manifest: manifest.update(created_by="another"))(tmp_path / "other", None)
    with (
        pytest.raises(runner.InputError, match=r"bundle=.* is not the setting that the run"),
        runner.opened(tmp_path / "run", tmp_path / "other"),
    ):
        pass


def test_the_page_s_commands_run(call, tmp_path):
    """Each command line of the page's section, by the runner of a bundle, in its order."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    lines = [line.split("#")[0].split() for line in page.splitlines() if line.startswith("python bundle/runner.pyz")]
    assert [line[2] for line in lines] == [*("start", "prepare", "accumulate", "update", "status", "resume", "stop")]
    for _, _, command, folder, *more in lines:
        given = [str(tmp_path / "chosen") if each == "chosen.txt" else each for each in more]
        found = call(command, *given, folder=tmp_path / folder)
    assert (found["released"], found["ended"]) == (1, True)


def test_bad_input_is_one_line_and_status_2(call, begun, tmp_path, bundle):
    folder, _, _ = begun
    assert "is not a deployment" in call("status", folder=tmp_path / "none", status=2)
    assert "is not empty" in call("start", status=2)
    assert "--devices is missing" in call("prepare", status=2)
    assert "cannot be read" in call("prepare", "--devices", tmp_path / "none", status=2)
    assert "--minutes" in call("prepare", "--devices", tmp_path / "chosen", "--minutes", "nan", status=2)
    assert "digest=" in call("start", "--digest", "0" * 64, folder=tmp_path / "new", status=2)
    state = folder / "checkpoints" / "checkpoint_0.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    assert "does not match its sha256" in call("update", status=2)
    shutil.rmtree(folder / "checkpoints")
    assert "lost its state" in call("resume", status=2)
    (folder / "ledger.jsonl").write_text("{\n")
    assert "ledger=" in call("resume", status=2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}x",
        *(
            len(text).to_bytes(8, "little") + text + b"\0" * 8
            for text in (
                b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
                b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
                b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,8]}}',
                b'{"a":{"dtype":"F32","shape":[-2,-1],"data_offsets":[0,8]}}',
                b'{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}',
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
                b'{"__metadata__":{"a":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
                b"[" * 5000,
                b'{"a":{"dtype":"F64","shape":[1e0],"data_offsets":[0,8]}}',
                b'{"a":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}}',
            )
        ),
    ],
)
def test_damaged_safetensors_files_are_refused(content):
    with pytest.raises(packaged.InputError, match="not an intact safetensors file"):
        packaged.decoded(content)


def test_its_files_are_safetensors_files(tmp_path):
    given = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.array(True),
        "c": np.zeros((0, 3), np.int64),
        "d": np.float64(2.5),
    }
    path = tmp_path / "file"
    path.write_bytes(packaged.encoded(given, {"round": "3"}))
    found = safetensors.numpy.load_file(path)
    again, about = packaged.decoded(safetensors.numpy.save(found, {"round": "3"}))
    assert about == {"round": "3"}
    for name, value in given.items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(again[name], value)
        assert again[name].dtype == np.asarray(value).dtype


def test_leftovers_of_another_attempt_or_round_are_cleared(begun, call, runner, tmp_path, monkeypatch):
    folder, write, _ = begun
    write("a.safetensors")
    call("accumulate")
    before = runner.decoded((folder / "sent.safetensors").read_bytes())[1]
    with monkeypatch.context() as patch:
        patch.setattr(runner.Deployment, "_clear", lambda self: None)
        patch.setattr(runner.Deployment, "_send", lambda self: None)
        call("prepare", "--devices", tmp_path / "chosen", "--again")
    assert call("resume")["counts"]["counted"] == 0
    assert not (folder / "sum.safetensors").exists()
    sent = runner.decoded((folder / "sent.safetensors").read_bytes())[1]
    assert sent != before
    write("a.safetensors", **sent)
    assert call("accumulate")["counts"] == {"came": 1, "counted": 1, "clipped": 0, "zeroed": 0, "refused": {}}
    with monkeypatch.context() as patch:
        patch.setattr(runner.Deployment, "_clear_stale", lambda self: None)
        call("update")
    assert (folder / "sum.safetensors").exists()
    call("resume")
    assert not (folder / "sum.safetensors").exists()


def test_the_program_is_modules_as_they_are_and_needs_tensorflow_alone(bundle):
    root = pathlib.Path(packaged.__file__).parents[3]
    with zipfile.ZipFile(bundle.folder / "runner.pyz") as program:
        carried = {name: program.read(name) for name in program.namelist()}
    own = {name: carried.pop(name) for name in ("__main__.py", "runner/__init__.py")}
    assert all(len(text.splitlines()) <= 6 for text in own.values())
    for name, text in carried.items():
        inside = name.removeprefix("runner/")
        module = root / inside if inside.startswith("experiments/") else pathlib.Path(tff_mf.__file__).parent / inside
        assert text in (module.read_bytes(), b""), name
        assert text or name.endswith("__init__.py")
    imported = set()
    for each in itertools.chain.from_iterable(ast.walk(ast.parse(text)) for text in (*carried.values(), *own.values())):
        if isinstance(each, ast.Import):
            imported |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and not each.level:
            imported.add(each.module)
    others = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert others == {"numpy", "runner", "tensorflow"}


def test_what_devices_import_is_in_the_program(bundle):
    """`sys.path.insert(0, "bundle/runner.pyz")` and `import runner`, where no other package is."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[2:])); sys.path.insert(0, sys.argv[1]); import runner;"
        "print(runner.check_files.__module__, runner.decoded(runner.encoded({}, {'a': 'b'})))"
    )
    command = [sys.executable, "-c", code, bundle.folder / "runner.pyz", *HIDDEN]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=bundle.folder)
    assert done.stdout == "runner.experiments.bundles.runner._bundle ({}, {'a': 'b'})\n", done.stderr


def test_nothing_beside_it_is_imported(bundle, tmp_path):
    shutil.copyfile(bundle.folder / "runner.pyz", tmp_path / "runner.pyz")
    for name in ("argparse", "runner"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    for option in ((), ("-P",)):
        command = [sys.executable, *option, tmp_path / "runner.pyz", "--help"]
        done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_a_test_only_bundle_is_not_started(bundle, runner, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(bundle.folder, copy)
    tampering.manifested(lambda manifest: manifest.update(test_only=True))(copy, None)
    with pytest.raises(runner.InputError, match="TEST ONLY"):
        runner.start(tmp_path / "run", copy)
    assert runner.start(tmp_path / "run", copy, test_only=True)["released"] == 0


def test_the_digest_is_checked_before_any_other_file(bundle, runner, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(bundle.folder, copy)
    monkeypatch.setattr(runner._bundle, "changes", lambda *given: pytest.fail("files were looked at"))
    with pytest.raises(runner.InputError, match="is not the bundle's digest"):
        runner.start(tmp_path / "run", copy, digest="0" * 64)


def test_an_interrupted_start_can_be_repeated(call, tmp_path):
    call("start")
    folder = tmp_path / "run"
    for name in ("updates", "taken", "models"):
        (folder / name).rmdir()
    (folder / "ledger.jsonl").write_text('{"kind": "ope')
    (folder / "participation.csv").unlink()
    assert "begin one with start" in call("resume", status=2)
    assert call("start")["released"] == 0


def test_files_of_the_operator_s_own_are_left_alone(begun, call, tmp_path):
    folder, _, _ = begun
    (folder / "models" / "round-000001-backup.safetensors").write_text("mine")
    (folder / "taken" / "mine").write_text("")
    (tmp_path / "nobody").write_text("\n")
    assert "there are none" in call("prepare", "--devices", tmp_path / "nobody", "--again", status=2)
    call("accumulate")
    call("update")
    assert (folder / "models" / "round-000001-backup.safetensors").exists()
