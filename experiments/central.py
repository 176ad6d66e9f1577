"""Central training: settings and presets, data sets of images, networks, and one run in a folder."""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

import tff_mf
from tff_mf.base import checkpoint_files, strict_json, validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, by_name

from .guard import RunGuard
from .output import files
from .output.typed import CountOrZero, Part, Positive, Record, Size
from .runs import folders, results, statements
from .runs.ledger import Rules, open_ledger
from .runs.names import CHECKPOINTS, LEDGER, METRICS, PLAN, SETTINGS_TOML, SUMMARY
from .runs.settings import PresetFolder, PrivacySettings
from .runs.statements import Reason
from .sampling import SamplingSettings

if TYPE_CHECKING:
    import tensorflow as tf


Examples = tuple[np.ndarray, np.ndarray]
OnEpoch = Callable[[int, Mapping[str, float]], None]

WEIGHTS = "model.weights.h5"
# Those that batches of examples are drawn by in the papers.
SAMPLINGS = ("fixed-epochs", "poisson", "cyclic-poisson")
# The order in which a data set is cut into parts; never the seed of a run, whose parts would then differ.
_SPLIT_SEED = 0
_DIGITS, _DIGITS_TEST = 1797, 297

_Share = Annotated[float, Meta(ge=0, le=1)]
# As TensorFlow's initializers need it.
_Seed = Annotated[int, Meta(ge=0, lt=2**31)]


# Training examples of each data set; all have 10 classes.
EXAMPLES = {"digits": _DIGITS - _DIGITS_TEST, "mnist": 60_000, "cifar10": 50_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData:
    """The parts of a data set.

    Attributes:
        train: Examples that are trained on, and protected.
        validation: Examples that were split off the training data, and are not trained on.
        test: The data set's own test split.
    """

    train: Examples
    validation: Examples
    test: Examples


def split(name: str, validation_examples: int) -> ImageData:
    """Loads a data set, and splits a part off its training examples, always the same one."""
    if name == "digits":
        training, test = _digits()
    else:
        import tensorflow as tf

        # Keras announces downloads on stdout, which has the result of the command.
        with contextlib.redirect_stdout(sys.stderr):
            training, test = (_as_examples(*part) for part in getattr(tf.keras.datasets, name).load_data())
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(training[1]))
    trained, held = np.split(order, [len(order) - validation_examples])
    (train, validation) = ((training[0][chosen], training[1][chosen]) for chosen in (trained, held))
    return ImageData(train=train, validation=validation, test=test)


def _digits() -> tuple[Examples, Examples]:
    from sklearn import datasets

    digits: Any = datasets.load_digits()
    images, labels = _as_examples(np.round(digits.images * (255 / 16)).astype(np.uint8), digits.target)
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = np.split(order, [_DIGITS - _DIGITS_TEST])
    return (images[train], labels[train]), (images[test], labels[test])


def _as_examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    return images if images.ndim == 4 else images[..., np.newaxis], labels.reshape(-1).astype(np.int32)


def network(dataset: str, shape: Sequence[int], *, seed: int) -> "tf.keras.Sequential":
    """Returns the network for a data set, with logits as its result and weights that follow from a seed.

    Those for `mnist` and `cifar10` are the networks of Kairouz et al. (2021), tables 2a and 2b; activations (tanh),
    paddings, pooling and initial weights are of the code that was released with the paper (google-research/DP-FTRL).

    Example:
        >>> network("digits", (8, 8, 1), seed=1).count_params()
        1258
    """
    import tensorflow as tf
    from tensorflow.keras import layers as parts

    # Two layers with one seed would begin with the same weights.
    seeds = itertools.count(1000 * seed + 1)

    def initial(mode: str) -> Any:
        return tf.keras.initializers.VarianceScaling(mode=mode, distribution="untruncated_normal", seed=next(seeds))

    def convolution(filters: int, size: int, **more: Any) -> Any:
        about = {"padding": "same", "activation": "tanh", "kernel_initializer": initial("fan_in"), **more}
        return parts.Conv2D(filters, size, **about)

    def dense(units: int, activation: str | None = "tanh") -> Any:
        return parts.Dense(units, activation=activation, kernel_initializer=initial("fan_avg"))

    model = tf.keras.Sequential([parts.Input(shape), parts.Rescaling(1 / 127.5, offset=-1)])
    match dataset:
        case "digits":
            model.add(convolution(8, 3, padding="valid"))
            model.add(parts.MaxPooling2D(2))
            model.add(convolution(16, 2, padding="valid"))
            model.add(parts.Flatten())
        case "mnist":
            for layer in (convolution(16, 8, strides=2), convolution(32, 4, strides=2, padding="valid")):
                model.add(layer)
                model.add(parts.MaxPooling2D(2, strides=1))
            model.add(parts.Flatten())
            model.add(dense(32))
        case "cifar10":
            for filters in (32, 64, 128):
                model.add(convolution(filters, 3))
                model.add(convolution(filters, 3))
                model.add(parts.MaxPooling2D(2))
            model.add(parts.Flatten())
            model.add(dense(128))
    model.add(dense(10, activation=None))
    return model


