"""What the size of a data set refuses, before anything is optimized, loaded or written."""

import pathlib

from tff_mf.base.errors import InputValueError
from tff_mf.planning import checked_cohort, deployed_population
from tff_mf.problem.draws import SeededDraws

from ..runs.settings import RunSettings
from ..runs.statements import NO_EPSILON
from ..runs.together import check_together
from .datasets import sentences, sqlite


def check_file(settings: RunSettings, data: pathlib.Path, *, without_epsilon: bool) -> None:
    """Raises unless a file has the clients and the sentences that a run needs, and names all that it lacks.

    Args:
        settings: The settings of the run.
        data: The file.
        without_epsilon: Whether δ may be anything, since no ε is stated.
    """
    clients = sqlite.number_of_clients(sqlite.checked(data), "train")

    def cohorts() -> None:
        drawn_by = settings.sampling_settings().drawn_by(
            population=clients, clients_per_round=settings.clients_per_round
        )
        drawn_by.cohorts(
            clients, settings.rounds, clients_per_round=settings.clients_per_round, draws=SeededDraws(settings.seed)
        )

    def delta() -> None:
        cohort = checked_cohort(settings.clients_per_round, settings.cohort)
        population = deployed_population(
            clients,
            cohort=cohort,
            clients_per_round=settings.clients_per_round,
            rounds=settings.rounds,
            participation=settings.participation(),
        )
        if without_epsilon or settings.delta < 1 / population:
            return
        if population == clients:
            count = f"the data set has {clients:,} clients"
        else:
            count = f"{clients:,} clients × {cohort:,}/{settings.clients_per_round:,} = {population:,}"
        raise InputValueError(
            f"delta={settings.delta!r}: {NO_EPSILON}, it must be below 1/{population} ({count}): take a smaller one, "
            "or train with without_epsilon."
        )

    def test_sentences() -> None:
        number = sentences.number(data, "test")
        if settings.validation_split == "test" and number <= settings.evaluation_examples:
            raise InputValueError(
                f"evaluation_examples={settings.evaluation_examples} leaves no test sentences: the test clients have "
                f"{number}, and with validation_split='test' the first of them are for validation; give fewer, or "
                "validation_split='heldout'."
            )

    check_together([cohorts, delta, test_sentences])
