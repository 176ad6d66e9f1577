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

from .guard.run_guard import open_loop
from .output import files, typed
from .output.typed import CountOrZero, NonNegative, Positive, Record, Size
from .runs import folders, metrics, statements
from .runs.names import CALIBRATED, CHECKPOINTS, MECHANISM, METRICS, SETTINGS_TOML, SUMMARY
from .runs.rules import Rules, check_same
from .runs.settings import PresetFolder, PrivacySettings
from .runs.statements import Reason
from .sampling.settings import SamplingSettings

if TYPE_CHECKING:
    import tensorflow as tf

    from tff_mf.frameworks import keras

Examples = tuple[np.ndarray, np.ndarray]

WEIGHTS = "model.weights.h5"
# Those that batches of examples are drawn by. Of an epoch of the last three, B·E examples may be more than there are.
SAMPLINGS = ("fixed-epochs", "balls-in-bins", "poisson", "cyclic-poisson", "b-min-sep")
# Those whose ε is certified by samples, which differ from process to process.
_BY_SAMPLES = ("balls-in-bins", "b-min-sep")
# The order in which a data set is cut into parts; never the seed of a run, whose parts would then differ.
_SPLIT_SEED = 0
_DIGITS, _DIGITS_TEST = 1797, 297

_Momentum = Annotated[float, Meta(ge=0, le=1 - 2**-20)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# As TensorFlow's initializers need it.
_Seed = Annotated[int, Meta(ge=0, lt=2**31)]


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """A data set by name, without its images: uint8 `[N, height, width, channels]`, with labels, int32 `[N]`.

    Attributes:
        examples: Number of training examples.
        shape: Height, width and channels.
        classes: Number of classes.
        load: Returns its training and its test examples.
    """

    examples: int
    shape: tuple[int, int, int]
    classes: int
    load: Callable[[], tuple[Examples, Examples]]


def _digits() -> tuple[Examples, Examples]:
    from sklearn import datasets

    digits: Any = datasets.load_digits()
    images = np.round(digits.data * (255 / 16)).astype(np.uint8).reshape(_DIGITS, 8, 8, 1)
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = np.split(order, [_DIGITS - _DIGITS_TEST])
    labels = digits.target.astype(np.int32)
    return (images[train], labels[train]), (images[test], labels[test])


def _keras(name: str) -> tuple[Examples, Examples]:
    import tensorflow as tf

    train, test = getattr(tf.keras.datasets, name).load_data()
    return _as_examples(*train), _as_examples(*test)


def _as_examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    images = images if images.ndim == 4 else images[..., np.newaxis]
    return images, labels.reshape(-1).astype(np.int32)


SOURCES: Mapping[str, ImageSource] = {
    "digits": ImageSource(_DIGITS - _DIGITS_TEST, (8, 8, 1), 10, _digits),
    "mnist": ImageSource(60_000, (28, 28, 1), 10, lambda: _keras("mnist")),
    "cifar10": ImageSource(50_000, (32, 32, 3), 10, lambda: _keras("cifar10")),
}


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
    """Loads a data set, and splits a part off its training examples, always the same one.

    Raises:
        InputValueError: If it cannot be loaded, or is not what it should be.
    """
    source = SOURCES[name]
    try:
        # Keras announces downloads on stdout, which has the result of the command.
        with contextlib.redirect_stdout(sys.stderr):
            (images, labels), test = source.load()
    except MemoryError:
        raise
    # The loaders raise nearly anything: urllib's errors, plain exceptions, TensorFlow's, a damaged archive's.
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputValueError(
            f"dataset={name!r} cannot be loaded ({reason}): its loader downloads it once, which needs the Internet: "
            "run the command there first, or copy the loader's cache to this machine. digits needs no download."
        ) from error
    if images.shape != (source.examples, *source.shape):
        raise InputValueError(
            f"dataset={name!r}: its loader returned images of shape {images.shape}, not "
            f"{(source.examples, *source.shape)}: remove the damaged files, and load it again."
        )
    order = np.random.default_rng(_SPLIT_SEED).permutation(source.examples)
    trained, held = np.split(order, [source.examples - validation_examples])
    return ImageData(train=(images[trained], labels[trained]), validation=(images[held], labels[held]), test=test)


def network(dataset: str, *, seed: int) -> "tf.keras.Sequential":
    """Returns the network for a data set, with logits as its result and weights that follow from a seed.

    Those for `mnist` and `cifar10` are the networks of Kairouz et al. (2021), tables 2a and 2b; activations (tanh),
    paddings, pooling and initial weights are of the code that was released with the paper (google-research/DP-FTRL).

    Example:
        >>> network("digits", seed=1).count_params()
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

    source = SOURCES[dataset]
    model = tf.keras.Sequential([parts.Input(source.shape), parts.Rescaling(1 / 127.5, offset=-1)])
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
    model.add(dense(source.classes, activation=None))
    return model


class CentralSettings(PrivacySettings, kw_only=True):
    """All settings of a central training: examples take the place of clients. A field has the name of its flag.

    `bands` that are not given are as many as an epoch has rounds, or as there are groups.

    Attributes:
        epochs: Number k of epochs.
        batch_size: Number B of examples in a batch; with sampling, its expectation.
        dataset: `digits`, `mnist` or `cifar10`.
        sampling: One of `SAMPLINGS`: `fixed-epochs`, in a fixed order; `poisson`, which is DP-SGD with `identity`; and
            others, whose batches are secret if they amplify. Of `balls-in-bins`, `groups` that are not given are as
            many as an epoch has rounds.
        learning_rate: Rate of SGD.
        momentum: Its momentum.
        warmup: Part of the rounds over which the rate rises.
        cooldown: Part of the rounds over which it falls.
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
    momentum: _Momentum = 0.9
    warmup: _Share = 0.0
    cooldown: _Share = 0.0
    validation_examples: CountOrZero = 0
    seed: _Seed = 1

    @property
    def source(self) -> ImageSource:
        """The data set, which is not loaded yet."""
        return SOURCES[self.dataset]

    @property
    def examples(self) -> int:
        """Number of examples that are trained on."""
        return self.source.examples - self.validation_examples

    @property
    def epoch_rounds(self) -> int:
        """Number of rounds of an epoch."""
        if self.sampling in SAMPLINGS[-3:]:
            return max(1, round(self.examples / self.batch_size))
        return max(1, self.examples // self.batch_size)

    @property
    def rounds(self) -> int:
        """Number of rounds of the whole training."""
        return self.epochs * self.epoch_rounds

    @property
    def schedule(self) -> tff_mf.LinearSchedule:
        """The learning rates of all rounds, relative to `learning_rate`."""
        return tff_mf.LinearSchedule(
            warmup_rounds=round(self.warmup * self.rounds),
            warmup_from=by_name.RAMP_FLOOR,
            cooldown_rounds=round(self.cooldown * self.rounds),
            cooldown_to=by_name.RAMP_FLOOR,
        )

    def check(self) -> None:
        """Refuses what can be refused without loading data or TensorFlow."""
        if self.validation_examples >= self.source.examples:
            raise InputValueError(
                f"validation_examples={self.validation_examples} leaves none of the {self.source.examples} training "
                f"examples of dataset={self.dataset!r}: take fewer."
            )
        # Refuses a parameter that is missing, or does not go with the sampling.
        _ = self.sampling_settings
        if self.sampling == "poisson" and self.mechanism != "identity":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies identity only, and mechanism={self.mechanism!r}: take identity, "
                "sampling='cyclic-poisson' with a banded mechanism, or sampling='balls-in-bins'."
            )
        _ = self.order
        self.schedule.check(self.rounds)
        if self.epsilon is not None and self.sampling in _BY_SAMPLES:
            raise InputValueError(
                f"epsilon={self.epsilon!r} does not go with sampling={self.sampling!r}: its σ is found by samples, and "
                "a run that is resumed would find another. Give noise_multiplier; tff-mf account --epsilon finds it."
            )
        super().check()

    def check_statable(self, plan: tff_mf.Plan | None = None) -> None:
        """Refuses what no ε can be stated for, as far as it is known without a plan."""
        sigma = self.noise_multiplier if plan is None else plan.noise_multiplier
        if sigma == 0:
            raise InputValueError(
                "noise_multiplier=0 has no guarantee: give a σ above 0, or an epsilon, or train with without_epsilon."
            )
        for wrong in statements.violations(0.0 if plan is None else plan.epsilon, self.delta, self.examples):
            given = f"delta={self.delta!r}" if wrong.field == "delta" else f"noise_multiplier={sigma!r}"
            remedy = "smaller delta" if wrong.field == "delta" else "larger σ"
            raise InputValueError(f"{given}: {wrong.text}. Take a {remedy}, or train with without_epsilon.")

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("sampling", self.sampling, SAMPLINGS)
        validation.one_of("dataset", self.dataset, tuple(SOURCES))

    @property
    def sampling_settings(self) -> SamplingSettings:
        """How batches are drawn; parameters that follow from epochs and batch size are not given."""
        following = {
            "fixed-epochs": {"min_sep": self.epoch_rounds, "max_participations": self.epochs},
            "balls-in-bins": {} if self.groups else {"groups": self.epoch_rounds},
        }.get(self.sampling, {})
        given = {name: getattr(self, name) for name in ("groups", "min_sep") if getattr(self, name) is not None}
        if twice := sorted(following.keys() & given.keys()):
            raise InputValueError(
                f"{twice[0]}={given[twice[0]]!r} does not go with sampling={self.sampling!r}, of which it follows from "
                "epochs and batch_size: leave it out."
            )
        return SamplingSettings(sampling=self.sampling, **following, **given)

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
        workload = by_name.workload(
            self.workload, rounds=self.rounds, momentum=self.momentum, warmup=self.warmup, cooldown=self.cooldown
        )
        return MechanismSetting(rounds=self.rounds, participation=schema, workload=workload)

    def plan(
        self, mechanism: tff_mf.Mechanism, *, noise_multiplier: float | None = None, without_epsilon: bool = False
    ) -> tff_mf.Plan:
        """Returns the plan of the training, with examples in the place of clients.

        Formal guarantee: `epsilon` of the plan is that of the batches that are drawn; with `epsilon` in the settings,
        σ is the smallest at which it does not exceed that.

        Args:
            mechanism: The mechanism of the settings, or of a run that is resumed.
            noise_multiplier: σ of a run that is resumed: calibrated again, on another machine, it could differ in its
                last bits, and its noise would continue no run.
            without_epsilon: Whether to train although no ε can be stated.
        """
        if noise_multiplier is None:
            noise_multiplier = self.noise_multiplier
        plan = tff_mf.plan(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.order.sampling,
            clients_per_round=self.batch_size,
            epsilon=self.epsilon if noise_multiplier is None else None,
            noise_multiplier=noise_multiplier,
            delta=self.delta,
            clip_norm=self.clip_norm,
            secret_cohorts=self.sampling_settings.is_secret,
        )
        if not without_epsilon:
            self.check_statable(plan)
        return plan


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "central_presets", kind=CentralSettings)