class CentralSettings(PrivacySettings, kw_only=True):
    """All settings of a central training: examples take the place of clients. A field has the name of its flag.

    `bands` that are not given are as many as an epoch has rounds, or as there are groups.

    Attributes:
        epochs: Number k of epochs.
        batch_size: Number B of examples in a batch; with sampling, its expectation.
        dataset: `digits`, `mnist` or `cifar10`.
        sampling: One of `SAMPLINGS`: `fixed-epochs`, in a fixed order; or, in secret, `poisson`, which is DP-SGD with
            `identity`, and `cyclic-poisson`, of `groups`.
        learning_rate: Rate of SGD.
        momentum: Its momentum.
        cooldown: Part of the rounds over which the rate falls, at the end.
        validation_examples: Number of examples that are split off the training data, and not trained on.
        seed: Seed of the initial weights and of the order; never of noise or coins.

    Example:
        >>> CentralSettings(epochs=20, batch_size=128, delta=1e-5, validation_examples=220, epsilon=8.0).rounds
        200
    """

    epochs: Size
    batch_size: Size
    dataset: str = "digits"
    sampling: str = SAMPLINGS[0]
    learning_rate: Positive = 0.1
    momentum: Part = 0.9
    cooldown: _Share = 0.0
    validation_examples: CountOrZero = 0
    seed: _Seed = 1

    @property
    def examples(self) -> int:
        """Number of examples that are trained on."""
        return EXAMPLES[self.dataset] - self.validation_examples

    @property
    def epoch_rounds(self) -> int:
        """Number of rounds of an epoch."""
        if self.sampling == "fixed-epochs":
            return max(1, self.examples // self.batch_size)
        return max(1, round(self.examples / self.batch_size))

    @property
    def rounds(self) -> int:
        """Number of rounds of the whole training."""
        return self.epochs * self.epoch_rounds

    def check(self) -> None:
        """Refuses what can be refused without loading data or TensorFlow."""
        if self.examples < 1:
            raise InputValueError(
                f"validation_examples={self.validation_examples} leaves none of the {EXAMPLES[self.dataset]} training "
                f"examples of dataset={self.dataset!r}: take fewer."
            )
        # Refuses a parameter that is missing, or does not go with the sampling.
        _ = self.sampling_settings
        if self.sampling == "poisson" and self.mechanism != "identity":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies identity only, and mechanism={self.mechanism!r}: take identity, "
                "or sampling='cyclic-poisson' with a banded mechanism."
            )
        _ = self.order
        super().check()

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("sampling", self.sampling, SAMPLINGS)
        validation.one_of("dataset", self.dataset, tuple(EXAMPLES))

    @property
    def sampling_settings(self) -> SamplingSettings:
        """How batches are drawn; parameters that follow from epochs and batch size are not given."""
        if self.min_sep is not None:
            raise InputValueError(f"min_sep={self.min_sep}: it follows from epochs and batch_size: leave it out.")
        fixed = {"min_sep": self.epoch_rounds, "max_participations": self.epochs}
        following = fixed if self.sampling == "fixed-epochs" else {}
        return SamplingSettings(sampling=self.sampling, groups=self.groups, **following)

    @property
    def order(self) -> tff_mf.Order:
        """Which examples are in which batch: its sampling draws the batches and is accounted for."""
        return tff_mf.Order(
            sampling=self.sampling_settings.drawn_by(population=self.examples, clients_per_round=self.batch_size),
            examples=self.examples,
            batch_size=self.batch_size,
            rounds=self.rounds,
            seed=self.seed,
        )

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting that the mechanism is optimized for."""
        schema = self.sampling_settings.schema(self.rounds)
        workload = by_name.workload(self.workload, rounds=self.rounds, momentum=self.momentum, cooldown=self.cooldown)
        return MechanismSetting(rounds=self.rounds, participation=schema, workload=workload)

    def plan(self, mechanism: tff_mf.Mechanism) -> tff_mf.Plan:
        """Returns the plan of the training, with examples in the place of clients.

        Formal guarantee: `epsilon` of the plan is that of the batches that are drawn; with `epsilon` in the settings,
        σ is the smallest at which it does not exceed that.
        """
        return tff_mf.plan(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.order.sampling,
            clients_per_round=self.batch_size,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            clip_norm=self.clip_norm,
            secret_cohorts=self.sampling_settings.is_secret,
        )


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "central_presets", kind=CentralSettings)


class CentralSummary(Record, kw_only=True):
    """The content of `summary.json`: what a training guarantees to each example, and what it reached.

    What is infinite, or may not be stated, is `None`, and so are accuracy and loss of a model that diverged. The
    settings are in `configuration.toml`.

    Attributes:
        epsilon: ε at `delta`, amplified if batches are secret.
        epsilon_if_batches_are_known: ε to whoever knows the batches.
        delta: δ.
        adjacency: "zero-out" or "replace-one".
        amplified: Whether batches are secret.
        reasons: Why no ε is stated.
        noise_multiplier: σ.
        examples: Number of examples that are trained on.
        rounds: Number of rounds.
        min_sep: b of the participation schema.
        max_participations: Its k.
        test_accuracy: On test examples.
        test_loss: Likewise.
        test_examples: Number of test examples.
        validation_accuracy: On the examples that were split off; `None` too without them.
    """

    epsilon: float | None
    epsilon_if_batches_are_known: float | None
    delta: float
    adjacency: str
    amplified: bool
    reasons: Sequence[Reason]
    noise_multiplier: float
    examples: int
    rounds: int
    min_sep: int
    max_participations: int
    test_accuracy: float | None = None
    test_loss: float | None = None
    test_examples: int = 0
    validation_accuracy: float | None = None


def summary_of(plan: tff_mf.Plan, examples: int, **reached: Any) -> CentralSummary:
    """Returns the guarantee of a plan for each of its examples as figures, and what a training reached.

    Formal guarantee: no ε is stated if anything forbids it, for the `reasons`. With secret batches `epsilon` is
    amplified, and `epsilon_if_batches_are_known` is not.
    """
    epsilon = plan.epsilon
    wrong = statements.violations(epsilon, plan.delta, examples)
    level = {"noise_multiplier": plan.noise_multiplier, "delta": plan.delta}
    plain = tff_mf.epsilon(plan.mechanism, plan.rounds, plan.participation, **level)
    return CentralSummary(
        epsilon=None if wrong else epsilon,
        epsilon_if_batches_are_known=None if wrong else strict_json.finite(max(epsilon, plain)),
        adjacency=plan.guarantee.adjacency,
        amplified=plan.secret_cohorts,
        reasons=wrong,
        examples=examples,
        rounds=plan.rounds,
        min_sep=plan.participation.min_sep,
        max_participations=plan.participation.max_participations,
        **level,
        **reached,
    )


def compiled_network(settings: CentralSettings, shape: Sequence[int]) -> "tf.keras.Sequential":
    """Returns the network of a training, with SGD and its learning rates."""
    import tensorflow as tf

    last = round(settings.cooldown * settings.rounds)
    schedule = tff_mf.LinearSchedule(cooldown_rounds=last, cooldown_to=by_name.RAMP_FLOOR)
    rates = settings.learning_rate * schedule.rates(settings.rounds)

    class _RoundRates(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return tf.gather(tf.constant(rates, tf.float32), step)

        def get_config(self) -> dict[str, Any]:
            return {"rates": rates.tolist()}

    rate = _RoundRates() if settings.cooldown else settings.learning_rate
    model = network(settings.dataset, shape, seed=settings.seed)
    model.compile(
        tf.keras.optimizers.SGD(rate, momentum=settings.momentum),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class _States(folders.Checkpoints):
    """The states of a training after its epochs, of which only the newest is kept."""

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the training after an epoch, with facts about it, and deletes the earlier states."""
        state.save(self.path(round_number), about=about)
        self.keep_newest()

    def about(self, round_number: int) -> dict[str, Any]:
        """Returns the facts that were saved with a state."""
        about = checkpoint_files.read(self.path(round_number))[1].get("about")
        if not about:
            raise InputValueError(
                f"checkpoint={str(self.path(round_number))!r} is of no training that tff-mf train-central began: put "
                "the run's own checkpoint back."
            )
        return about


