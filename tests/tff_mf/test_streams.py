"""What streams in NumPy have of their own: states and their files, generators, restarts, and no TensorFlow."""

import hashlib
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

import tff_mf
from tff_mf import normals
from tff_mf.noise import numpy as streams
from tff_mf.noise.numpy import _advance

from .grid_oracle import assert_recursion
from .test_noise import BLT, assert_close, drawn_in_numpy, exact_noise, rows_of
from .test_registry import any_matrix, geometric, mixed_matrix, registered_for_one_test  # noqa: F401

GRID = tff_mf.Grid(bits=16, max_clients=100)
GENERATORS = ("philox", "aes", "tensorflow")


@pytest.fixture(params=GENERATORS)
def generator(request):
    if request.param == "aes":
        pytest.importorskip("cryptography")
    return request.param


def test_integers_are_the_recursion_in_exact_fractions(make_mechanism):
    rounds = 16
    mechanism = make_mechanism(rounds)
    stream = streams.build_stream(mechanism, dimension=3, stddev=3.0, grid=GRID)
    rows, state = rows_of(stream, rounds)
    assert rows.dtype == np.int64
    drawn = np.stack([normals.draw(key, 3) for key in state["keys"]])
    deviation = 3.0 * 2**16
    recursion = tff_mf.grids.recursion(mechanism, deviation=deviation, largest_normal=tff_mf.grids.LARGEST_NORMAL)
    assert_recursion(mechanism, recursion, rows, drawn, deviation)


def test_integers_are_replayed_and_end(make_mechanism):
    stream = streams.build_stream(make_mechanism(13), dimension=3, stddev=3.0, grid=GRID)
    _, state = rows_of(stream.limited_to(13), 13)
    again = stream.replay(state["keys"])
    assert sorted(again) == sorted(state)
    for name, array in state.items():
        assert array.dtype == again[name].dtype
        np.testing.assert_array_equal(array, again[name])
    with pytest.raises(tff_mf.InputError, match="13 rounds, and all of them have run"):
        stream.limited_to(13).next(state)


def test_rows_longer_than_a_part(monkeypatch, generator):
    """A model of many parameters is taken in parts, of which the last one is shorter."""
    monkeypatch.setattr(_advance, "_PRODUCT", 2**13)
    dimension = 2**16 + 4099
    for mechanism, grid in ((tff_mf.BandedToeplitz.square_root(13), None), (BLT, None), (tff_mf.Tree(9), GRID)):
        if generator == "tensorflow":
            dimension = 2**18 + 5
        stream = streams.build_stream(mechanism, dimension=dimension, stddev=1.0, grid=grid, generator=generator)
        rows, state = rows_of(stream, 5)
        z = drawn_in_numpy(stream, state["keys"], dimension) * float(stream.stddev)
        expected = mechanism.cast_to_float32().inverse(9)[:5, :5] @ z
        if grid is None:
            assert_close(rows, expected)
        else:
            assert np.abs(rows - expected).max() < 5


def test_normals_of_a_generator(generator):
    """Of a normal law, independent in parts, rounds and coordinates."""
    dimension = 2**17 + 3
    stream = streams.build_stream(tff_mf.Identity(), dimension=dimension, stddev=1.0, generator=generator)
    rows, _ = rows_of(stream, 3)
    assert scipy.stats.kstest(rows[0][::7], "norm").pvalue > 1e-6
    assert abs(np.mean(rows[0] ** 2) - 1) < 0.02
    assert np.abs(rows[0]).max() > 4
    parts = np.array_split(rows.ravel()[: 9 * 2**14], 9)
    correlations = np.corrcoef(parts)[np.triu_indices(9, 1)]
    assert np.abs(correlations).max() < 6 / 2**7


def test_generators_are_checked():
    for wrong, message in (("pcg64", "generator='pcg64'"), (7, "generator=7")):
        with pytest.raises(tff_mf.InputError, match=message):
            streams.build_stream(BLT, dimension=3, stddev=1.0, generator=wrong)


def test_aes_is_the_block_cipher_of_the_counter():
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    from tff_mf.noise.numpy import _generators

    key = np.array([-5, 2**40])
    words = _generators._aes_words(key, 2**62 + 7, 3)
    cipher = Cipher(algorithms.AES(key.astype("<i8").tobytes()), modes.ECB()).encryptor()
    blocks = b"".join((2**62 + 7 + index).to_bytes(16, "big") for index in range(2))
    assert words.tobytes() == cipher.update(blocks)[:24]


def test_words_of_numpy_are_counted_as_blocks():
    from tff_mf.noise.numpy import _generators

    key = np.array([-5, 2**40])
    words = _generators._numpy_words(key, 2**62, 40)
    for offset in range(0, 20, 2):
        np.testing.assert_array_equal(_generators._numpy_words(key, 2**62 + offset, 4), words[2 * offset :][:4])


