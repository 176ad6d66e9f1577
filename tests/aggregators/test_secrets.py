"""Keys and rows of noise are written to checkpoints and nowhere else; the tests search for their bytes."""

import asyncio
import base64
import contextlib
import inspect
import logging
import pathlib
import pprint
import stat

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.aggregators import checkpoints as manager
from tff_mf.base import checkpoint_files

ROUNDS = 2
CONTEXTS = {
    "default": tff.backends.native.create_sync_local_cpp_execution_context,
    "asynchronous": tff.backends.native.create_async_local_cpp_execution_context,
    "session": aggregators.tff_session,
    "resident": aggregators.resident_context,
}
KINDS = {
    "blt": {},
    "adaptive": {"restart_every": 4, "adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0)},
}


@contextlib.contextmanager
def running(name):
    made = CONTEXTS[name]()
    with made if hasattr(made, "__enter__") else tff.framework.get_context_stack().install(made):
        yield


async def run_of(process, dimension):
    """Returns the last state and its measurements, all outputs as they are printed, and what errors say."""

    async def of(result):
        return await result if inspect.isawaitable(result) else result

    state, shown = await of(process.initialize()), []
    for _ in range(ROUNDS):
        values = [np.ones(dimension, np.float32), np.full(dimension, np.nan, np.float32)]
        output = await of(process.next(state, values))
        state = output.state
        shown.append(f"{state} {state!r} {pprint.pformat([state])} {output}")
    for wrong in ((state, [np.ones(dimension + 1, np.float32)]), ((state,), [])):
        with pytest.raises(Exception) as error:
            await of(process.next(*wrong))
        shown.append(f"{error.value!s} {error.value!r}")
    return state, output.measurements, shown


def secrets_of(state):
    """Returns all notations in which a word of a key or a part of a row might be written."""
    noises = manager.noise_states(state)
    found = {}
    for word in np.concatenate([np.asarray(noise.keys)[:ROUNDS].ravel() for noise in noises]).tolist():
        raw = word.to_bytes(8, "little", signed=True)
        found[f"key {word}"] = [raw, raw[::-1], str(word).encode(), raw.hex().encode(), base64.b64encode(raw)[:10]]
    for row in (np.asarray(row) for noise in noises for row in noise.rows):
        found[f"row {row[0]}"] = [row[:3].tobytes(), str(float(row[0]))[:9].encode(), str(row[0]).encode()]
    return found


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("dimension", [3, 2000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONTEXTS)
def test_nothing_but_the_checkpoint_contains_a_secret(name, kind, dimension, tmp_path, caplog):
    """Of a small state, which a context reads from the worker, no reference hides what it holds."""
    factory = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2, **KINDS[kind]
    )
    process = factory.create(tff.TensorType(np.float32, [dimension]))
    checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints")
    models = tff.program.SavedModelFileReleaseManager(tmp_path / "released")
    released = tff.program.CSVFileReleaseManager(tmp_path / "metrics.csv", key_fieldname="round")
    board = tff.program.TensorBoardReleaseManager(tmp_path / "tensorboard")
    with caplog.at_level(logging.DEBUG), running(name):
        state, measurements, shown = asyncio.run(run_of(process, dimension))
        for each in (released, board):
            asyncio.run(each.release(measurements, ROUNDS))
        model = aggregators.WriteAheadReleaseManager(models, checkpoints)
        asyncio.run(model.release({"model": np.arange(3.0), "state": state}, 1))
        asyncio.run(checkpoints.save({"state": state}, ROUNDS))
        with pytest.raises(tff_mf.InputError) as error:
            asyncio.run(checkpoints.load(ROUNDS, {"a": state, "b": 1}))
        secrets = secrets_of(state)
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert all(forms[0] in saved.read_bytes() for forms in secrets.values())
    assert len(secrets) == (8 if kind == "blt" else 12)
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path != saved]
    assert {path.name.split(".")[0] for path in others} >= {"metrics", "events", "saved_model"}
    assert any(np.arange(3.0).tobytes() in path.read_bytes() for path in others)
    texts = [*shown, str(error.value), *(record.getMessage() for record in caplog.records)]
    contents = [*(path.read_bytes() for path in others), *(text.encode() for text in texts)]
    assert not [name for name, forms in secrets.items() for each in forms if any(each in one for one in contents)]


def test_checkpoints_that_a_killed_process_left_unfinished_are_deleted(tmp_path):
    left = tmp_path / ".0.tff-mf.tmp"
    left.write_bytes(b"keys")
    checkpoints = aggregators.CheckpointManager(tmp_path)
    assert not left.exists()
    left.write_bytes(b"keys")
    asyncio.run(checkpoints.remove_all())
    assert not left.exists()


@pytest.mark.parametrize(
    ("files", "folder_mode", "warned"),
    [
        ({"run.json": 0o644, "checkpoint_1.safetensors": 0o600}, 0o755, False),
        ({".0123.tmp": 0o644}, 0o711, True),
        ({"run.json": 0o600, "checkpoint_9.safetensors": 0o604}, 0o705, True),
        ({"before/checkpoint_1.safetensors": 0o644}, 0o755, True),
    ],
)
def test_the_warning_is_about_readable_keys_only(tmp_path, caplog, files, folder_mode, warned):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name, mode in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        (folder / name).chmod(mode)
        (folder / name).parent.chmod(folder_mode)
    folder.chmod(folder_mode)
    with caplog.at_level(logging.WARNING):
        aggregators.CheckpointManager(folder)
    assert ("Others could read the checkpoints" in caplog.text) == warned
    closed = [folder, *filter(pathlib.Path.is_file, folder.iterdir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in closed} <= {0o700, 0o600}
    caplog.clear()
    aggregators.CheckpointManager(folder)
    assert caplog.text == ""


@pytest.mark.parametrize("other", [checkpoint_files._VERSION - 1, checkpoint_files._VERSION + 1, "2", None])
def test_a_checkpoint_of_another_version_is_refused_by_the_version(tmp_path, monkeypatch, other):
    path = tmp_path / "checkpoint_1.safetensors"
    known = checkpoint_files._VERSION
    monkeypatch.setattr(checkpoint_files, "_VERSION", other)
    checkpoint_files.write(path, {"a": np.arange(6.0)}, {"leaves": []})
    monkeypatch.undo()
    with pytest.raises(tff_mf.InputError, match=f"version.*{other!r}.*{known}"):
        checkpoint_files.read(path)
