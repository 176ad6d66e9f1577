"""Every setting of a central training under one flat name each, as presets, files and flags give it."""

import pathlib
from typing import Annotated

from msgspec import Meta

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import mechanism_names
from tff_mf.planning.setting import MechanismSetting

from ..output.typed import CountOrZero, Positive, Size
from ..runs.layers import PresetFolder
from ..runs.privacy_settings import PrivacySettings
from ..sampling.settings import SamplingSettings
from . import data_sets, networks

# Those that batches of examples are drawn by. Of an epoch of the last three, B·E examples may be more than there are.
SAMPLINGS = (
    *("fixed-epochs", "spaced-epochs", "balls-in-bins"),
    *("poisson", "cyclic-poisson", "b-min-sep"),
)
_FIXED, _ON_AVERAGE = SAMPLINGS[0], SAMPLINGS[-3:]
# Those whose ε is certified by samples, which differ from process to process.
_BY_SAMPLES = ("balls-in-bins", "b-min-sep")

_Momentum = Annotated[float, Meta(ge=0, le=1 - 2**-20)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# As TensorFlow's initializers need it.
_Seed = Annotated[int, Meta(ge=0, lt=2**31)]


class CentralSettings(PrivacySettings, kw_only=True):
    """All settings of a central training: examples take the place of clients. A field has the name of its flag.

    `bands` that are not given are as many as an epoch has rounds, or as there are groups.

    Attributes:
        epochs: Number k of epochs.
        batch_size: Number B of examples in a batch; with sampling, its expectation.
        dataset: A name of `data_sets.names()`.
        network: A name of `networks.NAMES`; `None` is the one that is usual for the data set.
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
    sampling: str = _FIXED
    learning_rate: Positive = 0.1
    momentum: _Momentum = 0.9
    warmup: _Share = 0.0
    cooldown: _Share = 0.0
    validation_examples: CountOrZero = 0
    seed: _Seed = 1

    @property
    def source(self) -> data_sets.ImageSource:
        """The data set, which is not loaded yet."""
        return data_sets.named(self.dataset)

    @property
    def examples(self) -> int:
        """Number of examples that are trained on."""
        return self.source.examples - self.validation_examples

    @property
    def epoch_rounds(self) -> int:
        """Number of rounds of an epoch."""
        if self.sampling in _ON_AVERAGE:
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
            warmup_from=mechanism_names.RAMP_FLOOR,
            cooldown_rounds=round(self.cooldown * self.rounds),
            cooldown_to=mechanism_names.RAMP_FLOOR,
        )

    def check(self) -> None:
        """Refuses what can be refused without loading data or TensorFlow."""
        source = self.source
        if self.network is not None:
            validation.one_of("network", self.network, networks.NAMES)
        self._check_network(source)
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
        self._check_sampling()
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

    def _check_network(self, source: data_sets.ImageSource) -> None:
        least = networks.LEAST_SIDE[self.network or source.network]
        if min(source.shape[:2]) < least:
            raise InputValueError(
                f"network={self.network!r} needs images of at least {least} by {least} pixels, and the images of "
                f"dataset={self.dataset!r} have {source.shape[0]} by {source.shape[1]}: take another."
            )

    def _check_sampling(self) -> None:
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
        workload = mechanism_names.workload(
            self.workload, rounds=self.rounds, momentum=self.momentum, warmup=self.warmup, cooldown=self.cooldown
        )
        return MechanismSetting(rounds=self.rounds, participation=schema, workload=workload)


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "presets", kind=CentralSettings)