def test_tensorflows_normals_in_numpy():
    pytest.importorskip("tensorflow")
    from tff_mf.noise.tensorflow import build_stream

    for mechanism in (tff_mf.Identity(), BLT):
        arguments = {"dimension": 2**15 + 7, "stddev": 3.0, "insecure_seed": 5}
        ours, _ = rows_of(streams.build_stream(mechanism, generator="tensorflow", **arguments), 3)
        theirs, _ = rows_of(build_stream(mechanism, **arguments), 3)
        assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize(
    "mechanism",
    [BLT, tff_mf.BandedToeplitz.square_root(64), tff_mf.BandedInverse.square_root(8)]
    + [tff_mf.Tree(1000, variant=variant) for variant in ("online", "full", "vanilla")],
    ids=lambda mechanism: f"{mechanism.kind} {getattr(mechanism, 'variant', '')}",
)
def test_float32_drift_of_the_prefix_sum(mechanism):
    stream = streams.build_stream(mechanism, dimension=4, stddev=1.0)
    rows, state = rows_of(stream, 1000)
    exact = np.cumsum(exact_noise(mechanism, drawn_in_numpy(stream, state["keys"], 4)), axis=0)
    assert np.abs(np.cumsum(rows, axis=0, dtype=np.float64) - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
def test_a_state_file_is_resumed(tmp_path, grid):
    stream = streams.build_stream(tff_mf.BandedToeplitz.square_root(40), dimension=6, stddev=1.0, grid=grid)
    _, state = rows_of(stream, 5)
    file = tmp_path / "noise.safetensors"
    streams.save_state(state, file)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    again = streams.load_state(file)
    assert {name: (array.dtype, array.shape) for name, array in again.items()} == {
        name: (array.dtype, array.shape) for name, array in state.items()
    }
    keys = np.vstack([state["keys"], [[1, 2]]])
    ours, theirs = (stream.repeating(keys).next(each)[0] for each in (state, again))
    np.testing.assert_array_equal(ours, theirs)
    assert not np.any(stream.next(again)[0] == stream.next(state)[0])


def test_a_damaged_file_is_refused(tmp_path):
    stream = streams.build_stream(BLT, dimension=6, stddev=1.0)
    file, damaged = tmp_path / "noise.safetensors", tmp_path / "damaged.safetensors"
    streams.save_state(rows_of(stream, 2)[1], file)
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(tff_mf.InputError, match="is damaged, or no state of noise"):
            streams.load_state(damaged)
    for part in (b"", content[:100], content[:-1], content + b"0"):
        damaged.write_bytes(part)
        with pytest.raises(tff_mf.InputError, match="is damaged, or no state of noise"):
            streams.load_state(damaged)
    safetensors.numpy.save_file({"theta": np.zeros(3)}, damaged)
    with pytest.raises(tff_mf.InputError, match="no state of noise"):
        streams.load_state(damaged)
    with pytest.raises(FileNotFoundError):
        streams.load_state(tmp_path / "none.safetensors")


DAMAGE = {
    "no round": lambda state: state.pop("round"),
    "round is damaged|keys is": lambda state: state.update(round=np.array(3)),
    "round=-1": lambda state: state.update(round=np.array(-1)),
    "round is int64 \\[1\\]": lambda state: state.update(round=np.array([2])),
    "keys is int64 \\[1, 2\\]": lambda state: state.update(keys=state["keys"][:1]),
    "row_3 is missing": lambda state: state.pop("row_3"),
    "row_9 must not be there": lambda state: state.update(row_9=state["row_0"]),
    "row_1 is float64": lambda state: state.update(row_1=state["row_1"].astype(np.float64)),
    "row_1 is float32 \\[5\\]": lambda state: state.update(row_1=state["row_1"][:5]),
    "state of type dict must be": lambda state: state.update(row_1=[0.0]),
    "state is of other noise": lambda state: state.update(fingerprint=state["fingerprint"] + 1),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_state_is_refused(message):
    stream = streams.build_stream(BLT, dimension=6, stddev=1.0)
    _, state = rows_of(stream, 2)
    DAMAGE[message](state)
    with pytest.raises(tff_mf.InputError, match=message.replace("no round", "round is missing")):
        stream.next(state)


def test_a_state_of_another_generator_or_grid_is_refused(generator):
    state = streams.build_stream(BLT, dimension=6, stddev=1.0, generator=generator).init()
    for other in ({"generator": each} for each in GENERATORS if each not in (generator, "aes")):
        with pytest.raises(tff_mf.InputError, match="other noise"):
            streams.build_stream(BLT, dimension=6, stddev=1.0, **other).next(state)
    for bits in (16, 17):
        grid = tff_mf.Grid(bits=bits, max_clients=100)
        with pytest.raises(tff_mf.InputError, match="other noise"):
            streams.build_stream(BLT, dimension=6, stddev=1.0, generator=generator, grid=grid).next(state)


def test_the_noise_does_not_share_memory_with_the_state(make_mechanism):
    """A caller who adds updates to the noise in place changes no later round."""
    stream = streams.build_stream(make_mechanism(6), dimension=3, stddev=1.0)
    _, state = rows_of(stream, 3)
    noise, after = stream.next(state)
    assert not any(np.shares_memory(noise, array) for array in after.values())


def test_repeated_keys_give_the_same_noise(make_mechanism):
    stream = streams.build_stream(make_mechanism(8), dimension=3, stddev=1.0)
    rows, state = rows_of(stream, 8)
    repeating = stream.repeating(state["keys"])
    np.testing.assert_array_equal(rows_of(repeating, 8)[0], rows)
    with pytest.raises(tff_mf.InputError, match="keys of 3 rounds"):
        rows_of(stream.repeating(state["keys"][:3]), 4)


def test_restarts_are_independent_streams():
    inner = streams.build_stream(tff_mf.Tree(4), dimension=5, stddev=2.0)
    stream = streams.RestartedStream(inner, restart_every=4, rounds=10)
    state, rows, drawn = stream.init(), [], []
    for _ in range(10):
        noise, after = stream.next(state)
        rows.append(noise)
        again = stream.replay(after["keys"], rounds_done=len(rows))
        assert again.keys() == after.keys()
        assert all(np.array_equal(again[name], after[name]) for name in after)
        # A restart forgets its keys, as the memory.
        drawn.append(after["keys"][-1] if len(after["keys"]) else None)
        state = after
    inverse = tff_mf.Tree(4).inverse(4)
    z = drawn_in_numpy(inner, np.array(drawn[:3]), 5) * 2.0
    assert_close(np.stack(rows[:3]), inverse[:3, :3] @ z)
    z = drawn_in_numpy(inner, np.array(drawn[8:]), 5) * 2.0
    assert_close(np.stack(rows[8:]), inverse[:2, :2] @ z)
    with pytest.raises(tff_mf.InputError, match="defined for 10 rounds"):
        stream.next(state)
    for other in (inner, streams.RestartedStream(inner, restart_every=3)):
        with pytest.raises(tff_mf.InputError, match=r"other noise|must not be there"):
            other.next(state)
    with pytest.raises(tff_mf.InputError, match="does not fit round"):
        stream.next(state | {"rounds_done": np.array(9)})
    for keys, done, message in (
        (state["keys"], 9, "do not fit"),
        (state["keys"][:1], 10, "do not fit"),
        (state["keys"], 14, "at most 10"),
        (np.zeros([5, 2], np.int64), 9, "more"),
    ):
        with pytest.raises(tff_mf.InputError, match=message):
            stream.replay(keys, rounds_done=done)
    with pytest.raises(tff_mf.InputError, match="rounds=5"):
        streams.RestartedStream(inner, restart_every=5)


def test_kinds_from_outside_have_the_rows_of_their_inverse():
    for mechanism, rounds in ((geometric(), 20), (any_matrix(mixed_matrix(40)), 40)):
        stream = streams.build_stream(mechanism, dimension=4, stddev=2.0)
        rows, state = rows_of(stream, rounds)
        z = drawn_in_numpy(stream, state["keys"], 4) * 2.0
        assert_close(rows, mechanism.cast_to_float32().inverse(rounds) @ z)


def test_a_matrix_without_an_end_has_no_rows():
    with pytest.raises(tff_mf.InputError, match="has no last round"):
        streams.build_stream(any_matrix(mixed_matrix(40), max_rounds=None), dimension=2, stddev=1.0)


def test_matrices_from_outside_that_do_not_fit_have_no_noise():
    mechanism = geometric(inverse_coefficients=lambda self, rounds: np.eye(rounds)[0])
    with pytest.raises(tff_mf.InputError, match="is not the inverse of its encoder"):
        streams.build_stream(mechanism, dimension=2, stddev=1.0)


def test_a_dense_mechanism_on_a_grid_is_for_small_models():
    with pytest.raises(tff_mf.InputError, match="dimension=10000000 is refused"):
        streams.build_stream(tff_mf.Dense(matrix=np.eye(40)), dimension=10**7, stddev=1.0, grid=GRID)


def test_a_forked_process_draws_other_keys():
    stream = streams.build_stream(tff_mf.Identity(), dimension=2, stddev=1.0)
    state, (read, write) = stream.init(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, stream.next(state)[1]["keys"].tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != stream.next(state)[1]["keys"].tobytes()


def test_streams_bring_in_no_framework():
    program = "import sys, tff_mf.noise.numpy; print([each for each in ('tensorflow', 'jax') if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(
        tff_mf.required_packages, "is_installed", lambda name: name not in ("cryptography", "tensorflow")
    )
    with pytest.raises(ImportError, match=r"pip install 'tff-mf\[aes\]'"):
        streams.build_stream(BLT, dimension=2, stddev=1.0, generator="aes")


def test_numpys_philox_is_the_one_that_it_was():
    """NumPy promises it; noise that is drawn again from its keys relies on it."""
    words = np.random.Philox(key=[1, 2], counter=[3, 0, 0, 0]).random_raw(64)
    assert hashlib.sha256(words.astype("<u8").tobytes()).hexdigest()[:16] == "138104ef669646fa"
