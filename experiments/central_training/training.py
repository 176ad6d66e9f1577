"""Central training by name: settings and presets, data sets of images, networks, and one run in a folder."""

import contextlib
import dataclasses
import itertools
import json
import math
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

from ..output import files
from ..output.typed import CountOrZero, Positive, Record, Size
from ..runs import folders, layers, metrics, server_loop, statements
from ..runs.layers import PresetFolder
from ..runs.names import CALIBRATED, CHECKPOINTS, MECHANISM, METRICS, SETTINGS_TOML, SUMMARY
from ..runs.privacy_settings import PrivacySettings
from ..runs.rules import Rules
from ..runs.statements import Reason
from ..sampling.settings import SamplingSettings

if TYPE_CHECKING:
    import tensorflow as tf

    from tff_mf import keras

Examples = tuple[np.ndarray, np.ndarray]

WEIGHTS = "model.weights.h5"
# Those that batches of examples are drawn by. Of an epoch of the last three, B·E examples may be more than there are.
SAMPLINGS = (
    *("fixed-epochs", "spaced-epochs", "balls-in-bins"),
    *("poisson", "cyclic-poisson", "b-min-sep"),
)
# Those whose ε is certified by samples, which differ from process to process.
_BY_SAMPLES = ("balls-in-bins", "b-min-sep")
# The order in which a data set is cut into parts; never the seed of a run, whose parts would then differ.
_SPLIT_SEED = 0
_DIGITS, _DIGITS_TEST = 1797, 297
# ByMerge of Cohen et al. (2017): these capital and small letters are one class.
_MERGED = "CIJKLMOPSUVWXYZ"
# Height and width of the smallest images that each network takes.
_LEAST_SIDE = {"digits": 6, "kairouz-small": 13, "kairouz-vgg": 8}

