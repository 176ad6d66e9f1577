import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import forms


@pytest.fixture(scope="session", autouse=True)
def _tff():
    """One worker for all tests of the layer, since starting one takes seconds."""
    with aggregators.tff_session():
        yield


@pytest.fixture(scope="session")
def regression():
    """A small learning problem: builds its process, and has its clients' data and initial weights."""
    return Regression()


@pytest.fixture(scope="session")
def _parts():
    return functools.cache(forms.take_apart)


@pytest.fixture(scope="module")
def taken_apart_once(_parts):
    """Resident contexts of a module share the parts of computations, which each context would otherwise compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "take_apart", _parts)
        yield


def flat(structure):
    """All numbers of a structure of tensors, one after the other."""
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(structure)])


def noise_of(state):
    """The noise state in the state of a learning or aggregation process."""
    return getattr(state, "aggregator", state).query_state.numerator_state.noise


class Regression:
    def __init__(self):
        generator = np.random.default_rng(0)
        truth = generator.normal(size=(5, 1))
        self.clients = []
        for _ in range(8):
            features = generator.normal(size=(32, 5)).astype(np.float32)
            targets = (features @ truth).astype(np.float32)
            self.clients.append(tf.data.Dataset.from_tensor_slices((features, targets)).batch(8))
        shapes = [variable.shape for variable in self.model().trainable_variables]
        initial = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
        self.weights = tff.learning.models.ModelWeights(initial, [])

    def model(self):
        layers = [tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(4, activation="tanh")]
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)]),
            loss=tf.keras.losses.MeanSquaredError(),
            input_spec=(tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])),
        )

    def aggregator(self, mechanism=None, **changes):
        arguments = {"clip_norm": 1.0, "noise_multiplier": 0.5, "clients_per_round": 8, "insecure_seed": 3, **changes}
        return aggregators.build_mf_aggregator(mechanism or tff_mf.BLT.production("b400"), **arguments)

    def process(self, aggregator=None):
        """The process of an aggregator, or that of the default one, which has a fixed seed and is traced once."""
        return self._of(aggregator) if aggregator else self._default

    @functools.cached_property
    def _default(self):
        return self._of(self.aggregator())

    def _of(self, aggregator):
        return tff.learning.algorithms.build_unweighted_fed_avg(
            self.model,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.5),
            model_aggregator=aggregator,
        )
