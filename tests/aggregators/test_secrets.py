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
import safetensors.numpy
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.aggregators import checkpoints as manager
from tff_mf.base import checkpoint_files

DIMENSION = 2000
ROUNDS = 6


def forms(number: int) -> list[bytes]:
    """Returns all notations in which a word of a key might be written."""
    raw = number.to_bytes(8, "little", signed=True)
    return [raw, raw[::-1], str(number).encode(), raw.hex().encode(), base64.b64encode(raw)[:10]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The folder of a run, the secrets of its state, and its outputs and logs."""
    folder = tmp_path_factory.mktemp("run")
    factory = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2
    )
    process = factory.create(tff.TensorType(np.float32, [DIMENSION]))
    records = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: records.append(record.getMessage())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    checkpoints = aggregators.CheckpointManager(folder / "checkpoints")
    released = tff.program.CSVFileReleaseManager(folder / "metrics.csv", key_fieldname="round")
    board = tff.program.TensorBoardReleaseManager(folder / "tensorboard")
    texts = {}
    try:
        with aggregators.resident_context():
            state = process.initialize()
            for number in range(1, ROUNDS + 1):
                output = process.next(state, [np.ones(DIMENSION, np.float32), np.full(DIMENSION, np.nan, np.float32)])
                state = output.state
                texts[f"shown {number}"] = f"{state} {state!r} {output}"
                for manager in (released, board):
                    asyncio.run(manager.release(output.measurements, number))
            asyncio.run(checkpoints.save({"state": state}, ROUNDS))
            for name, fails in {
                "wrong clients": lambda: process.next(state, [np.ones(3, np.float32)]),
                "wrong state": lambda: process.next({"state": state}, []),
                "wrong structure": lambda: asyncio.run(checkpoints.load(ROUNDS, {"a": state, "b": 1})),
            }.items():
                with pytest.raises(Exception) as error:
                    fails()
                texts[name] = f"{error.value!s} {error.value!r}"
            noise = state.query_state.numerator_state.noise
            keys, rows = np.asarray(noise.keys)[:ROUNDS], [np.asarray(row) for row in noise.rows]
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    texts["logs"] = "\n".join(records)
    secrets = {
        f"key {index} in form {number}": form
        for index, word in enumerate(keys.ravel().tolist())
        for number, form in enumerate(forms(word))
    }
    secrets |= {f"row {index}": row[100:104].tobytes() for index, row in enumerate(rows)}
    secrets |= {f"row {index} as text": str(float(row[100]))[:9].encode() for index, row in enumerate(rows)}
    assert len(keys) == ROUNDS
    return folder, secrets, texts


def found_in(content, secrets):
    return [name for name, secret in secrets.items() if secret in content]


def test_no_file_log_error_or_printed_state_but_the_checkpoint_contains_a_secret(watched):
    folder, secrets, texts = watched
    (checkpoint,) = folder.glob("checkpoints/*.safetensors")
    found = found_in(checkpoint.read_bytes(), secrets)
    assert {name.split()[0] for name in found} == {"key", "row"}
    others = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "checkpoints"]
    assert {path.name.split(".")[0] for path in others} >= {"metrics", "events"}
    assert texts["logs"]
    contents = {**{path: path.read_bytes() for path in others}, **{name: text.encode() for name, text in texts.items()}}
    assert {where for where, content in contents.items() if found_in(content, secrets)} == set()


ROUNDS_OF_SMALL = 2
CONTEXTS = {
    "default": tff.backends.native.create_sync_local_cpp_execution_context,
    "asynchronous": tff.backends.native.create_async_local_cpp_execution_context,
    "session": aggregators.tff_session,
    "resident": aggregators.resident_context,
}
SMALL = {
    "blt": {},
    "adaptive": {"restart_every": 4, "adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0)},
}


@contextlib.contextmanager
def running(name):
    made = CONTEXTS[name]()
    with made if hasattr(made, "__enter__") else tff.framework.get_context_stack().install(made):
        yield


async def small_state(process):
    """Returns a state, and the error of a process that is given another."""

    async def of(result):
        return await result if inspect.isawaitable(result) else result

    state = await of(process.initialize())
    for _ in range(ROUNDS_OF_SMALL):
        state = (await of(process.next(state, [np.ones(3, np.float32)]))).state
    with pytest.raises(TypeError) as error:
        await of(process.next((state,), []))
    return state, str(error.value)


def words_of(state):
    """Returns all keys and rows, as they are printed and as they are stored."""
    noises = manager.noise_states(state)
    keys = [word for noise in noises for word in np.asarray(noise.keys)[:ROUNDS_OF_SMALL].ravel()]
    rows = [np.asarray(row) for noise in noises for row in noise.rows]
    printed = [str(word) for word in keys] + [np.array2string(row, separator=", ")[1:-1] for row in rows]
    return printed, [word.tobytes() for word in (*keys, *rows)]


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_small_state_can_be_printed_and_released_in_every_context(name, kind, tmp_path):
    """A context reads all of it from the worker: no reference hides it."""
    factory = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2, **SMALL[kind]
    )
    process = factory.create(tff.TensorType(np.float32, [3]))
    files = tff.program.SavedModelFileReleaseManager(tmp_path / "released")
    manager = aggregators.WriteAheadReleaseManager(files, aggregators.CheckpointManager(tmp_path / "checkpoints"))
    with running(name):
        state, error = asyncio.run(small_state(process))
        printed, stored = words_of(state)
        shown = f"{state} {state!r} {pprint.pformat([state])} {error}"
        asyncio.run(manager.release({"model": np.arange(3.0), "state": state}, 1))
    assert len(printed) == len(set(printed)) == (8 if kind == "blt" else 12)
    assert not [word for word in printed if word in shown]
    released = b"".join(path.read_bytes() for path in (tmp_path / "released").rglob("*") if path.is_file())
    assert np.arange(3.0).tobytes() in released
    assert not [word for word in stored if word in released]


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
        ({}, 0o755, False),
        ({"run.json": 0o644}, 0o755, False),
        ({"run.json": 0o644, "checkpoint_1.safetensors": 0o600}, 0o755, False),
        ({"checkpoint_1.safetensors": 0o644}, 0o700, False),
        ({"checkpoint_1.safetensors": 0o640}, 0o710, True),
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


@pytest.mark.parametrize("place", [40, 200, -1, -9])
def test_a_checkpoint_with_one_changed_bit_is_refused(tmp_path, place):
    path = tmp_path / "checkpoint_1.safetensors"
    checkpoint_files.write(path, {"a": np.arange(6.0), "b": np.arange(4).reshape(2, 2)}, {"leaves": [], "noise": "x"})
    tensors, description = checkpoint_files.read(path)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "a": [0, 1, 2, 3, 4, 5],
        "b": [[0, 1], [2, 3]],
    }
    assert description["noise"] == "x"
    assert len(safetensors.numpy.load_file(path)) == 2
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(tff_mf.InputError, match="checkpoint_1"):
        checkpoint_files.read(path)


@pytest.mark.parametrize("other", [checkpoint_files._VERSION - 1, checkpoint_files._VERSION + 1, "2", None])
def test_a_checkpoint_of_another_version_is_refused_by_the_version(tmp_path, monkeypatch, other):
    path = tmp_path / "checkpoint_1.safetensors"
    known = checkpoint_files._VERSION
    monkeypatch.setattr(checkpoint_files, "_VERSION", other)
    checkpoint_files.write(path, {"a": np.arange(6.0)}, {"leaves": []})
    monkeypatch.undo()
    with pytest.raises(tff_mf.InputError, match=f"version.*{other!r}.*{known}"):
        checkpoint_files.read(path)
