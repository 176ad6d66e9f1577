"""A round of the same arithmetic in a plain `tf.function`, without TFF."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainRound:
    """Clients with SGD, clipped updates, one noise, and momentum on the server.

    Attributes:
        model: The model, whose variables are used.
        batch: Sentences of a step.
        client_rate: Rate of the clients' SGD.
        clip_norm: Bound on the norm of a client's update.
        noise: Standard deviation of the noise of the sum.
        momentum: Momentum of the server, whose rate is 1.
    """

    model: tf.keras.Model
    batch: int
    client_rate: float
    clip_norm: float = 1.0
    noise: float = 0.1
    momentum: float = 0.9

    def build(
        self, clients: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[Callable[[int], object], list[tf.Variable]]:
        """Returns a function that runs a round with so many of the clients, and the server's variables.

        Args:
            clients: Words and those that follow them, `[sentences, length]`, of each client.
        """
        variables = self.model.trainable_variables
        start = [tf.Variable(variable) for variable in variables]
        total, velocity = ([tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2))

        @tf.function(autograph=False)
        def client(words: tf.Tensor, following: tf.Tensor) -> None:
            for variable, given in zip(variables, start, strict=True):
                variable.assign(given)
            self._train(words, following)
            changes = [variable - given for variable, given in zip(variables, start, strict=True)]
            scale = tf.minimum(1.0, self.clip_norm / tf.linalg.global_norm(changes))
            for variable, change in zip(total, changes, strict=True):
                variable.assign_add(scale * change)

        @tf.function(autograph=False)
        def server(number: tf.Tensor, key: tf.Tensor) -> None:
            for variable, added, speed in zip(start, total, velocity, strict=True):
                noise = self.noise * tf.random.stateless_normal(tf.shape(added), key)
                speed.assign(self.momentum * speed + (added + noise) / number)
                variable.assign_add(speed)
                added.assign(tf.zeros_like(added))

        data = [(tf.constant(words), tf.constant(following)) for words, following in clients]

        def one_round(number: int) -> object:
            for words, following in data[:number]:
                client(words, following)
            server(tf.constant(float(number)), tf.constant([1, 2]))
            return start[0].numpy()

        return one_round, start

    def _train(self, words: tf.Tensor, following: tf.Tensor) -> None:
        def batch(number: tf.Tensor) -> tf.Tensor:
            part = slice(number * self.batch, (number + 1) * self.batch)
            self._step(words[part], following[part])
            return number + 1

        steps = tf.shape(words)[0] // self.batch
        tf.while_loop(lambda number: number < steps, batch, [0], parallel_iterations=1)

    def _step(self, words: tf.Tensor, following: tf.Tensor) -> None:
        variables = self.model.trainable_variables
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        with tf.GradientTape() as tape:
            value = loss(following, self.model(words, training=True))
        for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                changes = tf.IndexedSlices(self.client_rate * gradient.values, gradient.indices)
                variable.scatter_sub(changes)
            else:
                variable.assign_sub(self.client_rate * gradient)
