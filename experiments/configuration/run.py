"""Every setting of a run under one flat name each: what presets, files and flags are checked against."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

from ..privacy.plan import PrivacyPlan, check_level, checked_cohort, plan_privacy
from ..sampling.settings import SamplingSettings
from . import learning_rates, mechanism_names
from .settings import ARCHITECTURES, ModelConfig, TrainingSettings

PROPOSED = "proposed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfiguration:
    """All settings of a run, each checked where it is used.

    A field is called as its flag is, with underscores; meanings are those of `settings.TrainingSettings`,
    `privacy.plan_privacy` and `mechanisms.build`.

    Attributes:
        dataset: `pydoc`, `stackoverflow`, `sqlite:FILE` or a file.
        mechanism: A name of `mechanisms.NAMES`, `production:NAME`, or a file.
        workload: What the mechanism is optimized for.
        server_learning_rate: A number, or "proposed": from the noise, by the regression of the banded MF paper.
        sampling: How cohorts are drawn.

    Example:
        >>> RunConfiguration(rounds=8, clients_per_round=2, delta=1e-6, min_sep=4, max_participations=2).participation()
        MinSep(min_sep=4, max_participations=2)
    """

    rounds: int
    clients_per_round: int
    delta: float
    dataset: str = "pydoc"
    mechanism: str = "blt"
    buffers: int | None = None
    bands: int | None = None
    workload: str = "prefix_sum"
    cohort: int | None = None
    min_sep: int | None = None
    max_participations: int | None = None
    sampling: str = "min_sep"
    timer_hours: float | None = None
    round_minutes: float | None = None
    dropout: float = 0.0
    epsilon: float | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    zeroing: float | None = None
    algorithm: str = "fed_avg"
    model: str = "lstm"
    vocab_size: int = 10_000
    embedding_size: int = 96
    units: int = 670
    client_learning_rate: float = 1.0
    client_epochs: int = 1
    batch_size: int = 16
    max_examples: int = 256
    server_learning_rate: float | str = 1.0
    server_momentum: float = 0.95
    server_warmup: float = 0.15
    server_cooldown: float = 0.25
    evaluate_every: int = 25
    evaluation_examples: int = 2000
    seed: int = 0

    def participation(self) -> tff_mf.Participation:
        """Returns the schema that the guarantee is for.

        It is never guessed: single participation, the guess that would be at hand, gives the smallest ε.

        Raises:
            InputValueError: If a field is missing or out of range.
        """
        if self.max_participations == 1 and self.min_sep is None:
            return tff_mf.SingleParticipation()
        fields = {"min_sep": self.min_sep, "max_participations": self.max_participations}
        missing = [name for name, value in fields.items() if value is None]
        if missing or self.min_sep is None or self.max_participations is None:
            raise InputValueError(
                f"{' and '.join(missing)} missing: say how often a client may take part, "
                "for single participation with max_participations=1."
            )
        return tff_mf.MinSep(min_sep=self.min_sep, max_participations=self.max_participations)

    def check(self) -> None:
        """Refuses what can be refused before anything is searched for, trained or written.

        Raises:
            InputError: If a field is out of range, or the fields do not fit each other.
        """
        self._check_rate()
        self.training_settings()
        self.participation().check(self.rounds)
        check_level(epsilon=self.epsilon, noise_multiplier=self.noise_multiplier, delta=self.delta)
        checked_cohort(self.clients_per_round, self.cohort)
        for name in ("buffers", "bands"):
            if getattr(self, name) is not None:
                _validate.whole(name, getattr(self, name))
        mechanism_names.check(
            self.mechanism, rounds=self.rounds, buffers=self.buffers, bands=self.bands, workload=self._optimized_for()
        )

    def _optimized_for(self) -> tff_mf.Workload:
        return mechanism_names.workload(
            self.workload,
            rounds=self.rounds,
            momentum=self.server_momentum,
            warmup=self.server_warmup,
            cooldown=self.server_cooldown,
        )

    def build_mechanism(self) -> tff_mf.Mechanism:
        """Returns the mechanism, optimized if it is of a kind that is.

        Raises:
            InputError: If a field is out of range, or the mechanism cannot be had.
        """
        return mechanism_names.build(
            self.mechanism,
            rounds=self.rounds,
            participation=self.participation(),
            buffers=self.buffers,
            bands=self.bands,
            optimized_for=self._optimized_for(),
        )

    def privacy_plan(self, mechanism: tff_mf.Mechanism, insecure_seed: int | None = None) -> PrivacyPlan:
        """Returns the guarantee of a run with `mechanism`.

        Raises:
            InputError: If a field is out of range.
        """
        return plan_privacy(
            mechanism=mechanism,
            rounds=self.rounds,
            participation=self.participation(),
            delta=self.delta,
            clients_per_round=self.clients_per_round,
            cohort=self.cohort,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            insecure_seed=insecure_seed,
        )

    def training_settings(self, server_learning_rate: float = 1.0, *, tensorboard: bool = False) -> TrainingSettings:
        """Returns everything but the privacy.

        Args:
            server_learning_rate: The rate in place of "proposed"; otherwise the field's own is taken.
            tensorboard: Whether to write metrics for TensorBoard too.

        Raises:
            InputError: If a field is out of range.
        """
        _validate.one_of("model", self.model, ARCHITECTURES)
        shared = {field.name for field in dataclasses.fields(TrainingSettings)}
        values = {name: value for name, value in dataclasses.asdict(self).items() if name in shared}
        if self.server_learning_rate == PROPOSED:
            values["server_learning_rate"] = server_learning_rate
        values["model"] = ModelConfig(
            architecture=self.model,
            vocab_size=self.vocab_size,
            embedding_size=self.embedding_size,
            units=self.units,
        )
        values["sampling"] = SamplingSettings(
            kind=self.sampling, timer_hours=self.timer_hours, round_minutes=self.round_minutes
        )
        return TrainingSettings(**values, tensorboard=tensorboard)

    def chosen_rate(self, privacy: PrivacyPlan) -> float:
        """Returns the server's rate, proposed from the noise of `privacy` if so asked.

        Raises:
            InputValueError: If the rate is any other word, or there is no noise to propose one from.
        """
        self._check_rate()
        if not isinstance(self.server_learning_rate, str):
            return self.server_learning_rate
        rmse = learning_rates.effective_rmse(
            privacy.mechanism, privacy.rounds, noise_multiplier=privacy.noise_multiplier, cohort=privacy.cohort
        )
        return learning_rates.PAPER.proposed(rmse, clip_norm=self.clip_norm)

    def _check_rate(self) -> None:
        if isinstance(self.server_learning_rate, str) and self.server_learning_rate != PROPOSED:
            raise InputValueError(
                f"server_learning_rate={self.server_learning_rate!r} must be a number or {PROPOSED!r}."
            )


FIELDS: Mapping[str, tuple[type, ...]] = {
    name: tuple(kind for kind in (typing.get_args(hint) or (hint,)) if kind is not types.NoneType)
    for name, hint in typing.get_type_hints(RunConfiguration).items()
}
REQUIRED = tuple(field.name for field in dataclasses.fields(RunConfiguration) if field.default is dataclasses.MISSING)


def checked_value(name: str, value: Any, where: str) -> Any:
    """Returns `value` if it is of the type of the field `name`.

    Args:
        name: A field of `RunConfiguration`.
        value: What a file has for it.
        where: The file, for the message.

    Raises:
        InputTypeError: If it is of another type.
        InputValueError: If it is a number beyond float64.
    """
    kinds = FIELDS[name]
    number = float in kinds and isinstance(value, int | float) and not isinstance(value, bool)
    if number or (type(value) in kinds):
        try:
            checked = float(value) if number else value
        except OverflowError:
            raise InputValueError(f"{where}: {name} is a number of too many digits.") from None
        if type(checked) is int and abs(checked) > _validate.MAX_WHOLE:
            raise InputValueError(f"{where}: {name} is beyond 64 bits: give at most {_validate.MAX_WHOLE}.")
        return checked
    words = {int: "a whole number", float: "a number", str: "a string"}
    raise InputTypeError(f"{where}: {name}={value!r} must be {' or '.join(words[kind] for kind in kinds)}.")