_Momentum = Annotated[float, Meta(ge=0, le=1 - 2**-20)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# As TensorFlow's initializers need it.
_Seed = Annotated[int, Meta(ge=0, lt=2**31)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A data set by name, without its images: uint8 `[N, height, width, channels]`, with labels, int32 `[N]`.

    Attributes:
        examples: Number of training examples.
        shape: Height, width and channels.
        classes: Number of classes.
        network: Name of the network that is usual for it.
        load: Returns its training and its test examples.
    """

    examples: int
    shape: tuple[int, int, int]
    classes: int
    network: str
    load: Callable[[], tuple[Examples, Examples]]


def _digits() -> tuple[Examples, Examples]:
    from sklearn import datasets

    found: Any = datasets.load_digits()
    images = np.round(found.data * (255 / 16)).astype(np.uint8).reshape(_DIGITS, 8, 8, 1)
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = np.split(order, [_DIGITS - _DIGITS_TEST])
    labels = found.target.astype(np.int32)
    return (images[train], labels[train]), (images[test], labels[test])


def _keras(name: str) -> tuple[Examples, Examples]:
    import tensorflow as tf

    train, test = getattr(tf.keras.datasets, name).load_data()
    return _as_examples(*train), _as_examples(*test)


def _emnist() -> tuple[Examples, Examples]:
    import tensorflow_federated as tff

    def pooled(clients: Any) -> Examples:
        elements = clients.create_tf_dataset_from_all_clients(seed=_SPLIT_SEED).batch(4096).as_numpy_iterator()
        pixels, labels = zip(*((part["pixels"], part["label"]) for part in elements), strict=True)
        # TFF has black ink, 0, on white paper, 1.
        images = np.round(255 * (1 - np.concatenate(pixels))).astype(np.uint8)
        return _as_examples(images, merged(np.concatenate(labels)))

    train, test = tff.simulation.datasets.emnist.load_data(only_digits=False)
    return pooled(train), pooled(test)


def merged(labels: np.ndarray) -> np.ndarray:
    """Returns EMNIST's 62 classes as the 47 of ByMerge: digits, capitals, and the small letters that differ from them.

    Example:
        >>> merged(np.array([9, 10, 35, 36, 38, 61])).tolist()  # 9, A, Z, a, c, z
        [9, 10, 35, 36, 12, 35]
    """
    following = itertools.count(36)
    small = [10 + letter if chr(ord("A") + letter) in _MERGED else next(following) for letter in range(26)]
    return np.array([*range(36), *small])[labels]


def _as_examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    images = images if images.ndim == 4 else images[..., np.newaxis]
    return images, labels.reshape(-1).astype(np.int32)


def _source(examples: int, shape: tuple[int, int, int], classes: int, network: str, load: Callable) -> ImageSource:
    return ImageSource(examples=examples, shape=shape, classes=classes, network=network, load=load)


SOURCES: Mapping[str, ImageSource] = {
    "digits": _source(_DIGITS - _DIGITS_TEST, (8, 8, 1), 10, "digits", _digits),
    "mnist": _source(60_000, (28, 28, 1), 10, "kairouz-small", lambda: _keras("mnist")),
    "cifar10": _source(50_000, (32, 32, 3), 10, "kairouz-vgg", lambda: _keras("cifar10")),
    "emnist": _source(671_585, (28, 28, 1), 47, "kairouz-small", _emnist),
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
    kept, held = np.split(order, [source.examples - validation_examples])
    return ImageData(train=(images[kept], labels[kept]), validation=(images[held], labels[held]), test=test)


def network(name: str, *, shape: Sequence[int], classes: int, seed: int) -> "tf.keras.Sequential":
    """Returns a network for images of bytes, with logits as its result and weights that follow from a seed.

    `kairouz-small` and `kairouz-vgg` are the networks of Kairouz et al. (2021), table 2; activations (tanh), paddings,
    pooling and initial weights are of the code that was released with the paper.

    Example:
        >>> network("digits", shape=(8, 8, 1), classes=10, seed=1).count_params()
        1258
    """
    import tensorflow as tf
    from tensorflow.keras import layers as parts

    validation.one_of("network", name, tuple(_LEAST_SIDE))
    # Two layers with one seed would begin with the same weights.
    seeds = itertools.count(1000 * seed + 1)

    def initial(mode: str) -> Any:
        return tf.keras.initializers.VarianceScaling(mode=mode, distribution="untruncated_normal", seed=next(seeds))

    def convolution(filters: int, size: int, **more: Any) -> Any:
        about = {"padding": "same", "activation": "tanh", "kernel_initializer": initial("fan_in"), **more}
        return parts.Conv2D(filters, size, **about)

    def dense(units: int) -> Any:
        return parts.Dense(units, activation="tanh", kernel_initializer=initial("fan_avg"))

    def hidden() -> list[Any]:
        match name:
            case "digits":
                first, second = convolution(8, 3, padding="valid"), convolution(16, 2, padding="valid")
                return [first, parts.MaxPooling2D(2), second, parts.Flatten()]
            case "kairouz-small":
                first, second = convolution(16, 8, strides=2), convolution(32, 4, strides=2, padding="valid")
                pools = [parts.MaxPooling2D(2, strides=1) for _ in range(2)]
                return [first, pools[0], second, pools[1], parts.Flatten(), dense(32)]
        blocks = [[convolution(n, 3), convolution(n, 3), parts.MaxPooling2D(2)] for n in (32, 64, 128)]
        return [*itertools.chain(*blocks), parts.Flatten(), dense(128)]

    begin = [parts.Input(tuple(shape)), parts.Rescaling(1 / 127.5, offset=-1), *hidden()]
    return tf.keras.Sequential([*begin, parts.Dense(classes, kernel_initializer=initial("fan_avg"))])


class CentralSettings(PrivacySettings, kw_only=True):
    """All settings of a central training: examples take the place of clients. A field has the name of its flag.

    `bands` that are not given are as many as an epoch has rounds, or as there are groups.

    Attributes:
        epochs: Number k of epochs.
        batch_size: Number B of examples in a batch; with sampling, its expectation.
        dataset: `digits`, `mnist`, `cifar10` or `emnist`.
        network: `digits`, `kairouz-small` or `kairouz-vgg`; `None` is the one that is usual for the data set.
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
    network: str | None = None
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
        validation.one_of("dataset", self.dataset, tuple(SOURCES))
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
        source, chosen = self.source, self.network or self.source.network
        validation.one_of("network", chosen, tuple(_LEAST_SIDE))
        if min(source.shape[:2]) < _LEAST_SIDE[chosen]:
            raise InputValueError(
                f"network={chosen!r} needs images of at least {_LEAST_SIDE[chosen]} by {_LEAST_SIDE[chosen]} pixels, "
                f"and the images of dataset={self.dataset!r} have {source.shape[0]} by {source.shape[1]}: take another."
            )
        if self.validation_examples >= source.examples:
            raise InputValueError(
                f"validation_examples={self.validation_examples} leaves none of the {source.examples} training "
                f"examples of dataset={self.dataset!r}: take fewer."
            )
        if self.batch_size > self.examples:
            raise InputValueError(
                f"batch_size={self.batch_size} exceeds the {self.examples} examples that are trained on: take smaller "
                "batches."
            )
        validation.listable(self.rounds, "epochs")
        self.schedule.check(self.rounds)
        # Refuses a parameter that is missing, or does not go with the sampling.
        _ = self.sampling_settings
        if self.sampling == "poisson" and self.mechanism != "identity":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies identity only, and mechanism={self.mechanism!r}: take identity, "
                "sampling='cyclic-poisson' with a banded mechanism, or sampling='balls-in-bins'."
            )
        if self.bands is not None and self.bands > self.rounds:
            raise InputValueError(f"bands={self.bands} exceeds the {self.rounds} rounds: take fewer.")
        if self.groups is not None and self.batch_size > self.examples // self.groups:
            raise InputValueError(
                f"batch_size={self.batch_size} exceeds the {self.examples // self.groups} examples in each of "
                f"groups={self.groups}: take smaller batches, or fewer groups."
            )
        _ = self.drawn_by
        if self.epsilon is not None and self.sampling in _BY_SAMPLES:
            raise InputValueError(
                f"epsilon={self.epsilon!r} does not go with sampling={self.sampling!r}: its σ is found by samples, and "
                "a run that is resumed would find another. Give noise_multiplier; tff-mf account --epsilon finds it."
            )
        super().check()

    def check_statable(self) -> None:
        """Refuses what no ε could be stated for, as far as the settings alone show it."""
        if self.noise_multiplier == 0:
            raise InputValueError(
                "noise_multiplier=0 has no guarantee: give a σ above 0, or an epsilon, or train with without_epsilon."
            )
        if self.delta * self.examples >= 1:
            raise InputValueError(
                f"delta={self.delta!r} is not below 1/{self.examples}, one over the number of examples: it would allow "
                "one example to be published. Take a smaller delta, or train with without_epsilon."
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("sampling", self.sampling, SAMPLINGS)
        if self.warmup + self.cooldown > 1:
            raise InputValueError(
                f"warmup={self.warmup!r} and cooldown={self.cooldown!r} together exceed 1, all of the rounds."
            )

    @property
    def sampling_settings(self) -> SamplingSettings:
        """How batches are drawn; parameters that follow from epochs and batch size are not given."""
        following = {
            "fixed-epochs": {"min_sep": self.epoch_rounds, "max_participations": self.epochs},
            "spaced-epochs": {"max_participations": self.epochs},
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
    def drawn_by(self) -> tff_mf.Sampling:
        """The sampling: the one object that draws the batches and is accounted for."""
        return self.sampling_settings.drawn_by(population=self.examples, clients_per_round=self.batch_size)

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting that the mechanism is optimized for."""
        schema = self.sampling_settings.schema(self.rounds)
        workload = by_name.workload(
            self.workload, rounds=self.rounds, momentum=self.momentum, warmup=self.warmup, cooldown=self.cooldown
        )
        return MechanismSetting(rounds=self.rounds, participation=schema, workload=workload)


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "presets", kind=CentralSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedTraining:
    """Everything about a training that is decided before its data are loaded.

    Attributes:
        order: Which examples are in which batch.
        epsilon: ε of the whole training, infinite if none can be stated.
        reasons: Why no ε can be stated; empty if it is.
    """

    settings: CentralSettings
    mechanism: tff_mf.Mechanism
    order: tff_mf.Order
    noise_multiplier: float
    epsilon: float
    reasons: Sequence[Reason]


def prepare(
    settings: CentralSettings,
    mechanism: tff_mf.Mechanism,
    *,
    noise_multiplier: float | None = None,
    without_epsilon: bool = False,
) -> PreparedTraining:
    """Returns the parts of a training.

    Formal guarantee: `epsilon` is the order's (`tff_mf.Order`), for the σ that is returned: with `epsilon` in the
    settings, the smallest σ at which the order's ε does not exceed it.

    Args:
        settings: Settings that were checked.
        mechanism: The mechanism of the settings, or of a run that is resumed.
        noise_multiplier: σ of a run that is resumed: calibrated again, on another machine, it could differ in its last
            bits, and its noise would continue no run.
        without_epsilon: Whether to train although no ε can be stated.
    """
    order = tff_mf.Order(
        sampling=settings.drawn_by,
        examples=settings.examples,
        batch_size=settings.batch_size,
        rounds=settings.rounds,
        seed=settings.seed,
    )
    sigma = settings.noise_multiplier if noise_multiplier is None else noise_multiplier
    if sigma is None:
        assert settings.epsilon is not None
        sigma = tff_mf.calibrate_noise_multiplier(
            mechanism, order.rounds, order.sampling, epsilon=settings.epsilon, delta=settings.delta
        )
    if not without_epsilon:
        settings.check_statable()
    epsilon = tff_mf.epsilon(mechanism, order.rounds, order.sampling, noise_multiplier=sigma, delta=settings.delta)
    wrong = statements.violations(epsilon, settings.delta, settings.examples)
    if wrong and not without_epsilon:
        raise InputValueError(
            f"noise_multiplier={sigma!r}: {wrong[0].text}. Give a larger σ, or train with without_epsilon."
        )
    return PreparedTraining(
        settings=settings,
        mechanism=mechanism,
        order=order,
        noise_multiplier=sigma,
        epsilon=math.inf if wrong else epsilon,
        reasons=wrong,
    )


class CentralSummary(Record, kw_only=True):
    """The content of `summary.json`: what a training guarantees to each example, and what it reached.

    What is infinite, or may not be stated, is `None`, and so are accuracy and loss of a model that diverged.

    Attributes:
        epsilon: ε at `delta`, amplified if batches are secret.
        delta: δ.
        zcdp_rho: ρ; `None` too of an amplified ε.
        adjacency: "zero-out" or "replace-one".
        unit: What is protected.
        examples: Number of examples that are trained on.
        sampling: How batches are drawn.
        batch_size: Number of examples in a batch.
        rounds: Number of rounds.
        min_sep: b of the participation schema.
        max_participations: Its k.
        mechanism: The kind of the mechanism.
        sensitivity: Of C as it runs.
        noise_multiplier: σ.
        clip_norm: Clip norm of one example.
        epsilon_without_amplification: ε to whoever knows the batches.
        zcdp_rho_without_amplification: ρ to whoever knows the batches.
        amplified: Whether batches are secret.
        reasons: Why no ε is stated.
        dataset: The data set.
        network: The network.
        test_accuracy: On test examples.
        test_loss: Likewise.
        test_examples: Number of test examples.
        validation_accuracy: On the examples that were split off; `None` too without them.
        validation_examples: Their number.
        versions: Of the packages that ran.
    """

    epsilon: float | None
    delta: float
    zcdp_rho: float | None
    adjacency: str
    unit: str = "example"
    examples: int
    sampling: SamplingSettings
    batch_size: int
    rounds: int
    min_sep: int
    max_participations: int
    mechanism: str
    sensitivity: float
    noise_multiplier: float
    clip_norm: float
    epsilon_without_amplification: float | None
    zcdp_rho_without_amplification: float | None
    amplified: bool
    reasons: Sequence[Reason]
    dataset: str
    network: str
    test_accuracy: float | None = None
    test_loss: float | None = None
    test_examples: int = 0
    validation_accuracy: float | None = None
    validation_examples: int = 0
    versions: dict[str, str]


def guarantee_of(prepared: PreparedTraining) -> CentralSummary:
    """Returns the guarantee of a training as figures, before anything is measured.

    Formal guarantee: `epsilon` is the ε of `prepared`, and `sensitivity` the sensitivity of
    `mechanism.cast_to_float32()`, the C that the noise has. With sampling, `epsilon` is amplified and has no ρ; figures
    that end in `_without_amplification` hold for batches that are known. What is infinite is `None`, and so is every ε
    if none can be stated, for the `reasons`.
    """
    settings, order, mechanism = prepared.settings, prepared.order, prepared.mechanism
    plain = tff_mf.guarantee(mechanism, order.rounds, order.participation, noise_multiplier=prepared.noise_multiplier)
    amplified, schema = settings.sampling_settings.is_secret, order.participation
    return CentralSummary(
        epsilon=strict_json.finite(prepared.epsilon),
        delta=settings.delta,
        zcdp_rho=None if amplified else strict_json.finite(plain.zcdp_rho),
        adjacency=plain.adjacency,
        examples=order.examples,
        sampling=settings.sampling_settings,
        batch_size=order.batch_size,
        rounds=order.rounds,
        min_sep=schema.min_sep,
        max_participations=schema.max_participations,
        mechanism=mechanism.kind,
        sensitivity=tff_mf.sensitivity(mechanism.cast_to_float32(), order.rounds, schema),
        noise_multiplier=prepared.noise_multiplier,
        clip_norm=settings.clip_norm,
        epsilon_without_amplification=strict_json.finite(max(prepared.epsilon, plain.epsilon(settings.delta))),
        zcdp_rho_without_amplification=strict_json.finite(plain.zcdp_rho),
        amplified=amplified,
        reasons=prepared.reasons,
        dataset=settings.dataset,
        network=settings.network or settings.source.network,
        versions=folders.versions(),
    )


def compiled_network(settings: CentralSettings) -> "tf.keras.Sequential":
    """Returns the network of a training, with SGD and its learning rates."""
    import tensorflow as tf

    source, rates = settings.source, settings.learning_rate * settings.schedule.rates(settings.rounds)

    class _RoundRates(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return tf.gather(tf.constant(rates, tf.float32), step)

        def get_config(self) -> dict[str, Any]:
            return {"rates": rates.tolist()}

    rate = _RoundRates() if settings.warmup or settings.cooldown else settings.learning_rate
    chosen = settings.network or source.network
    model = network(chosen, shape=source.shape, classes=source.classes, seed=settings.seed)
    model.compile(
        tf.keras.optimizers.SGD(rate, momentum=settings.momentum),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class _States:
    """The states of a training after its epochs, of which only the newest is kept. A `Storage` of the loop."""

    def __init__(self, folder: pathlib.Path, training: "keras.Training") -> None:
        self._folder, self._training = folder, training
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


def run(
    prepared: PreparedTraining,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None] = lambda epoch, found: None,
    *,
    resume: bool = False,
) -> CentralSummary:
    """Trains, or goes on from the checkpoint in the folder, and returns the content of `summary.json`.

    First σ, the mechanism and the settings are written, with which the run can be resumed. After each epoch a
    checkpoint is written, and then a row of `metrics.csv`: loss and accuracy on the validation part, if there is one.
    The test split is evaluated once, at the end. At the end the weights are written, and the checkpoint, which has the
    keys of the noise, is removed.

    Formal guarantee: as for `tff_mf.keras.Training`, for the training part of the data; weights, metrics and summary
    are computed from what it covers. As for `ServerLoop`, of which an epoch is a round: no epoch of which anything was
    written is ever run again. The validation and the test part are not protected.

    Args:
        prepared: The parts of the training.
        data: The parts of its data set.
        folder: Its folder, made if it does not exist.
        on_epoch: Called after each epoch with its number and its metrics.
        resume: Whether the folder has a run that was stopped; otherwise it must be empty.
    """
    files.make_writable(folder)
    with files.alone(folder):
        if not resume:
            folders.check_empty(folder)
        keep(prepared, folder)
        model = compiled_network(prepared.settings)
        _train(prepared, model, data, folder, on_epoch)
        tested, validated = evaluated(model, data.test), evaluated(model, data.validation)
        summary = msgspec.structs.replace(
            guarantee_of(prepared),
            test_accuracy=_finite(tested.get("accuracy")),
            test_loss=_finite(tested.get("loss")),
            test_examples=len(data.test[1]),
            validation_accuracy=_finite(validated.get("accuracy")),
            validation_examples=len(data.validation[1]),
        )
        # Keras chooses the format by the ending.
        whole = folder / f".partial.{WEIGHTS}"
        model.save_weights(whole)
        files.move_into_place(whole, folder / WEIGHTS)
        text = json.dumps(msgspec.to_builtins(summary), indent=1, ensure_ascii=False, allow_nan=False)
        files.write_atomically(folder / SUMMARY, text + "\n")
        # With the keys in it, the noise could be removed from the models.
        checkpoint_files.remove_all(folder / CHECKPOINTS)
        return summary


def _train(
    prepared: PreparedTraining,
    model: "tf.keras.Sequential",
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Trains the epochs that are left."""
    from tff_mf import keras

    order, started = prepared.order, time.monotonic()
    training = keras.Training(
        model,
        *data.train,
        order=order,
        mechanism=prepared.mechanism,
        clip_norm=prepared.settings.clip_norm,
        noise_multiplier=prepared.noise_multiplier,
    )
    states = _States(folder / CHECKPOINTS, training)
    rows: list[Mapping[str, object]] = [*metrics.read_metrics(folder / METRICS).rows]

    def released() -> dict[str, float]:
        """Writes the row of the newest model, and returns its metrics."""
        found = evaluated(model, data.validation)
        # How long secret batches take depends on how many examples they have.
        secret = prepared.settings.sampling_settings.is_secret
        seconds = 0.0 if secret else round(time.monotonic() - started, 1)
        rows.append({metrics.ROUND: training.rounds, metrics.SECONDS: seconds, **found})
        metrics.write_metrics(folder / METRICS, rows)
        return found

    # Its rounds are epochs: after each, the model is released once. The order of the examples keeps the schema.
    epochs = -(-order.rounds // order.epoch_rounds)
    clip_norm = prepared.settings.clip_norm
    rules = Rules(rounds=epochs, schema=None, divisor=order.batch_size, clip_norm=clip_norm)
    with server_loop.open_loop(folder, rules=rules, bound_to=folder / SETTINGS_TOML, ended=True) as loop:
        # The final weights are published with the last epoch.
        published = epochs if (folder / WEIGHTS).exists() else len(rows)
        last = loop.resume(states, published=published, every_round=True)
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


def resumable(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a training that was stopped."""
    # A run may have been stopped after the first of these files.
    if not any((folder / name).is_file() for name in (CALIBRATED, MECHANISM, SETTINGS_TOML)):
        raise InputValueError(f"out={str(folder)!r} has no run to resume: start the run without --resume.")
    if (folder / SUMMARY).is_file() and not checkpoint_files.saved_rounds(folder / CHECKPOINTS):
        raise InputValueError(f"out={str(folder)!r} holds a run that has ended: there is nothing to resume.")
    files.make_writable(folder)
    return folder


def keep(prepared: PreparedTraining, folder: pathlib.Path) -> None:
    """Writes the σ, the mechanism and the settings of a training, unless they are there."""
    if not (folder / CALIBRATED).exists():
        text = json.dumps({"noise_multiplier": prepared.noise_multiplier}, indent=1)
        files.write_atomically(folder / CALIBRATED, text + "\n")
    if not (folder / MECHANISM).exists():
        folders.keep_mechanism(folder, prepared.mechanism)
    if not (folder / SETTINGS_TOML).exists():
        layers.write(prepared.settings, folder)


def begun_noise_multiplier(folder: pathlib.Path) -> float | None:
    """Returns the σ that the training in a folder began with; `None` if it was stopped before it was written."""
    path = folder / CALIBRATED
    if not path.is_file():
        return None
    try:
        return validation.nonnegative("noise_multiplier", strict_json.read(path, "calibrated")["noise_multiplier"])
    except (KeyError, TypeError) as error:
        raise InputValueError(f"calibrated={str(path)!r} has no noise_multiplier: put it back as it was.") from error


def evaluated(model: "tf.keras.Model", examples: Examples) -> dict[str, float]:
    """Returns loss and accuracy of a model on examples; nothing if there are none."""
    if not len(examples[1]):
        return {}
    found = model.evaluate(*examples, batch_size=500, verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}


def _finite(value: float | None) -> float | None:
    """Returns a metric as JSON can hold it: a diverged model's metric is not a number."""
    return value if value is not None and math.isfinite(value) else None
