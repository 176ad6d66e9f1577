"""Training of a Keras model in which every example of one data set is protected."""

import functools
import hashlib
import os
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tff_mf.base import checkpoint_files, files, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.frameworks.keras import _checks
from tff_mf.frameworks.keras._clipped_sum import ClippedSum
from tff_mf.frameworks.order import Order
from tff_mf.planning import Plan
from tff_mf.problem.cohort_secret import CohortSecret
from tff_mf.queries import build_query

# Of the identifier of a training's secret, before its key.
_RUN_BYTES = 16


class Training:
    """Trains a compiled Keras model on arrays, with the noise of any mechanism.

    In each round, the gradients of the examples in its batch are clipped one by one and added up; noise is added to the
    sum; and the model's own optimizer gets the result, divided by the constant batch size. The data, the order and the
    state of the noise belong to this object: no argument of `fit` can change them. The state is in variables that are
    not part of the model, so that nothing that Keras saves contains a key of the noise.

    Formal guarantee: the weights after every round, and everything computed from them, have the plan's `guarantee`,
    amplified where batches are secret. An example takes the place of a client: zero-out sets its gradients to zero in
    all rounds. This holds for any number of calls of `fit`, also after errors: each execution of a round draws fresh
    noise, and the graph refuses more rounds than the plan has. It assumes that the initial weights, the settings and
    what callbacks compute do not depend on the examples, and that nothing else about the examples is released. Training
    metrics are exact, and are therefore not computed. Random layers whose seed is known are refused with sampled
    batches, as far as the graph shows it: not augmentation layers that draw from a `tf.random.Generator`. Secret
    batches follow from a key of this training alone, which checkpoints have. After `restore`, it holds if nothing was
    released that was computed after the checkpoint.

    Args:
        model: A built and compiled Keras model. Its optimizer may be any; its loss is applied to single examples, and
            its metrics are used for validation only. Refused models: see `ClippedSum`; and those that `fit` of Keras
            trains otherwise, by `loss_weights`, several outputs, a `train_step` of their own or averages of weights.
        x: Inputs: a structure of arrays, each with one entry for each example.
        y: Targets: a structure of arrays, each with one entry for each example.
        plan: The plan, without a grid, with examples as its clients: `clients_per_round` is the size of a batch, on
            average if it samples at random.
        seed: Seed of the order of the examples, where it may be known: see `tff_mf.Order`.

    Example:
        >>> import tff_mf
        >>> from tff_mf.frameworks import keras
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        >>> model.compile("sgd", "mean_squared_error")
        >>> plan = tff_mf.plan(mechanism=tff_mf.BLT(theta=[0.9], omega=[0.1]), rounds=6, epsilon=8.0, delta=1e-3,
        ...                    sampling=tff_mf.FixedEpoch(min_sep=3, max_participations=2), clients_per_round=4)
        >>> training = keras.Training(model, tf.ones([12, 2]), tf.ones([12, 1]), plan)
        >>> _ = training.fit()
        >>> training.rounds, plan.epsilon <= 8.0
        (6, True)

    Raises:
        InputValueError: If an array has not one entry for each example, the model is refused, δ is not below
            1 / examples, the plan has a grid, or `Order.of` refuses it.
    """

    def __init__(self, model: tf.keras.Model, x: Any, y: Any, plan: Plan, *, seed: int = 0) -> None:
        if not tf.executing_eagerly():
            raise InputValueError("a Training must be made eagerly: make it outside of any tf.function or graph.")
        _checks.check_compiled(model)
        self._examples = _tensors(x, y)
        self._order = Order.of(plan, examples=len(tf.nest.flatten(self._examples)[0]), seed=seed)
        if plan.grid is not None:
            raise InputValueError(
                f"grid={plan.grid!r} of the plan is not supported with Keras: make the plan without grid and "
                "dimension, or train with tff_mf.frameworks.torch or tff_mf.frameworks.optax."
            )
        if plan.delta * self._order.examples >= 1:
            raise InputValueError(
                f"delta={plan.delta!r} of the plan is not below 1/examples=1/{self._order.examples}: it would allow "
                "one example to be published. Take a smaller delta."
            )
        self._clipped_sum = ClippedSum(model, model.loss, clip_norm=plan.clip_norm)
        self._model, self._optimizer, self._variables = model, model.optimizer, model.trainable_variables
        if hasattr(self._optimizer, "build"):
            self._optimizer.build(self._variables)
        query = build_query(
            plan.mechanism,
            record_specs=[tf.TensorSpec(variable.shape, variable.dtype) for variable in self._variables],
            clip_norm=plan.clip_norm,
            noise_multiplier=plan.noise_multiplier,
            insecure_seed=plan.insecure_seed,
        )
        self._query = query.bound_to(self._order.fingerprint.hex()).limited_to(plan.rounds)
        self._secret = _variable(_words(CohortSecret.drawn()))
        # Refuses a sampling that the examples cannot fill.
        self._batches(0, 1)
        self._state = tf.nest.map_structure(_variable, self._query.initial_global_state())
        self._lock, self._torn, self._restored = threading.RLock(), False, True

    @property
    def model(self) -> tf.keras.Model:
        """The model."""
        return self._model

    @property
    def order(self) -> Order:
        """The order of the examples."""
        return self._order

    @property
    def rounds(self) -> int:
        """Number of rounds whose noise has been drawn."""
        return int(self._state.noise.round)

    def fit(
        self,
        *,
        epochs: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
        **refused: Any,
    ) -> tf.keras.callbacks.History:
        """Trains for some epochs, and returns the history of validation, as `fit` of a Keras model does.

        After each epoch, the model is evaluated on `validation_data`, and callbacks of Keras are called: for epochs
        only, not for single batches. No metric of the training examples is computed.

        Args:
            epochs: How many epochs to train; all that remain if `None`.
            validation_data: (x, y), or a `tf.data.Dataset` of batches, of other examples, which are not protected.
            callbacks: Callbacks of Keras, such as `tf.keras.callbacks.EarlyStopping`.
            refused: Other arguments of Keras's `fit`, which are refused with the reason.

        Raises:
            InputTypeError: If there is no such argument.
            InputValueError: If the order has fewer epochs left.
        """
        if refused:
            raise InputTypeError(
                f"{', '.join(refused)}: no argument of this Training.fit. Batches follow from the order; write weights "
                "of classes or examples into a loss of your own, and pass validation_data of other examples."
            )
        if any(isinstance(callback, tf.keras.callbacks.BackupAndRestore) for callback in callbacks):
            raise InputValueError(
                "callbacks has a BackupAndRestore, which restores the weights but not the noise, so that all rounds "
                "would run again: call Training.save and restore instead."
            )
        last = self._last_round(epochs)
        history = tf.keras.callbacks.History()
        called = tf.keras.callbacks.CallbackList([*callbacks, history], model=self._model)
        self._model.stop_training = False
        called.on_train_begin()
        while self.rounds < last and not self._model.stop_training:
            epoch = self.rounds // self.order.epoch_rounds
            called.on_epoch_begin(epoch)
            self._train(min(last, (epoch + 1) * self.order.epoch_rounds))
            called.on_epoch_end(epoch, self._validated(validation_data))
        called.on_train_end()
        return history

    def save(self, path: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint: weights, variables of the optimizer, and the state of the noise.

        Only the file's owner can read it (mode 0600). It is as secret as the examples: with it, the noise can be
        removed from every released model. It replaces an earlier one atomically. Save before you release anything, and
        keep no copies: two trainings that continue from one checkpoint are not covered by one guarantee.

        Args:
            path: The file.
            about: Facts to keep in it, as JSON.

        Raises:
            OSError: If it cannot be written.
        """
        with self._lock:
            self._settle()
            arrays = {name: variable.numpy() for name, variable in self._named().items()}
            description = {"training": self._identity(), "about": about or {}}
            checkpoint_files.write(pathlib.Path(path), arrays, description, replaces=True)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continues from a checkpoint, in a new object with the same arguments.

        Formal guarantee: as for the class, if nothing was released that was computed after the checkpoint. The rounds
        after it are run again with fresh noise on the same past. A checkpoint in which any bit has changed, or with
        another mechanism, noise, order or data, is refused.

        Args:
            path: The file that `save` wrote.

        Raises:
            InputValueError: If the file is not an intact checkpoint of such a training, or rounds have run in this
                object.
        """
        if self.rounds or not self._restored:
            raise InputValueError(
                f"{self.rounds} rounds have run: restore into a new Training, made with the same arguments."
            )
        path = pathlib.Path(path)
        files.remove_unfinished(path.parent)
        arrays, description = checkpoint_files.read(path)
        if description.get("training") != self._identity():
            raise InputValueError(
                f"{path}: it is of another training. Pass the same model, arguments and examples in the same order: an "
                "example that changes its place would take part in other rounds."
            )
        variables = self._named()
        self._restored = False
        for name, array in arrays.items():
            variables[name].assign(array)
        self._restored = True

    def _identity(self) -> str:
        """Returns a digest of the model's form, the noise and the examples, which a checkpoint must share."""
        digest = hashlib.sha256(self._query.fingerprint)
        for name, variable in self._named().items():
            digest.update(f"{name} {variable.dtype.name} {variable.shape}".encode())
        for tensor in tf.nest.flatten(self._examples):
            array = tensor.numpy()
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            # Strings are objects, whose bytes are their addresses in memory.
            digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> NoReturn:
        raise InputTypeError("a Training cannot be pickled, because it has the keys of the noise: use save.")

    def _named(self) -> dict[str, tf.Variable]:
        """Returns all variables of the training, by their names in checkpoints."""
        # Read when it is needed: an optimizer may make variables in its first step.
        variables = self._optimizer.variables
        groups = {
            "secret": [self._secret],
            "model": self._model.weights,
            "optimizer": variables() if callable(variables) else variables,
            "noise": tf.nest.flatten(self._state),
        }
        return {
            f"{group}/{index}": variable for group, members in groups.items() for index, variable in enumerate(members)
        }

    def _batches(self, begin: int, count: int) -> np.ndarray:
        """Returns the examples of batches, which follow from the secret of this training where they are secret."""
        words = self._secret.numpy().tobytes()
        secret = CohortSecret(run=words[:_RUN_BYTES].hex(), key=words[_RUN_BYTES:])
        return self.order.batches(begin, count, secret=secret)

    def _last_round(self, epochs: int | None) -> int:
        begun, rounds, length = self.rounds, self.order.rounds, self.order.epoch_rounds
        left = -(-rounds // length) - begun // length
        if begun >= rounds or (epochs is not None and validation.whole("epochs", epochs) > left):
            request = "" if epochs is None else f"epochs={epochs} is more than the {left} that are left: "
            raise InputValueError(
                f"{request}{begun} of the {rounds} rounds that the order accounts for have run. Make an order of more "
                "epochs, calibrate the noise for it, and train from the start."
            )
        return rounds if epochs is None else min(rounds, (begun // length + epochs) * length)

    def _validated(self, validation_data: Any) -> dict[str, float]:
        if validation_data is None:
            return {}
        data = (validation_data,) if isinstance(validation_data, tf.data.Dataset) else validation_data
        metrics = self._model.evaluate(*data, verbose=0, return_dict=True)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _train(self, end: int) -> None:
        # Two threads that ran a round of one state would release two results whose difference has little noise in it.
        with self._lock:
            self._settle()
            _checks.check_options()
            begin, run = self.rounds, self._run
            rows = tf.constant(self._batches(begin, max(0, end - begin)))
            self._torn = True
            run(rows, tf.constant(begin, tf.int64))
            self._torn = False

    def _read(self) -> Any:
        return tf.nest.map_structure(lambda variable: variable.read_value(), self._state)

    def _settle(self) -> None:
        """Computes the state of the noise from its keys, if an error may have come between two of its variables."""
        with self._lock:
            if not self._restored:
                raise InputValueError("a restore was interrupted: restore into a new Training.")
            if self._torn:
                noise = self._query.replay(self._state.noise.keys[: self.rounds])
                tf.nest.map_structure(lambda variable, value: variable.assign(value), self._state.noise, noise)
                self._torn = False

    @functools.cached_property
    def _run(self) -> Callable[[tf.Tensor, tf.Tensor], object]:
        width = None if self.order.is_sampled else self.order.batch_size
        specs = [tf.TensorSpec([None, width], tf.int32), tf.TensorSpec([], tf.int64)]
        # One trace, made here: TensorFlow would warn of a second training that its function is traced again.
        function = tf.function(self._run_rounds, autograph=False).get_concrete_function(*specs)
        if self.order.is_sampled:
            _checks.check_unseeded(function.graph)
        return function

    def _run_rounds(self, rows: tf.Tensor, begin: tf.Tensor) -> None:
        end = begin + tf.shape(rows, tf.int64)[0]
        # The state itself says which round is next, and so which batch.
        tf.while_loop(lambda step: step < end, lambda step: self._round(rows, step - begin), [self._state.noise.round])

    def _round(self, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        row = tf.gather(rows, index)
        if self.order.is_sampled:
            # A batch of no examples would have no shape: one place stays, and holds nobody.
            row = row[: tf.maximum(1, tf.math.count_nonzero(row >= 0, dtype=tf.int32))]
        x, y = tf.nest.map_structure(lambda tensor: tf.gather(tensor, tf.maximum(row, 0)), self._examples)
        total = self._clipped_sum(x, y, row >= 0)
        noised, state, _ = self._query.get_noised_result(total, self._read())
        mean = [leaf / tf.constant(float(self.order.batch_size), leaf.dtype) for leaf in noised]
        self._optimizer.apply_gradients(zip(self._stored(mean, state), self._variables, strict=True))
        return state.noise.round

    def _stored(self, mean: list[tf.Tensor], state: Any) -> list[tf.Tensor]:
        """Returns the mean, which has no value until the state is stored; of the state, the keys are stored first.

        TensorFlow runs in any order what does not depend on each other, and stops anywhere at an error: at an example
        that the model cannot compute with, or in the optimizer. A round is recorded with its key, or not at all, and
        the optimizer gets nothing of a round that is not.
        """
        noise, variables = state.noise, self._state.noise
        with tf.control_dependencies(mean):
            keys = variables.keys.assign(noise.keys, read_value=False)
        with tf.control_dependencies([keys]):
            step = variables.round.assign(noise.round, read_value=False)
        with tf.control_dependencies([step]):
            pairs = zip(variables.rows, noise.rows, strict=True)
            rows = [variable.assign(row, read_value=False) for variable, row in pairs]
        with tf.control_dependencies([step, *rows]):
            return [tf.identity(leaf) for leaf in mean]


def _words(secret: CohortSecret) -> tf.Tensor:
    """Returns a secret as bytes: its identifier, and its key."""
    return tf.constant(np.frombuffer(bytes.fromhex(secret.run) + secret.key, np.uint8))


def _variable(initial: tf.Tensor) -> tf.Variable:
    # The capacity for keys may grow.
    shape = tf.TensorShape([None, *initial.shape[1:]]) if initial.shape.rank == 2 else initial.shape
    return tf.Variable(initial, trainable=False, shape=shape)


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns structures of arrays as tensors, after checking that each has one entry for each example."""
    # TensorFlow copies NumPy's arrays, but shares the memory of others, which can change.
    tensors = tf.nest.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf if tf.is_tensor(leaf) else np.array(leaf)), (x, y)
    )
    shapes = [tuple(tensor.shape) for tensor in tf.nest.flatten(tensors)]
    if len({shape[:1] for shape in shapes}) != 1 or () in shapes:
        raise InputValueError(
            f"x and y have arrays of the shapes {shapes}: pass arrays that have one entry for each example."
        )
    return tensors
