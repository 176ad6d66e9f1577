"""Flower's SecAgg+ does not compose with the strategy: what it does to integers of a grid, and what refuses it."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from tff_mf.base.errors import InputValueError

from .fleet import ARRAYS, NAMES, Fleet, rows
from .test_grid import BITS, opened, sent

LARGEST = 2**BITS


def test_the_strategy_refuses_the_workflow_by_name(tmp_path):
    with opened(tmp_path) as strategy, pytest.raises(InputValueError, match=r"SecAgg\+"):
        # What `SecAggPlusWorkflow` calls first.
        strategy.configure_fit(1, None, None)
    assert rows(tmp_path) == []


def test_a_node_with_the_mod_sends_nothing(tmp_path):
    """The mod looks for its own stage in the message, and raises: Flower sends an error, and no reply is counted."""
    app = ClientApp(mods=[secaggplus_mod])

    @app.train()
    def train(message, context):
        raise AssertionError("never called")

    def answer(name, arrays, config):
        content = RecordDict({"config": ConfigRecord(config)})
        message = Message(content, 7, "train")
        message.metadata.__dict__["_message_id"] = "one"
        with pytest.raises(KeyError, match="secaggplus_configs"):
            app(message, Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={}))

    with opened(tmp_path) as strategy:
        strategy.start(Fleet(NAMES, answer), num_rounds=1)
    assert strategy.rounds_released == 1


def test_quantizing_keeps_integers_only_at_a_scale_of_one():
    values = [leaf.astype(np.float64) for leaf in sent("node 1", ARRAYS).values()]
    (kept,) = quantize([values[0]], float(LARGEST), 2 * LARGEST)
    np.testing.assert_array_equal(kept - LARGEST, values[0])
    # Flower's own range of ±8 with 2²² steps clips all but a few of them, coordinate by coordinate.
    (changed,) = dequantize(quantize([values[0]], 8.0, 2**22), 8.0, 2**22)
    assert np.abs(changed).max() <= 8 < np.abs(values[0]).min()
    # Any other scale rounds at random, by a generator that is neither secret nor the guarantee's.
    np.random.seed(0)  # noqa: NPY002
    others = [quantize([values[0]], float(LARGEST), LARGEST + 1)[0] for _ in range(2)]
    assert not np.array_equal(*others)


def test_no_bound_holds_for_a_masked_vector():
    """A node adds what it likes to the sum modulo 2³²: the server sees it only in the sum, and cannot clip it."""
    honest, hostile, modulus = np.array([3, -4]), np.array([2**30, -(2**30)]), 2**32
    mask = pseudo_rand_gen(b"0123" * 8, modulus, [(2,)])[0]
    masked = (honest + mask) % modulus, (hostile - mask) % modulus
    total = (sum(masked) + modulus // 2) % modulus - modulus // 2
    np.testing.assert_array_equal(total, honest + hostile)
    assert np.linalg.norm(total) > LARGEST


def test_masks_have_32_bits():
    """Seeds of 256 bits become 32 by XOR: two of them can give one mask, and 2³² trials remove any."""
    first = bytes(range(32))
    second = first[4:] + first[:4]
    assert first != second
    masks = [pseudo_rand_gen(seed, 2**32, [(5,)])[0] for seed in (first, second)]
    np.testing.assert_array_equal(*masks)
