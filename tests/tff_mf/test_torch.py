"""Noise in PyTorch beyond the laws of all engines, and central training, against NumPy and plain loops."""

import concurrent.futures
import pickle
import time
from copy import deepcopy

import numpy as np
import pytest

import tff_mf

torch = pytest.importorskip("torch")

from tff_mf.frameworks.torch import CorrelatedNoise  # noqa: E402
from tff_mf.noise import numpy as streams  # noqa: E402
from tff_mf.noise import torch as in_torch  # noqa: E402
from tff_mf.numerics import normals  # noqa: E402

from .test_frameworks import plan  # noqa: E402

BLT = tff_mf.BLT.production("b100")
CPU = torch.device("cpu")


def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, dtype=torch.bfloat16))


@pytest.mark.parametrize("dimension", [1, 3, 2**18 + 3])
def test_normals_of_accelerators_are_those_of_numpy(dimension):
    for seed in range(3):
        key = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, 2)
        np.testing.assert_array_equal(in_torch.exact_normal(key, dimension, CPU), normals.draw(key, dimension))
        stream = streams.build_stream(tff_mf.Identity(), dimension=dimension, stddev=1.0, generator="tensorflow")
        expected = stream.repeating(key[np.newaxis]).next(stream.init())[0]
        np.testing.assert_allclose(in_torch.standard_normal(key, dimension, CPU), expected, atol=2e-6)


def test_deep_levels_are_those_of_numpy(monkeypatch):
    """Words that descend to the last level are drawn once in 10⁴⁰ rows: here all words are such."""
    drawn, of_blocks = normals.words, in_torch._Generator.words

    def descending(key, block, count):
        return np.full(count, 2**63 - 1) if block >> normals.LEVEL_BITS else drawn(key, block, count) | 511

    def words(self, block):
        found = of_blocks(self, block)
        return torch.full_like(found, 2**63 - 1) if int(block[0]) >> normals.LEVEL_BITS else found | 511

    monkeypatch.setattr(normals._philox, "words", descending)
    monkeypatch.setattr(in_torch._Generator, "words", words)
    key = np.array([1, 2])
    expected = normals.draw(key, 64)
    assert np.all(np.abs(expected) > 13)
    np.testing.assert_array_equal(in_torch.exact_normal(key, 64, CPU), expected)


def test_memory_that_somebody_holds_is_not_used_again():
    stream = in_torch.build_stream(BLT, dimension=50, stddev=1.0)
    rows, states = [], [stream.init()]
    for _ in range(40):
        row, state = stream.next(states[-1])
        # A view, an array, and a state.
        held = (row[3:], row.numpy()[3:], row)[len(rows) % 3]
        rows.append((held, np.array(held)))
        states.append(state)
        del row, state
    copies = [{name: value.clone() for name, value in state.items()} for state in states]
    for _ in range(5):
        stream.next(states[-1])
    for held, copy in rows:
        np.testing.assert_array_equal(held, copy)
    for state, copy in zip(states, copies, strict=True):
        assert all(torch.equal(state[name], copy[name]) for name in copy)


@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=100)], ids=["floats", "grid"])
@pytest.mark.parametrize("mechanism", [BLT, tff_mf.BandedToeplitz.square_root(3)], ids=lambda each: each.kind)
def test_what_is_done_to_a_row_is_not_done_to_the_memory(mechanism, grid):
    setting = {"dimension": 9, "stddev": 1.0, "grid": grid, "insecure_seed": 1}
    rows = []
    for change in (0.0, 1e6):
        stream = in_torch.build_stream(mechanism, **setting)
        row, state = stream.next(stream.init())
        row += change
        rows.append(stream.next(state)[0])
    assert torch.equal(*rows)


def test_no_two_rounds_go_on_from_one_state(monkeypatch):
    """Neither those of two threads nor those of two copies: their difference would have little noise in it."""
    noise, step = CorrelatedNoise(plan(), model().parameters()), in_torch.NoiseStream.next
    monkeypatch.setattr(in_torch.NoiseStream, "next", lambda stream, state: (time.sleep(0.01), step(stream, state))[1])
    sums = [torch.zeros(parameter.shape) for parameter in noise._parameters]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(noise.apply, [sums] * 6))
    assert noise.rounds == 6
    for copied in (deepcopy, pickle.dumps):
        with pytest.raises(tff_mf.InputError, match="cannot be copied"):
            copied(noise)


def test_a_second_process_would_draw_keys_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(tff_mf.InputError, match="one_process=False, and 2 processes"):
        in_torch.build_stream(BLT, dimension=3, stddev=1.0)
    stream = in_torch.build_stream(BLT, dimension=3, stddev=1.0, one_process=True)
    stream.next(stream.init())
    alone = CorrelatedNoise(plan(), torch.nn.Linear(3, 1).parameters(), one_process=True)
    alone._stream._one_process = False
    with pytest.raises(tff_mf.InputError, match="2 processes"):
        alone.apply([torch.zeros(1, 3), torch.zeros(1)])


def test_a_round_is_not_recorded(monkeypatch):
    """Each replay would release another sum with the same noise."""
    stream = in_torch.build_stream(BLT, dimension=3, stddev=1.0)
    state = stream.init()
    with pytest.raises(tff_mf.InputError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda total: total + stream.next(state)[0], torch.zeros(3))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    stream.next(state)
    stream._device = torch.device("cuda")
    with pytest.raises(tff_mf.InputError, match="CUDA graph"):
        stream.next(state)
