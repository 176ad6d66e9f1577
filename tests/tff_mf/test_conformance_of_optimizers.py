"""Central training in JAX and PyTorch, ours and others', judged by the conformance check."""

import numpy as np
import pytest

from tff_mf import conformance
from tff_mf.conformance import adapters

from .test_frameworks import plan

LIKE = [np.zeros((20, 10), np.float32), np.zeros(10, np.float32)]
CLAIM = {"clip_norm": 0.7, "noise_multiplier": 0.5, "divisor": 4.0}
PLAN = {"clip_norm": 0.7, "noise_multiplier": 0.5, "grid": None}
FLOATS = ("last_round", "low_bits")


def judged(subject, *not_promised, laws=tuple(conformance.LAWS), effort=0.03, **claim):
    claim = conformance.Claim(**{**CLAIM, **claim}, not_promised=not_promised)
    return conformance.check(subject, claim, like=LIKE, effort=effort, clients=8, laws=laws)


class OfTorch:
    """Our noise in PyTorch, whose state goes out of it and in again."""

    def __init__(self, private):
        torch = pytest.importorskip("torch")
        self.private, self.parameters = private, [torch.nn.Parameter(torch.zeros(part.shape)) for part in LIKE]

    def noise(self):
        from tff_mf.frameworks.torch import CorrelatedNoise

        return CorrelatedNoise(self.private, self.parameters)

    def start(self):
        return self.noise().state_dict()

    def step(self, state, updates):
        from tff_mf.frameworks.torch import clipped_sum, torch

        noise = self.noise()
        noise.load_state_dict(state)
        stacked = [torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*updates, strict=True)]
        noise.apply(clipped_sum(stacked, self.private.clip_norm))
        return noise.state_dict(), [parameter.grad.numpy().copy() for parameter in self.parameters]


def test_our_noise_in_torch_keeps_its_claim():
    private = plan(**PLAN)
    verdict = judged(OfTorch(private), "low_bits", mechanism=private.mechanism, rounds=6)
    assert verdict.status != "failed", str(verdict)
    assert {outcome.law for outcome in verdict.outcomes if outcome.status == "not judged"} <= {"processes"}


def test_our_noise_in_optax_keeps_its_claim():
    optax = pytest.importorskip("optax")
    pytest.importorskip("jax", minversion="0.10")
    from tff_mf.frameworks.optax import clipped_sum, correlated_noise

    private = plan(**PLAN)
    clip = optax.stateless(lambda gradients, _: clipped_sum(gradients, private.clip_norm))
    # One for all starts, since JAX compiles functions of each anew.
    transformation = optax.chain(clip, correlated_noise(private))
    subject = adapters.of_stacked(lambda: transformation, LIKE)
    # JAX takes long for each of its functions, which are not compiled together.
    verdict = judged(subject, "low_bits", mechanism=private.mechanism, rounds=6, effort=0.01)
    assert verdict.status != "failed", str(verdict)
    assert {outcome.law for outcome in verdict.outcomes if outcome.status == "not judged"} <= {"processes"}


def test_private_aggregation_of_optax_draws_from_a_seed():
    optax = pytest.importorskip("optax")
    seeds = np.random.default_rng()

    def seeded():
        return optax.contrib.differentially_private_aggregate(0.7, 0.5, int(seeds.integers(2**31)))

    verdict = judged(adapters.of_stacked(seeded, LIKE), divisor=8.0, laws=["scale", "correlation", "fresh"])
    assert [outcome.status for outcome in verdict.outcomes] == ["passed", "passed", "failed"], str(verdict)
    assert "stepped twice" in str(verdict["fresh"])
