"""What noise in NumPy has of its own: states and their files, generators, restarts, and no TensorFlow."""

import os
import stat

import numpy as np
import pytest

import tff_mf
from tff_mf.noise import _generators
from tff_mf.noise import numpy as streams

from .test_noise_laws import BLT, GRID, NUMPY, STDDEV, Run, assert_same, rows_of

GENERATORS = ("philox", "aes", "tensorflow")


@pytest.fixture(params=GENERATORS)
def generator(request):
    if request.param == "aes":
        pytest.importorskip("cryptography")
    return request.param


def test_noise_of_a_generator(generator):
    dimension = 2**18 + 5 if generator == "tensorflow" else 2**16 + 4099
    Run(NUMPY, BLT, 3, dimension=dimension, generator=generator).assert_is_the_inverse_times_z()
    run = Run(NUMPY, tff_mf.Tree(3), 3, dimension=dimension, grid=GRID, generator=generator)
    z = NUMPY.drawn_again(run.stream, run.keys) * STDDEV * 2**GRID.bits
    assert np.abs(run.rows - tff_mf.Tree(3).inverse(3) @ z).max() < 5


def test_aes_is_the_block_cipher_of_the_counter():
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = np.array([-5, 2**40])
    words = _generators._AESWords(key)(2**62 + 7, 3)
    cipher = Cipher(algorithms.AES(key.astype("<i8").tobytes()), modes.ECB()).encryptor()
    blocks = b"".join((2**62 + 7 + index).to_bytes(16, "big") for index in range(2))
    assert words.tobytes() == cipher.update(blocks)[:24]


def test_tensorflows_normals_in_numpy():
    pytest.importorskip("tensorflow")
    from tff_mf.noise.tensorflow import build_stream

    for mechanism in (tff_mf.Identity(), BLT):
        arguments = {"dimension": 2**15 + 7, "stddev": 3.0, "insecure_seed": 5}
        ours, _ = rows_of(streams.build_stream(mechanism, generator="tensorflow", **arguments), 3)
        theirs, _ = rows_of(build_stream(mechanism, **arguments), 3)
        assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
def test_a_state_file_is_resumed(tmp_path, grid):
    stream = streams.build_stream(tff_mf.BandedToeplitz.square_root(40), dimension=6, stddev=1.0, grid=grid)
    _, state = rows_of(stream, 5)
    file = tmp_path / "noise.safetensors"
    streams.save_state(state, file)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    again = streams.load_state(file)
    assert again.keys() == state.keys()
    assert_same(NUMPY, again, state)
    assert not np.any(stream.next(again)[0] == stream.next(state)[0])


DAMAGE = {
    "no round": lambda state: state.pop("round"),
    "round is damaged|keys is": lambda state: state.update(round=np.array(3)),
    "keys is int64 \\[1, 2\\]": lambda state: state.update(keys=state["keys"][:1]),
    "row_3 is missing": lambda state: state.pop("row_3"),
    "row_9 must not be there": lambda state: state.update(row_9=state["row_0"]),
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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e300])
def test_a_row_that_is_not_finite_is_no_integer_noise(value):
    """Cast to integers, it would be the same number everywhere, and the sum would be released without noise."""
    stream = streams.build_stream(BLT, dimension=6, stddev=1.0, grid=tff_mf.Grid(bits=16, max_clients=100))
    _, state = rows_of(stream, 2)
    for places in (slice(None), 1):
        damaged = state["row_1"].copy()
        damaged[places] = value
        with np.errstate(all="ignore"), pytest.raises(tff_mf.InputError, match="state"):
            stream.next({**state, "row_1": damaged})


def test_a_state_of_another_generator_is_refused(generator):
    state = streams.build_stream(BLT, dimension=6, stddev=1.0, generator=generator).init()
    for other in ({"generator": each} for each in GENERATORS if each not in (generator, "aes")):
        with pytest.raises(tff_mf.InputError, match="other noise"):
            streams.build_stream(BLT, dimension=6, stddev=1.0, **other).next(state)


def test_the_noise_does_not_share_memory_with_the_state(make_mechanism):
    """A caller who adds updates to the noise in place changes no later round."""
    stream = streams.build_stream(make_mechanism(6), dimension=3, stddev=1.0)
    _, state = rows_of(stream, 3)
    noise, after = stream.next(state)
    assert not any(np.shares_memory(noise, array) for array in after.values())


@pytest.mark.parametrize(
    ("mechanism", "stddev"),
    [
        (tff_mf.Banded(values=[[3e38] * 8]), 5e37),
        (tff_mf.BandedToeplitz(column=[1e34]), 1.0),
        (tff_mf.Dense(matrix=np.diag([1.0, 1.0, 1e35])), 1.0),
        (tff_mf.ScaledBLT(theta=[0.5], omega=[0.5], scales=[1.0, 1e38]), 5e37),
    ],
)
def test_noise_that_would_be_divided_down_to_nothing_is_refused(mechanism, stddev):
    """Engines take numbers near the least one of float32 for 0, and the ε would be that of noise."""
    with pytest.raises(tff_mf.InputError, match="diagonal of C"):
        streams.build_stream(mechanism, dimension=3, stddev=stddev)
    streams.build_stream(mechanism, dimension=3, stddev=0.0)


def test_a_forked_process_draws_other_keys():
    stream = streams.build_stream(tff_mf.Identity(), dimension=2, stddev=1.0)
    state, (read, write) = stream.init(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, stream.next(state)[1]["keys"].tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != stream.next(state)[1]["keys"].tobytes()
