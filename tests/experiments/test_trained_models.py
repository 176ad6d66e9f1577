"""Models for private training: what their training assigns to variables, except to metrics, is refused."""

import functools

import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.guard.inputs import checked_weights

layers = tf.keras.layers
SPEC = (tf.TensorSpec([None, 4, 4, 1]), tf.TensorSpec([None, 1]))


def of_keras(*between):
    """Returns a function that makes TFF's model of a Keras model, with the layers of these makers."""

    def model_fn():
        inputs = tf.keras.Input((4, 4, 1))
        outputs = inputs
        for make in between:
            outputs = make()(outputs)
        return tff.learning.models.from_keras_model(
            tf.keras.Model(inputs, layers.Dense(1)(layers.Flatten()(outputs))),
            tf.keras.losses.MeanSquaredError(),
            SPEC,
            metrics=[tf.keras.metrics.MeanAbsoluteError()],
        )

    return model_fn


class Jitter(layers.Layer):
    """A layer with a random generator, whose state is a variable that changes in every batch."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, inputs):
        return inputs + self.generator.normal(tf.shape(inputs))


class OwnModel(tff.learning.models.VariableModel):
    """A model of TFF without Keras, whose moving average is not in its list of variables."""

    def __init__(self, steps=0.1):
        self._weights, self._seen = tf.Variable(tf.zeros([16, 1])), tf.Variable(0, trainable=False)
        self._average, self._steps = tf.Variable(0.0, trainable=False, name="average"), steps

    trainable_variables = property(lambda self: [self._weights])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self._seen])
    input_spec = property(lambda self: SPEC)

    @tf.function
    def forward_pass(self, batch_input, training=True):
        x, y = batch_input
        self._seen.assign_add(tf.shape(x)[0])
        if training and self._steps:
            self._average.assign(self._average + self._steps * (tf.reduce_mean(x) - self._average))
        outputs = self.predict_on_batch(x, training)
        loss = tf.reduce_mean(tf.square(outputs - y))
        return tff.learning.models.BatchOutput(loss=loss, predictions=outputs, num_examples=tf.shape(x)[0])

    def predict_on_batch(self, x, training=True):
        return tf.reshape(x, [-1, 16]) @ self._weights - self._average

    def report_local_unfinalized_metrics(self):
        return {"seen": [self._seen]}

    def metric_finalizers(self):
        return {"seen": tf.function(lambda seen: seen[0])}

    def reset_metrics(self):
        self._seen.assign(0)


REFUSED = {
    "BatchNormalization": (of_keras(layers.BatchNormalization), "batch_normalization.*/moving_mean"),
    "inside of another model": (
        of_keras(lambda: tf.keras.Sequential([layers.Conv2D(2, 2), layers.BatchNormalization()])),
        "moving_mean",
    ),
    "a variable that the model does not list": (OwnModel, "average"),
}
TAKEN = {
    "frozen statistics": (of_keras(lambda: layers.BatchNormalization(trainable=False)), 17),
    "statistics that are never computed": (
        of_keras(lambda: functools.partial(layers.BatchNormalization(), training=False)),
        19,
    ),
    "group normalization": (of_keras(lambda: layers.GroupNormalization(groups=1)), 19),
    "random layers": (of_keras(lambda: layers.Dropout(0.5), layers.RandomFlip, Jitter), 17),
    "a model of one's own": (lambda: OwnModel(steps=0), 16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_training_assigns_to_variables_is_refused(name):
    model_fn, variable = REFUSED[name]
    with pytest.raises(tff_mf.InputError, match=f"{variable}.*GroupNormalization.*trainable=False"):
        checked_weights(model_fn)


@pytest.mark.parametrize("name", TAKEN)
def test_other_models_are_taken(name):
    model_fn, dimension = TAKEN[name]
    assert checked_weights(model_fn).dimension == dimension


SGD = tff.learning.optimizers.build_sgdm(0.1)
WAYS = {
    "private_fed_avg": lambda *given, **more: aggregators.private_fed_avg(*given, client_optimizer_fn=SGD, **more),
    "private_fed_sgd": aggregators.private_fed_sgd,
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written_of_a_run_whose_model_is_refused(way, tmp_path):
    plan = tff_mf.plan(
        mechanism="identity", rounds=2, clients_per_round=2, population=4, delta=1e-3, noise_multiplier=1
    )
    with pytest.raises(tff_mf.InputError, match="moving_mean"):
        WAYS[way](plan, REFUSED["BatchNormalization"][0], folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_returns_no_model_of_tff_is_refused():
    with pytest.raises(tff_mf.InputError, match=r"model_fn returns Sequential.*from_keras_model"):
        checked_weights(lambda: tf.keras.Sequential([layers.Dense(1)]))
