"""Noise in PyTorch beyond the laws of all engines, and central training, against NumPy and plain loops."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tff_mf

torch = pytest.importorskip("torch")

from tff_mf.noise import numpy as streams  # noqa: E402
from tff_mf.noise import torch as in_torch  # noqa: E402
from tff_mf.noise.torch import _normals  # noqa: E402
from tff_mf.numerics import normals  # noqa: E402
from tff_mf.torch import CorrelatedNoise, clipped_sum  # noqa: E402

from .test_frameworks import plan  # noqa: E402

BLT = tff_mf.BLT.production("b100")
CPU = torch.device("cpu")


def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, dtype=torch.bfloat16))


@pytest.mark.parametrize("dimension", [1, 3, 2**18 + 3])
def test_normals_of_accelerators_are_those_of_numpy(dimension):
    for seed in range(3):
        key = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, 2)
        np.testing.assert_array_equal(_normals.exact_normal(key, dimension, CPU), normals.draw(key, dimension))
        stream = streams.build_stream(tff_mf.Identity(), dimension=dimension, stddev=1.0, generator="tensorflow")
        expected = stream.repeating(key[np.newaxis]).next(stream.init())[0]
        np.testing.assert_allclose(_normals.standard_normal(key, dimension, CPU), expected, atol=2e-6)


def test_deep_levels_are_those_of_numpy(monkeypatch):
    """Words that descend to the last level are drawn once in 10⁴⁰ rows: here all words are such."""
    drawn, of_blocks = normals.words, _normals._Generator.words

    def descending(key, block, count):
        return np.full(count, 2**63 - 1) if block >> normals.LEVEL_BITS else drawn(key, block, count) | 511

    def words(self, block):
        found = of_blocks(self, block)
        return torch.full_like(found, 2**63 - 1) if int(block[0]) >> normals.LEVEL_BITS else found | 511

    monkeypatch.setattr(normals._philox, "words", descending)
    monkeypatch.setattr(_normals._Generator, "words", words)
    key = np.array([1, 2])
    expected = normals.draw(key, 64)
    assert np.all(np.abs(expected) > 13)
    np.testing.assert_array_equal(_normals.exact_normal(key, 64, CPU), expected)


@pytest.mark.parametrize("name", ["philox", "tensorflow"])
@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=100)], ids=["floats", "grid"])
def test_rows_are_those_of_numpy_for_every_generator(name, grid):
    setting = {"dimension": 1000, "stddev": 1.0, "grid": grid, "insecure_seed": 1, "generator": name}
    ours, same = (each.build_stream(tff_mf.Tree(20), **setting) for each in (in_torch, streams))
    state, expected = ours.init(), same.init()
    for _ in range(20):
        (row, state), (other, expected) = ours.next(state), same.next(expected)
        np.testing.assert_allclose(row, other, atol=1e-5 if grid is None else 0)


def test_weights_of_one_take_nothing_from_the_draw():
    """Where a product is left out: -1 and 1, of one row and of several."""
    for column in ([2.0, -2.0], [2.0, -2.0, -2.0, 2.0], [1.0, 1.0, -1.0]):
        setting = {"dimension": 100, "stddev": 1.0, "insecure_seed": 1, "generator": "philox"}
        mechanism = tff_mf.BandedToeplitz(column=column)
        ours, same = (each.build_stream(mechanism, **setting) for each in (in_torch, streams))
        state, expected = ours.init(), same.init()
        for _ in range(6):
            (row, state), (other, expected) = ours.next(state), same.next(expected)
            np.testing.assert_allclose(row, other, rtol=1e-5, atol=1e-5)


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
    given = {stream.next(states[-1])[0].data_ptr() for _ in range(5)}
    assert len(given) < 5


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


def test_a_compiled_step_draws_a_key_each_round():
    trained = torch.nn.Linear(3, 1)
    noise = CorrelatedNoise(plan(), trained.parameters())
    step = torch.compile(lambda: noise.apply([torch.zeros(1, 3), torch.zeros(1)]), backend="eager")
    for _ in range(3):
        step()
    assert len(torch.unique(noise.state_dict()["keys"])) == 6


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


# Two processes, the second one forked before PyTorch has threads.
TOGETHER = """
import os, sys, torch, tff_mf
from tff_mf.torch import CorrelatedNoise
rank = 0 if (child := os.fork()) else 1
together = torch.distributed
together.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
plan = tff_mf.plan(mechanism="identity", rounds=2, sampling=tff_mf.SingleParticipation(), delta=1e-5,
                   clients_per_round=4, noise_multiplier=3.0)
