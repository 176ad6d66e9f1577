"""Every setting of a run under one flat name each, as presets, files and flags give it."""

from typing import Any

import tff_mf
from tff_mf import grids
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import check_level, check_restarts, checked_cohort, mechanism_names
from tff_mf.planning.setting import MechanismSetting

from ..output import progress
from ..output.typed import Number, Record, Whole, fields_of
from ..privacy import amplification
from ..run_folder.initial_model import DEFAULT_DATASET, InitialModel, given
from ..sampling.settings import DEFAULT, SamplingSettings
from . import learning_rates
from .settings import ARCHITECTURES, AUTO, ModelConfig, TrainingSettings, dimension_of, grid_of

PROPOSED = "proposed"
# A default of a setting is named where the setting is used.
_MODEL, _TRAINING = ModelConfig(), TrainingSettings()


class RunConfiguration(Record):
    """All settings of a run, each checked where it is used.

    A field has the name of its flag, with underscores. Meanings and defaults come from `settings.TrainingSettings`,
    `tff_mf.plan` and `mechanism_names.build`.

    Attributes:
        dataset: `pydoc`, `stackoverflow`, `synthetic`, `sqlite:FILE` or a file.
        mechanism: A name of `mechanism_names.names()`, `production:NAME`, or a file.
        unit_norms: Whether the columns of a `banded` have norm 1; if not, their norms are fitted to the participation.
        objective: Loss that the mechanism is optimized for, "rms" or "max"; None takes its kind's default.
        workload: What the mechanism is optimized for.
        initial_model: The `model.safetensors` of another run's folder, to start from; None is one drawn with `seed`.
        server_learning_rate: A number, or "proposed": from the noise, by the regression of the banded MF paper.
        grid: Bits of the grid on which updates, their sums and the noise are integers: a number, "auto", or "none" for
            floating point, whose guarantee holds for real numbers only, and which low bits can give away.
        sampling: How cohorts are drawn, and the guarantee that follows; with its parameters, `SamplingSettings`.
        test_examples: A number, or "all".

    Example:
        >>> RunConfiguration(rounds=8, clients_per_round=2, delta=1e-6, min_sep=4, max_participations=2).participation()
        MinSep(min_sep=4, max_participations=2)
    """

    rounds: Whole
    clients_per_round: Whole
    delta: Number
    dataset: str = DEFAULT_DATASET
    mechanism: str = "blt"
    buffers: Whole | None = None
    bands: Whole | None = None
    unit_norms: bool | None = None
    objective: str | None = None
    workload: str = "prefix_sum"
    restart_every: Whole | None = None
    cohort: Whole | None = None
    sampling: str = DEFAULT
    min_sep: Whole | None = None
    max_participations: Whole | None = None
    groups: Whole | None = None
    participations: Whole | None = None
    epochs: Whole | None = None
    hours: Number | None = None
    round_minutes: Number | None = None
    secret_cohorts: bool = _TRAINING.secret_cohorts
    dropout: Number = _TRAINING.dropout
    epsilon: Number | None = None
    noise_multiplier: Number | None = None
    grid: Whole | str = AUTO
    clip_norm: Number = _TRAINING.clip_norm
    adaptive_clipping: Number | None = _TRAINING.adaptive_clipping
    adaptive_count_stddev: Number | None = None
    adaptive_learning_rate: Number = _TRAINING.adaptive_learning_rate
    zeroing: Number | None = _TRAINING.zeroing
    algorithm: str = _TRAINING.algorithm
    initial_model: str | None = None
    model: str = _MODEL.architecture
    vocab_size: Whole = _MODEL.vocab_size
    embedding_size: Whole = _MODEL.embedding_size
    units: Whole = _MODEL.units
    client_learning_rate: Number = _TRAINING.client_learning_rate
    client_epochs: Whole = _TRAINING.client_epochs
    batch_size: Whole = _TRAINING.batch_size
    max_examples: Whole = _TRAINING.max_examples
    server_optimizer: str = _TRAINING.server_optimizer
    server_learning_rate: Number | str = _TRAINING.server_learning_rate
    server_momentum: Number = _TRAINING.server_momentum
    server_warmup: Number = _TRAINING.server_warmup
    server_cooldown: Number = _TRAINING.server_cooldown
    evaluate_every: Whole = _TRAINING.evaluate_every
    evaluation_examples: Whole = _TRAINING.evaluation_examples
    validation_split: str = _TRAINING.validation_split
    test_examples: Whole | str = _TRAINING.test_examples
    seed: Whole = _TRAINING.seed
    reference_model: bool = _TRAINING.reference_model

    def sampling_settings(self) -> SamplingSettings:
        """Returns how cohorts are drawn.

        There is no default for its numbers: single participation, the obvious one, gives the smallest ε.

        Raises:
            InputError: If a parameter is missing, out of range, or does not go with the sampling.
        """
        return SamplingSettings(**self._fields_of(SamplingSettings))

    def participation(self) -> tff_mf.Participation:
        """Returns the schema that the guarantee is for: every pattern of rounds that the sampling allows a client.

        Raises:
            InputError: As `sampling_settings`.
        """
        return self.sampling_settings().schema(self.rounds)

    def check(self) -> None:
        """Refuses what can be refused before anything is optimized, trained or written.

        Raises:
            InputError: If a field is out of range, or the fields do not fit each other.
        """
        self._check_rate()
        self._check_counts()
        self.training_settings()
        setting = self.mechanism_setting()
        check_restarts(self.rounds, self.restart_every, self.adaptive_count_stddev)
        self._check_secrecy()
        check_level(epsilon=self.epsilon, noise_multiplier=self.noise_multiplier, delta=self.delta)
        grid = self._grid()
        if grid is not None and self.mechanism == "dense":
            # Before a search of hours.
            grids.check_rows("dense", bands=setting.searched_rounds, dimension=dimension_of(self._model()))
        for name in ("buffers", "bands"):
            if getattr(self, name) is not None:
                validation.whole(name, getattr(self, name))
        mechanism_names.check(
            self.mechanism,
            rounds=setting.searched_rounds,
            buffers=self.buffers,
            bands=self.bands,
            unit_norms=self.unit_norms,
            objective=self.objective,
            workload=setting.searched_workload,
        )

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting of the whole run that its mechanism is optimized for.

        Raises:
            InputError: If a field is out of range, or the participations do not fit in the rounds.
        """
        workload = mechanism_names.workload(
            self.workload,
            rounds=self.rounds,
            momentum=self.server_momentum,
            warmup=self.server_warmup,
            cooldown=self.server_cooldown,
        )
        return MechanismSetting(
            rounds=self.rounds,
            participation=self.participation(),
            restart_every=self.restart_every,
            workload=workload,
        )

    def build_mechanism(self) -> tff_mf.Mechanism:
        """Returns the mechanism, for one restart if there are restarts, optimized if it is of such a kind.

        Raises:
            InputError: If a field is out of range, or the mechanism cannot be built.
        """
        with progress.search() as report:
            return self.mechanism_setting().named(
                self.mechanism,
                buffers=self.buffers,
                bands=self.bands,
                unit_norms=self.unit_norms,
                objective=self.objective,
                progress=report,
            )

    def privacy_plan(self, mechanism: tff_mf.Mechanism, insecure_seed: int | None = None) -> tff_mf.Plan:
        """Returns the guarantee of a run with `mechanism`.

        Raises:
            InputError: If a field is out of range.
        """
        self._check_counts()
        grid = self._grid()
        if grid is not None and mechanism.max_rounds is not None and mechanism.kind in ("dense", "structured"):
            grids.check_rows(mechanism.kind, bands=mechanism.max_rounds, dimension=dimension_of(self._model()))
        return tff_mf.plan(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.participation(),
            delta=self.delta,
            clients_per_round=self.clients_per_round,
            cohort=self.cohort,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            insecure_seed=insecure_seed,
            restart_every=self.restart_every,
            adaptive_count_stddev=self.adaptive_count_stddev,
            grid=grid,
            dimension=None if grid is None else dimension_of(self._model()),
            clip_norm=self.clip_norm,
        )

    def _model(self) -> ModelConfig:
        return ModelConfig(architecture=self.model, **self._fields_of(ModelConfig))

    def _grid(self) -> tff_mf.Grid | None:
        cohort = checked_cohort(self.clients_per_round, self.cohort)
        return grid_of(self.grid, dimension=dimension_of(self._model()), cohort=cohort)

    def training_settings(
        self, server_learning_rate: float = 1.0, *, tensorboard: bool = False, begun_with: InitialModel | None = None
    ) -> TrainingSettings:
        """Returns everything but the privacy: each part takes its fields by their names.

        Args:
            server_learning_rate: The rate in place of "proposed"; otherwise the field's own is taken.
            tensorboard: Whether to write metrics for TensorBoard too.
            begun_with: The initial model of a run that is resumed, whose folder has a copy; the file is not read then.

        Raises:
            InputError: If a field is out of range.
        """
        validation.one_of("model", self.model, ARCHITECTURES)
        values = self._fields_of(TrainingSettings) | {
            "model": self._model(),
            "sampling": self.sampling_settings(),
            "tensorboard": tensorboard,
            "initial_model": begun_with or self._initial_model(),
        }
        if self.server_learning_rate == PROPOSED:
            values["server_learning_rate"] = server_learning_rate
        return TrainingSettings(**values)

    def _initial_model(self) -> InitialModel | None:
        return None if self.initial_model is None else given(self.initial_model, dataset=self.dataset)

    def _fields_of(self, part: type) -> dict[str, Any]:
        return {name: getattr(self, name) for name in fields_of(part) if name in FIELDS}

    def chosen_rate(self, privacy: tff_mf.Plan) -> float:
        """Returns the server's rate; for "proposed", the rate that follows from the noise of `privacy`.

        Raises:
            InputValueError: If the rate is another word, or there is no noise to propose one from.
        """
        self._check_rate()
        if not isinstance(self.server_learning_rate, str):
            return self.server_learning_rate
        return learning_rates.PAPER.proposed(learning_rates.rmse_of_plan(privacy), clip_norm=self.clip_norm)

    def _check_secrecy(self) -> None:
        """Raises if cohorts are to be secret and no theorem covers the run, or σ would depend on the data set."""
        if not self.secret_cohorts:
            return
        amplification.check_own(restart_every=self.restart_every, cohort=self.cohort, clients=self.clients_per_round)
        if self.epsilon is not None:
            raise InputValueError(
                f"epsilon={self.epsilon!r} does not go with secret_cohorts: σ depends on the number of clients then; "
                "give noise_multiplier, which `tff-mf calibrate` finds with --sampling and --population."
            )

    def _check_rate(self) -> None:
        if isinstance(self.server_learning_rate, str) and self.server_learning_rate != PROPOSED:
            raise InputValueError(
                f"server_learning_rate={self.server_learning_rate!r} must be a number or {PROPOSED!r}."
            )
        if self.server_learning_rate == PROPOSED and self.adaptive_clipping is not None:
            raise InputValueError(
                f"server_learning_rate={PROPOSED!r} is for a fixed clip norm, and adaptive_clipping changes it: give a "
                "number."
            )

    def _check_counts(self) -> None:
        """Raises unless the counts of adaptive clipping are accounted for if they are released, and only then."""
        if (self.adaptive_clipping is None) == (self.adaptive_count_stddev is None):
            return
        given, missing = (
            ("adaptive_count_stddev", "adaptive_clipping, the part of the updates that shall be below the clip norm")
            if self.adaptive_clipping is None
            else ("adaptive_clipping", "adaptive_count_stddev, the noise of the counts, which are part of ε")
        )
        raise InputValueError(f"{given}={getattr(self, given)!r} needs {missing}.")


FIELDS = fields_of(RunConfiguration)
