"""What the figures of a plan's page show: ε over δ and over rounds, and the error of each round."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from tff_mf.errors import InputValueError
from tff_mf.sensitivities.losses import round_errors
from tff_mf.strict_json import finite

from ..privacy.figure_points import block_ends, deltas, of_some_rounds
from .deployment import Deployment, participations, schema
from .options import Option

Points = list[tuple[float, float | None]]


def curves(deployment: Deployment, options: Iterable[Option], chosen: Option, *, states: bool) -> dict[str, Any]:
    """Returns what the figures of a plan's page show.

    Formal guarantee: each ε comes from `MechanismSetting.guarantee` at the planned noise: at another δ, or of the first
    rounds alone, each client taking part in them as often as it may, and never smaller than for fewer rounds. The
    last round and the planned δ have the ε of the plan. `None` is no finite ε.

    Args:
        deployment: The estimates.
        options: The mechanisms to show, all optimized.
        chosen: The recommended one, which alone has an ε over δ.
        states: Whether an ε may be named.

    Returns:
        `epsilon_over_delta`; and by name of the mechanism `epsilon_over_rounds` and `error_over_rounds`, which is the
        standard deviation of the noise in the sum of all mean updates so far, in clip norms.
    """
    shown = list(options)
    return {
        "epsilon_over_delta": _over_delta(deployment, chosen) if states else [],
        "epsilon_over_rounds": {each.name: _over_rounds(deployment, each) for each in shown} if states else {},
        "error_over_rounds": {each.name: _errors(deployment, each) for each in shown},
    }


def _over_delta(deployment: Deployment, option: Option) -> Points:
    assert option.mechanism is not None
    found = deployment.setting.guarantee(option.mechanism, option.figures["noise_multiplier"])
    return [(delta, finite(found.epsilon(delta))) for delta in deltas(deployment.delta)]


def _over_rounds(deployment: Deployment, option: Option) -> Points:
    mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
    assert mechanism is not None
    min_sep, most = deployment.resolved_min_sep, deployment.participation.max_participations
    found: Points = []
    # The first rounds are part of the whole release, whose bound can be tighter than theirs.
    largest, whole = 0.0, deployment.setting.guarantee(mechanism, sigma).epsilon(deployment.delta)
    for rounds in block_ends(deployment.rounds, min_sep):
        here = min(most, participations(rounds, min_sep))
        setting = dataclasses.replace(
            deployment.setting,
            rounds=rounds,
            participation=schema(min_sep, here, fixed_epochs=deployment.fixed_epochs),
            workload=None,
        )
        largest = max(largest, min(setting.guarantee(mechanism, sigma).epsilon(deployment.delta), whole))
        found.append((rounds, finite(largest)))
    return found


def _errors(deployment: Deployment, option: Option) -> Points:
    """Returns the noise of some rounds; none where that would take matrices that do not fit in memory."""
    assert option.mechanism is not None
    rounds = deployment.rounds
    try:
        found = round_errors(
            option.mechanism, rounds, restart_every=deployment.setting.searched_rounds, workload=deployment.workload
        )
    except InputValueError:
        return []
    scale = option.figures["noise_multiplier"] / deployment.clients_per_round
    return of_some_rounds(found, scale)