parameters = list(torch.nn.Linear(3, 1).parameters())
try: CorrelatedNoise(plan, parameters)
except tff_mf.InputError as error: assert "one_process=False" in str(error)
else: raise SystemExit("not refused")
noise = CorrelatedNoise(plan, parameters, one_process=True) if rank == 0 else None
for _ in range(2):
    sums = [torch.full_like(each, 1e6 * (1 + rank), requires_grad=False) for each in parameters]
    for each in sums: together.reduce(each, 0)
    if noise: noise.apply(sums)
    for each in parameters:
        each.grad = each.grad if noise else torch.empty_like(each)
        together.broadcast(each.grad, 0)
        both = [torch.empty_like(each), torch.empty_like(each)]
        together.all_gather(both, each.grad)
        assert torch.equal(*both) and torch.allclose(both[0], torch.tensor(3e6 / 4), rtol=1e-4)
assert not noise or noise.rounds == 2
together.destroy_process_group()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""


def test_two_processes_have_one_noise(tmp_path):
    """Sums are added up in one of them, and its noised gradients go to the others."""
    command = [sys.executable, "-P", "-c", TOGETHER, str(tmp_path / "store")]
    subprocess.run(command, check=True, timeout=100, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})


def test_a_gradient_scaler_takes_its_scale_from_signal_and_noise_alike():
    trained = torch.nn.Linear(3, 1)
    noise, descent = CorrelatedNoise(plan(), trained.parameters()), torch.optim.SGD(trained.parameters(), lr=1.0)
    scaler, before = (
        torch.amp.GradScaler("cpu", init_scale=8.0),
        [each.detach().clone() for each in trained.parameters()],
    )
    scaler.scale(torch.zeros([]))
    noise.apply([torch.ones(1, 3), torch.ones(1)])
    noised = [each.grad.clone() for each in trained.parameters()]
    scaler.step(descent)
    for old, new, mean in zip(before, trained.parameters(), noised, strict=True):
        torch.testing.assert_close(new.detach(), old - mean / 8)


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


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: CorrelatedNoise(plan(), []), "parameters"),
        (lambda: CorrelatedNoise("plan", model().parameters()), "plan="),
        (lambda: CorrelatedNoise(plan(), model().parameters()).apply([torch.zeros(2)]), r"sums .* \[\(2,\)\]"),
    ],
)
def test_bad_arguments_are_refused(call, named):
    with pytest.raises(tff_mf.InputError, match=named):
        call()


@pytest.mark.parametrize("clip_norm", [1e-6, 1.0, 1e6])
def test_no_norm_exceeds_the_clip_norm_by_a_factor_of_few_digits(clip_norm):
    """Factors below 2⁻¹²⁶ are rounded to multiples of 2⁻¹⁴⁹: a term of 17 values had nearly twice the norm."""
    largest = float(np.finfo(np.float32).max)
    for size in (1, 2, 17, 10**6):
        for value in largest / np.array([1, 2, 3, 10, 1e3, 1e6]):
            (found,) = clipped_sum([torch.full((1, size), value, dtype=torch.float32)], clip_norm)
            assert torch.linalg.norm(found.to(torch.float64)) <= clip_norm
