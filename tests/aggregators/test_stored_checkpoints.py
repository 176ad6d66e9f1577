"""Checkpoints of earlier versions are loaded, and the rounds after them release what they would have released."""

import asyncio
import json

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators


def test_a_process_goes_on_from_them(stored, tmp_path):
    folder = stored.unpack("checkpoints", tmp_path)
    released = json.loads((folder / "released.json").read_text())
    assert not np.allclose(released[4], released[5], atol=1e-2)
    aggregator = aggregators.build_mf_aggregator(
        stored.folder / "artifacts" / "banded.safetensors",
        clip_norm=0.5,
        noise_multiplier=1.0,
        clients_per_round=4,
        insecure_seed=3,
    )
    with aggregators.tff_session():
        process = aggregator.create(tff.TensorType(np.float32, [5]))
        for rows in ("replay", "save"):
            manager = aggregators.CheckpointManager(folder / rows, aggregator=aggregator, rows=rows)
            state, version = asyncio.run(manager.load_latest(process.initialize()))
            assert version == 4
            for number in (5, 6):
                output = process.next(state, [np.full(5, 0.1 * number, np.float32)] * 4)
                state = output.state
                np.testing.assert_allclose(output.result, released[number - 1], rtol=1e-4, atol=1e-5)
            assert set(aggregators.rounds_drawn(state).values()) == {6}


def test_they_are_refused_for_other_noise(stored, tmp_path):
    folder = stored.unpack("checkpoints", tmp_path)
    aggregator = aggregators.build_mf_aggregator(
        stored.folder / "artifacts" / "banded.safetensors",
        clip_norm=0.5,
        noise_multiplier=2.0,
        clients_per_round=4,
        insecure_seed=3,
    )
    manager = aggregators.CheckpointManager(folder / "replay", aggregator=aggregator)
    with pytest.raises(tff_mf.InputError, match="noise"):
        asyncio.run(manager.load(4, None))
