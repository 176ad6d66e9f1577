"""What is fixed before the first round of a run: data, cohorts, model and learning process."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputValueError

from ... import aggregators
from .. import sampling
from ..runs import amplification, statable
from ..runs.initial_model import GivenModel
from ..runs.metrics import ALSO_TRAINING, NOT_TRAINING
from ..runs.settings import RunSettings
from . import client_batches
from .datasets import sentences, sqlite
from .learning_process import build_process
from .task import Measurement, Task, build_measurement, build_task


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """Everything of a run that does not change while it trains.

    Attributes:
        settings: The settings with the numbers that they came to: `RunSettings.resolved`.
        cohorts: Who is chosen in which round: this is logged.
        secret: What the cohorts follow from; `None` if they are known.
        present: Who of them reports.
        vocabulary: The words that the model knows, the most frequent first.
        measured_on: Whether any client that the model is measured on trains too: a word of `runs.metrics`.
        in_secret: What sampling in secret adds to the guarantee; `None` if cohorts are known.
        aggregator: The aggregator in it that adds the noise.
    """

    settings: RunSettings
    privacy: tff_mf.Plan
    cohorts: sampling.CohortPlan
    secret: sampling.CohortSecret | None
    present: sampling.CohortPlan
    vocabulary: Sequence[str]
    language_task: Task
    batches: client_batches.ClientBatches
    measurement: Measurement
    measured_on: str
    in_secret: tff_mf.Level | None
    process: tff.learning.templates.LearningProcess
    aggregator: aggregators.MFAggregationFactory

    @property
    def population(self) -> int:
        """Number of clients of the deployment that the run stands for."""
        return self.privacy.deployed_population(len(self.cohorts.client_ids))

    @property
    def dropped_participations(self) -> int:
        """How often a client was chosen and did not report."""
        return _participations(self.cohorts) - _participations(self.present)

    def initial_state(self) -> Any:
        """Returns the state of the learning process before the first round, with the initial model."""
        return self.process.set_model_weights(self.process.initialize(), self.language_task.initial_weights)


def prepare(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    data: pathlib.Path,
    given: GivenModel | None = None,
    *,
    key: pathlib.Path | None = None,
    run: str | None = None,
    without_epsilon: bool = False,
) -> PreparedRun:
    """Returns what a run is made of; what can be refused is, before anything is built.

    Args:
        settings: As for `PreparedRun`.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        given: The model that training starts from, whose words the run's model knows; `None` is one drawn with the
            seed.
        key: The file of what secret cohorts follow from; `None` if they follow from the seed.
        run: The identifier of a run with secret cohorts that is resumed.
        without_epsilon: Whether to train although no ε can be stated.
    """
    splits = sqlite.load(data)
    drawn = {
        "sampling": _drawn_by(settings, privacy, len(splits.train.client_ids)),
        "client_ids": splits.train.client_ids,
        "clients_per_round": privacy.clients_per_round,
        "rounds": privacy.rounds,
    }
    if key is None:
        cohorts, secret = sampling.plan_cohorts(**drawn, seed=settings.seed), None
    else:
        cohorts, secret = sampling.secret_cohorts(key, run=run, begun=run is not None, **drawn)
    if not without_epsilon:
        statable.check_statable(
            privacy,
            given.named if given else None,
            population=reported_population(privacy, cohorts, logged=secret is None),
            observed=cohorts.observed(),
        )
    present = sampling.without_dropped(cohorts, settings.dropout, seed=settings.seed)
    # A search of its own, which may be refused: before hours of training.
    in_secret = None
    if secret is not None:
        in_secret = amplification.own(privacy, settings.sampling_settings(), len(cohorts.client_ids))
    vocabulary = given.vocabulary if given else list(sqlite.load_word_counts(data, settings.vocab_size))
    language_task = build_task(settings, vocabulary)
    if given:
        drawn_with_seed = language_task.initial_weights
        weights = tff.learning.models.ModelWeights(
            trainable=given.parameters([np.asarray(each) for each in drawn_with_seed.trainable]),
            non_trainable=drawn_with_seed.non_trainable,
        )
        language_task = dataclasses.replace(language_task, initial_weights=weights)
    _check_grid(privacy, present, language_task)
    process, aggregator = build_process(settings, privacy, language_task)
    return PreparedRun(
        settings=settings,
        privacy=privacy,
        cohorts=cohorts,
        secret=secret,
        present=present,
        vocabulary=vocabulary,
        language_task=language_task,
        batches=language_task.build_batches(sentences.ClientSentences(data, "train")),
        measurement=build_measurement(settings, data, language_task),
        measured_on=measured_on(splits.train.client_ids, [*splits.validation.client_ids, *splits.test.client_ids]),
        in_secret=in_secret,
        process=process,
        aggregator=aggregator,
    )


def reported_population(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan, *, logged: bool) -> int:
    """Returns with how many clients a report compares δ: those in the log may stand for more than all clients."""
    population = privacy.deployed_population(len(cohorts.client_ids))
    if not logged:
        return population
    named = {client for t in range(cohorts.rounds) for client in cohorts.cohort(t)}
    return max(population, privacy.deployed_population(len(named)))


def _drawn_by(settings: RunSettings, privacy: tff_mf.Plan, population: int) -> tff_mf.Sampling:
    """Returns the sampling of a run."""
    chosen = settings.sampling_settings()
    schema = chosen.schema(privacy.rounds)
    if schema != privacy.participation:
        raise InputValueError(
            f"sampling={chosen.sampling!r} with rounds={privacy.rounds} bounds clients by {schema}, and the guarantee "
            f"is for {privacy.participation}: plan with that schema."
        )
    return chosen.drawn_by(population=population, clients_per_round=privacy.clients_per_round)


def _check_grid(privacy: tff_mf.Plan, present: sampling.CohortPlan, language_task: Task) -> None:
    """Raises if a cohort is larger than the grid's sums allow, or the model than its guarantee supposes."""
    if privacy.grid is None or privacy.dimension is None:
        return
    largest = max(len(present.cohort(t)) for t in range(present.rounds))
    if largest > privacy.grid.max_clients:
        raise InputValueError(
            f"grid={privacy.grid}: a cohort has {largest} clients, more than a sum has room for: give a cohort of at "
            "least as many as come on average."
        )
    if language_task.parameters > privacy.dimension:
        raise InputValueError(
            f"dimension={privacy.dimension} of the plan must be at least {language_task.parameters}, the number of the "
            "model's parameters: what the grid costs depends on it."
        )


def measured_on(training: Iterable[str], others: Iterable[str]) -> str:
    """Returns what a report says of the clients that a model is measured on.

    Example:
        >>> measured_on(["ann", "bob"], ["bob", "cai"])
        'other sentences of clients that train'
    """
    return ALSO_TRAINING if set(training) & set(others) else NOT_TRAINING


def _participations(cohorts: sampling.CohortPlan) -> int:
    return sum(len(cohorts.cohort(t)) for t in range(cohorts.rounds))