class Begun(Record, kw_only=True):
    """The content of `calibrated.json`, which the ledger of a training is bound to.

    Attributes:
        noise_multiplier: σ.
        settings: The settings.
    """

    noise_multiplier: NonNegative
    settings: CentralSettings


class CentralSummary(Record, kw_only=True):
    """The content of `summary.json`: what a training guarantees to each example, and what it reached.

    What is infinite, or may not be stated, is `None`, and so are accuracy and loss of a model that diverged. The
    settings are in `configuration.toml`.

    Attributes:
        epsilon: ε at `delta`, amplified if batches are secret.
        epsilon_if_batches_are_known: ε to whoever knows the batches.
        delta: δ.
        adjacency: "zero-out" or "replace-one".
        unit: What is protected.
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
        versions: Of the packages that ran.
    """

    epsilon: float | None
    epsilon_if_batches_are_known: float | None
    delta: float
    adjacency: str
    unit: str = "example"
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
    versions: dict[str, str]


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
        versions=folders.versions(),
        **level,
        **reached,
    )


def compiled_network(settings: CentralSettings) -> "tf.keras.Sequential":
    """Returns the network of a training, with SGD and its learning rates."""
    import tensorflow as tf

    rates = settings.learning_rate * settings.schedule.rates(settings.rounds)

    class _RoundRates(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return tf.gather(tf.constant(rates, tf.float32), step)

        def get_config(self) -> dict[str, Any]:
            return {"rates": rates.tolist()}

    rate = _RoundRates() if settings.warmup or settings.cooldown else settings.learning_rate
    model = network(settings.dataset, seed=settings.seed)
    model.compile(
        tf.keras.optimizers.SGD(rate, momentum=settings.momentum),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class _States:
    """The states of a training after its epochs, of which only the newest is kept. A `Storage` of the loop."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        checkpoint_files.make_private(folder)

    def rounds(self) -> list[int]:
        """Returns the epochs after which the state was saved and is there, in order."""
        return checkpoint_files.saved_rounds(self._folder)

    def save(self, round_number: int, state: "keras.Training", about: Mapping[str, Any]) -> None:
        """Saves the training after an epoch, with facts about it, and deletes the earlier states."""
        state.save(checkpoint_files.path_of(self._folder, round_number), about=about)
        for old in self.rounds()[:-1]:
            checkpoint_files.path_of(self._folder, old).unlink()

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with a state."""
        path = checkpoint_files.path_of(self._folder, round_number)
        about = checkpoint_files.read(path)[1].get("about")
        if not about:
            raise InputValueError(
                f"checkpoint={str(path)!r} is of no training that tff-mf train-central began: put the run's own "
                "checkpoint back."
            )
        return about


def plan_of_run(settings: CentralSettings, folder: pathlib.Path, *, resume: bool, without_epsilon: bool) -> tff_mf.Plan:
    """Returns the plan of a training, of one that is resumed with the mechanism and σ that it began with.

    A mechanism or a σ that differed in its last digit, on another machine, could not continue the noise of the first.
    """
    settings.check()
    if not without_epsilon:
        settings.check_statable()
    path, before = folder / CALIBRATED, None
    if resume and path.is_file():
        before = typed.read(path, Begun, "calibrated")
        check_same(msgspec.structs.asdict(settings), msgspec.structs.asdict(before.settings), run=str(folder))
    mechanism = folders.begun_mechanism(folder) if resume else None
    sigma = None if before is None else before.noise_multiplier
    return settings.plan(
        mechanism or settings.build_mechanism(), noise_multiplier=sigma, without_epsilon=without_epsilon
    )


def train(
    settings: CentralSettings,
    plan: tff_mf.Plan,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None] = lambda epoch, measured: None,
    *,
    resume: bool = False,
) -> CentralSummary:
    """Trains, or goes on from the checkpoint in the folder, and returns the content of `summary.json`.

    First the mechanism, σ and the settings are written, with which the run can be resumed. After each epoch a
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
        _keep(settings, plan, folder)
        model = compiled_network(settings)
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
        _write(summary, folder / SUMMARY)
        # With the keys in it, the noise could be removed from the models.
        checkpoint_files.remove_all(folder / CHECKPOINTS)
        return summary


def _keep(settings: CentralSettings, plan: tff_mf.Plan, folder: pathlib.Path) -> None:
    """Writes the mechanism, σ and the settings of a training, unless they are there."""
    if not (folder / MECHANISM).exists():
        folders.keep_mechanism(folder, plan.mechanism)
    if not (folder / CALIBRATED).exists():
        _write(Begun(noise_multiplier=plan.noise_multiplier, settings=settings), folder / CALIBRATED)
    if not (folder / SETTINGS_TOML).exists():
        settings.write(folder)


def _write(record: Record, path: pathlib.Path) -> None:
    text = json.dumps(msgspec.to_builtins(record), indent=1, ensure_ascii=False, allow_nan=False)
    files.write_atomically(path, text + "\n")


def _train_epochs(
    model: "tf.keras.Sequential",
    settings: CentralSettings,
    plan: tff_mf.Plan,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Trains the epochs that are left: the rounds of the loop, after each of which the model is released once."""
    from tff_mf.frameworks import keras

    started = time.monotonic()
    rows: list[Mapping[str, object]] = [*metrics.read_metrics(folder / METRICS).rows]
    epochs = -(-plan.rounds // settings.order.epoch_rounds)
    # The order of the examples keeps the schema.
    rules = Rules(rounds=epochs, schema=None, divisor=plan.clients_per_round, clip_norm=plan.clip_norm)
    with open_loop(folder, rules=rules, bound_to=folder / CALIBRATED, ended=True) as loop:
        training = keras.Training.of(model, *data.train, plan, seed=settings.seed)

        def released() -> dict[str, float]:
            """Writes the row of the newest model, and returns its metrics."""
            measured = evaluated(model, data.validation)
            # How long secret batches take depends on how many examples they have.
            seconds = 0.0 if plan.secret_cohorts else round(time.monotonic() - started, 1)
            rows.append({metrics.ROUND: training.rounds, metrics.SECONDS: seconds, **measured})
            metrics.write_metrics(folder / METRICS, rows)
            return measured

        # The final weights are published with the last epoch.
        published = epochs if (folder / WEIGHTS).exists() else len(rows)
        last = loop.resume(_States(folder / CHECKPOINTS), published=published, every_round=True)
        if last:
            training.restore(checkpoint_files.path_of(folder / CHECKPOINTS, last))
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
