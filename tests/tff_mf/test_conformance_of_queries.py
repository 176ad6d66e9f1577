"""Our queries, and an optimizer of TensorFlow Privacy, judged by the conformance check."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tfp = pytest.importorskip("tensorflow_privacy")

import tff_mf  # noqa: E402
from tff_mf import conformance, queries  # noqa: E402
from tff_mf.conformance import adapters  # noqa: E402

LIKE = [np.zeros((20, 10)), np.zeros(10)]
SPECS = [tf.TensorSpec(part.shape) for part in LIKE]
CLAIM = {"clip_norm": 0.7, "noise_multiplier": 0.8, "rounds": 6}
MECHANISMS = {
    "banded": tff_mf.BandedToeplitz.square_root(3),
    "blt": tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5]),
    "tree": tff_mf.Tree(6),
}


# In CI, on a grid: the aggregator of these queries is judged in floats too.
@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("grid", [tff_mf.Grid(bits=12, max_clients=40), None], ids=["grid", "floats"])
def test_our_queries_keep_their_claim(name, grid):
    query = queries.build_query(MECHANISMS[name], record_specs=SPECS, grid=grid, clip_norm=0.7, noise_multiplier=0.8)
    claim = conformance.Claim(
        mechanism=MECHANISMS[name], grid=grid, not_promised=() if grid else ("low_bits",), **CLAIM
    )
    subject = adapters.of_query(query.limited_to(CLAIM["rounds"]), LIKE)
    verdict = conformance.check(subject, claim, like=LIKE, effort=0.03)
    assert verdict.status != "failed", str(verdict)
    assert [outcome.law for outcome in verdict.outcomes if outcome.status == "not judged"] == ["processes"]


def test_a_keras_optimizer_of_tensorflow_privacy_divides_by_who_reports():
    def build(clients):
        return tfp.DPKerasSGDOptimizer(0.7, 0.8, num_microbatches=clients, learning_rate=1.0)

    claim, laws = conformance.Claim(**CLAIM, divisor=8.0), ["scale", "correlation", "fresh", "divisor"]
    verdict = conformance.check(adapters.of_keras(build, LIKE), claim, like=LIKE, effort=0.03, clients=8, laws=laws)
    assert [outcome.status for outcome in verdict.outcomes] == [*["passed"] * 3, "failed"], str(verdict)
