"""The ordinary context warns before slow rounds, and raises clear errors."""

import contextlib
import traceback
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import transfers

CONTEXTS = {"session": contextlib.nullcontext, "resident": aggregators.resident_context}


def process_of(mechanism, size):
    factory = aggregators.build_mf_aggregator(mechanism, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=1)
    return factory.create(tff.TensorType(np.float32, [size]))


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_round_after_the_last_raises_one_clear_error(context):
    with CONTEXTS[context]():
        process = process_of(tff_mf.Tree(2, variant="full"), 3)
        state = process.initialize()
        for _ in range(2):
            state = process.next(state, [np.ones(3, np.float32)]).state
        with pytest.raises(aggregators.NoRoundsLeftError) as caught:
            process.next(state, [np.ones(3, np.float32)])
    assert isinstance(caught.value, ValueError)
    assert "The tree mechanism is defined for 2 rounds" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "rpc" not in shown.replace("grpc.RpcError", "").lower().split("norounds")[-1]
    assert "block locals" not in shown
    assert "debug_error_string" not in shown


def test_other_errors_are_passed_on():
    @tff.tensorflow.computation(np.int32)
    def failing(value):
        with tf.control_dependencies([tf.debugging.assert_positive(value, message="must be above zero")]):
            return value + 1

    for context in CONTEXTS.values():
        with context(), pytest.raises(Exception, match="must be above zero") as caught:
            failing(-1)
        assert not isinstance(caught.value, aggregators.NoRoundsLeftError)


@contextlib.contextmanager
def recorded():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield lambda: [str(one.message) for one in found if one.category is aggregators.LargeStateWarning]


def test_the_warning_has_the_size_of_the_state():
    banded = tff_mf.Banded(values=np.ones((64, 100)))
    process = process_of(banded, 4_000_000)
    assert 63 * 4e6 * 4 <= transfers.state_bytes(process.initialize.type_signature.result) < 64 * 4e6 * 4
    with recorded() as messages:
        assert transfers.check(process.initialize)
        assert transfers.check(process_of(banded, 10_000_000).initialize)
    one, larger = messages()
    assert "about 35 to 101 s a round, and up to 14 GB" in one
    assert "2 GB" in larger


def test_no_warning_if_nothing_large_is_sent(monkeypatch):
    monkeypatch.setattr(transfers, "_LARGE_BYTES", 50_000)
    with recorded() as messages:
        small = process_of(tff_mf.BLT.production("b400"), 100)
        small.next(small.initialize(), [np.ones(100, np.float32)])
        with aggregators.resident_context():
            large = process_of(tff_mf.BLT.production("b400"), 5_000)
            large.next(large.initialize(), [np.ones(5_000, np.float32)])
        assert messages() == []


class _Context(tff.framework.SyncExecutionContext):
    """Takes the place of TFF's own context, which would start a worker."""

    def __init__(self):
        self.invoked = []

    def invoke(self, comp, arg):
        self.invoked.append(comp)


def test_tffs_own_context_warns_once_and_is_then_restored(monkeypatch):
    monkeypatch.setattr(transfers, "_LARGE_BYTES", 50_000)
    context = _Context()
    before = tff.framework.get_context_stack().current
    tff.framework.get_context_stack().set_default_context(context)
    try:
        with recorded() as messages:
            small = process_of(tff_mf.BLT.production("b400"), 100)
            assert "invoke" not in vars(context)
            for _ in range(2):
                large = process_of(tff_mf.BLT.production("b400"), 5_000)
            assert messages() == []
            small.initialize()
            assert messages() == []
            large.initialize()
            large.initialize()
            assert len(messages()) == 1
        assert context.invoked == [small.initialize, large.initialize, large.initialize]
        assert "invoke" not in vars(context)
    finally:
        tff.framework.get_context_stack().set_default_context(before)