def plan_of_run(settings: CentralSettings, folder: pathlib.Path, *, resume: bool, without_epsilon: bool) -> tff_mf.Plan:
    """Returns the plan of a training: of one that is resumed, the plan that it began with.

    A mechanism or a σ that differed in its last digit, on another machine, could not continue the noise of the first.
    """
    settings.check()
    if not without_epsilon:
        statements.check_asked(noise_multiplier=settings.noise_multiplier, insecure_seed=None)
    begun = resume and (folder / PLAN).is_file()
    plan = tff_mf.Plan.load(folder) if begun else settings.plan(settings.build_mechanism())
    if not without_epsilon:
        statements.check_statable(plan, population=settings.examples)
    return plan


def train(
    settings: CentralSettings,
    plan: tff_mf.Plan,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: OnEpoch = lambda epoch, measured: None,
    *,
    resume: bool = False,
) -> CentralSummary:
    """Trains, or goes on from the checkpoint in the folder, and returns the content of `summary.json`.

    First the settings and the plan are written, with which the run can be resumed. After each epoch a
    checkpoint is written, and then a row of `metrics.csv`: loss and accuracy on the validation part, if there is one.
    The test split is evaluated once, at the end. At the end the weights are written, and the checkpoint, which has the
    keys of the noise, is removed.

    Formal guarantee: as for `tff_mf.frameworks.keras.Training`, for the training part of the data; weights, metrics and
    summary are computed from what it covers. As for `RunGuard`, of which an epoch is a round: no epoch of which
    anything was written is ever run again. The validation and the test part are not protected.

    Args:
        settings: The settings.
        plan: Their plan.
        data: The parts of the data set.
        folder: The folder, made if it does not exist.
        on_epoch: Called after each epoch with its number and its metrics.
        resume: Whether the folder has a run that was stopped; otherwise it must be empty.
    """
    files.make_writable(folder)
    with files.alone(folder):
        if not resume:
            folders.check_empty(folder)
        if not (folder / SETTINGS_TOML).exists():
            settings.write(folder)
        if not (folder / PLAN).exists():
            plan.save(folder)
        model = compiled_network(settings, data.test[0].shape[1:])
        _train_epochs(model, settings, plan, data, folder, on_epoch)
        tested, validated = evaluated(model, data.test), evaluated(model, data.validation)
        summary = summary_of(
            plan,
            settings.examples,
            test_accuracy=strict_json.finite(tested["accuracy"]),
            test_loss=strict_json.finite(tested["loss"]),
            test_examples=len(data.test[1]),
            validation_accuracy=strict_json.finite(validated.get("accuracy")),
        )
        # Keras chooses the format by the ending.
        whole = folder / f".partial.{WEIGHTS}"
        model.save_weights(whole)
        files.move_into_place(whole, folder / WEIGHTS)
        text = json.dumps(msgspec.to_builtins(summary), indent=1, allow_nan=False)
        files.write_atomically(folder / SUMMARY, text + "\n")
        # With the keys in it, the noise could be removed from the models.
        checkpoint_files.remove_all(folder / CHECKPOINTS)
        return summary


