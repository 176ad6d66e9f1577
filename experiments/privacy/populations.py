"""The deployment that a run stands for: how many clients it has."""

import tff_mf

from .plan import PrivacyPlan


def population(privacy: PrivacyPlan, clients: int) -> int:
    """Returns the number of clients of the deployment that a run of a plan stands for: see `deployed_population`."""
    return deployed_population(
        clients,
        cohort=privacy.cohort,
        clients_per_round=privacy.clients_per_round,
        rounds=privacy.rounds,
        participation=privacy.participation,
    )


def deployed_population(
    clients: int, *, cohort: int, clients_per_round: int, rounds: int, participation: tff_mf.Participation
) -> int:
    """Returns the number of clients of the deployment that a run stands for; δ has to be below its inverse.

    They are the run's own clients if these can fill all cohorts of the deployment under its participation schema: as in
    the papers, where 342,477 clients fill 2,052 cohorts of 1,000, simulated by 100. Otherwise they are as many as are
    in proportion to the cohorts, rounded up.

    Args:
        clients: Number of clients of the run.
        cohort: Clients that a round stands for.
        clients_per_round: Clients that train in a round.
        rounds: Number of rounds n.
        participation: The participation schema.

    Example:
        >>> papers = tff_mf.MinSep(min_sep=342, max_participations=6)
        >>> deployed_population(342_477, cohort=1000, clients_per_round=100, rounds=2052, participation=papers)
        342477
        >>> small = tff_mf.MinSep(min_sep=120, max_participations=2)
        >>> deployed_population(2400, cohort=200, clients_per_round=20, rounds=240, participation=small)
        24000
    """
    apart = min(participation.min_sep, rounds)
    if clients >= cohort * apart and clients * participation.max_participations >= cohort * rounds:
        return clients
    return -(-clients * cohort // clients_per_round)