def _train_epochs(
    model: Any, settings: CentralSettings, plan: tff_mf.Plan, data: ImageData, folder: pathlib.Path, on_epoch: OnEpoch
) -> None:
    """Trains the epochs that are left: the rounds of the loop, after each of which the model is released once."""
    from tff_mf.frameworks import keras

    started = time.monotonic()
    rows: list[Mapping[str, object]] = [*results.read_metrics(folder / METRICS).rows]
    epochs = -(-plan.rounds // settings.order.epoch_rounds)
    # The order of the examples keeps the schema.
    rules = Rules(rounds=epochs, schema=None, divisor=plan.clients_per_round, clip_norm=plan.clip_norm)
    with open_ledger(folder / LEDGER, bound_to=folder / PLAN, ended=True) as book:
        loop = RunGuard(folder, rules, book)
        training = keras.Training(model, *data.train, plan, seed=settings.seed)

        def released() -> dict[str, float]:
            """Writes the row of the newest model, and returns its metrics."""
            measured = evaluated(model, data.validation)
            # How long secret batches take depends on how many examples they have.
            seconds = 0.0 if plan.secret_cohorts else round(time.monotonic() - started, 1)
            rows.append({results.ROUND: training.rounds, results.SECONDS: seconds, **measured})
            results.write_metrics(folder / METRICS, rows)
            return measured

        # The final weights are published with the last epoch.
        published = epochs if (folder / WEIGHTS).exists() else len(rows)
        states = _States(folder / CHECKPOINTS, {})
        last = loop.resume(states, published=published)
        if last:
            training.restore(states.path(last))
        if len(rows) < last:
            # The run was stopped after the checkpoint and before the row of its model.
            released()
        for epoch in range(last + 1, epochs + 1):
            # Which examples are in a batch, a fixed order tells everybody, and a secret one nobody.
            loop.begin(())
            training.fit(epochs=1)
            loop.finish(training)
            on_epoch(epoch, released())
        if not loop.has_ended:
            loop.record_end()


def evaluated(model: "tf.keras.Model", examples: Examples) -> dict[str, float]:
    """Returns loss and accuracy of a model on examples; nothing if there are none."""
    if not len(examples[1]):
        return {}
    measured = model.evaluate(*examples, batch_size=500, verbose=0, return_dict=True)
    return {name: float(value) for name, value in measured.items()}
