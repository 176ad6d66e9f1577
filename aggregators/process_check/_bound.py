"""Checks how far clients move the aggregate: each by the clip norm at most, whichever others report."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from . import _clients
from ._clients import Attempt, Move, attempts
from ._probe import CHANCE, UNDIVIDED, Findings, Probe

# Relative error of an estimate of the server's rate.
_ERROR = 0.1

# With so many clients a round, or half of them, standard deviations of the compared sizes are 2% of them.
_CLIENTS = 40
_CLIENTS_OF_LARGE_MODELS = 8
_FEWEST = 8

# Six standard deviations or more of the compared sizes.
_BOUND = 1.15
_REACHED = 0.85
_SAME = 0.1
_TWICE = (1.5, 2.7)
_TIMES = 64

_CLIPPED = "Pass model_aggregator=build_mf_aggregator(...) with the claimed clip_norm, and enlarge nothing after it."
_UNWEIGHTED = (
    "Give all clients equal weight: client_weighting=UNIFORM, or tff.aggregators.as_weighted_aggregator around ours."
)
_LARGER = (
    "Pass hostile=: data of a client whose update exceeds clip_norm in one step; or raise the learning rate of "
    "client_optimizer_fn."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """How far a client with an update of norm `clip_norm` moves the model, and the relative error of that."""

    size: float
    error: float


def count_for(stddev: float, dimension: int) -> int:
    """Returns an even number of clients that stand out from noise of `stddev` clip norms in one round."""
    needed = max(_FEWEST, _CLIENTS * stddev, _CLIENTS_OF_LARGE_MODELS * stddev * dimension**0.25)
    return 2 * math.ceil(needed / 2)


def check(
    probe: Probe,
    clients: Sequence[Any],
    hostile: Any,
    *,
    claimed: float | None,
    noise: float | None,
    count: int,
    findings: Findings,
) -> Unit | None:
    """Checks clipping, divisor and weights with rounds of many identical clients.

    Args:
        probe: The process.
        clients: Example data.
        hostile: Data of a client with a long update, or `None`.
        claimed: Maximum distance by which a client may move the model, or `None` if the server's rate is unknown.
        noise: Standard deviation of what rounds without clients add to a weight, or `None` if it is not finite.
        count: Number of clients in a round.
        findings: Receives the findings.

    Returns:
        How far a clipped client moves the model, or `None` if that could not be measured.
    """
    client = _clients.poisoned(clients[0])
    if client is not None and not np.all(np.isfinite(probe.step(probe.fresh(), [client, *clients[1:]]).change)):
        findings.failed("clipping", "The NaN of one client makes the whole model NaN.", _CLIPPED)
        return None
    tried: list[tuple[Attempt, Move]] = []
    for attempt in attempts(clients, hostile):
        tried.append((attempt, attempt.move(probe, count)))
        if _beyond(tried[-1][1].size / count, claimed, findings):
            _weights(probe, *tried[-1], count, findings)
            return None
        if _saturated(tried, count, claimed):
            break
    saturated = _saturated(tried, count, claimed)
    attempt, move = tried[-1] if saturated else max(tried, key=lambda each: each[1].size)
    if move.stands_out:
        _divisor(attempt.move(probe, count // 2), move, noise, findings)
    else:
        findings.unjudged(("divisor",), "No made-up client moves the model visibly.", _LARGER)
    if not saturated:
        _unreached(tried, claimed, findings)
        return None
    findings.made("clipping")
    _weights(probe, attempt, move, count, findings)
    if claimed is not None:
        findings.measured["move_over_claimed"] = move.size / count / claimed
    return Unit(size=move.size / count, error=_ERROR) if claimed is None else Unit(size=claimed, error=0.0)


def _beyond(size: float, claimed: float | None, findings: Findings) -> bool:
    if not math.isfinite(size):
        findings.failed("clipping", "The data of one client makes the model infinite or NaN.", _CLIPPED)
        return True
    if claimed is None or size <= _BOUND * claimed:
        return False
    findings.measured["move_over_claimed"] = size / claimed
    text = f"A client moves the aggregate {size / claimed:.3g} times as far as clip_norm allows."
    findings.failed("clipping", text, _CLIPPED)
    return True


def _saturated(tried: Sequence[tuple[Attempt, Move]], count: int, claimed: float | None) -> bool:
    """Returns whether the last two updates were clipped: the later one was meant to be longer and is not."""
    if len(tried) < 2:
        return False
    sizes = [move.size / count for _, move in tried[-2:]]
    if claimed is not None:
        return min(sizes) > _REACHED * claimed
    # A model with larger weights may have the same gradients; larger data have larger gradients.
    larger = all(attempt.scale is not None and move.stands_out for attempt, move in tried[-2:])
    return larger and abs(sizes[1] / sizes[0] - 1) < _SAME


def _unreached(tried: Sequence[tuple[Attempt, Move]], claimed: float | None, findings: Findings) -> None:
    sizes = [move.size for attempt, move in tried if attempt.scale]
    if claimed is None and len(sizes) > 2 and sizes[0] > 0 and all(np.diff(np.log(sizes)) > math.log(2)):
        text = f"A client with longer and longer updates moves the aggregate {sizes[-1] / sizes[0]:.3g} times as far."
        findings.failed("clipping", text, _CLIPPED)
        return
    text = "No made-up client has an update that is long enough to be clipped."
    findings.unjudged(("clipping", "weights"), text, _LARGER)


def _divisor(half: Move, move: Move, noise: float | None, findings: Findings) -> None:
    # Rounds of the same clients may differ by more than noise, for example if clients shuffle, but never by less.
    if noise and stats.chi2.cdf(move.dimension * (move.noise_stddev / noise) ** 2, move.dimension) < CHANCE:
        text = f"With clients, the noise is {move.noise_stddev / noise:.3g} times as large as without."
        findings.failed("divisor", text, UNDIVIDED)
        return
    findings.made("divisor")
    ratio = move.size / half.size if half.size else math.inf
    findings.measured["twice_the_clients_move"] = ratio
    if not _TWICE[0] < ratio < _TWICE[1]:
        text = (
            f"Twice as many clients move the aggregate {ratio:.3g} times as far: the divisor depends on the clients "
            "that report."
        )
        findings.failed("divisor", text, UNDIVIDED)


def _weights(probe: Probe, attempt: Attempt, move: Move, count: int, findings: Findings) -> None:
    example = _clients.enlarged(attempt.example, _TIMES)
    if example is None:
        remedy = "Pass clients= as tf.data.Datasets whose batches may be of any size."
        findings.unjudged(("weights",), "No client with more examples could be made from clients=.", remedy)
        return
    larger = dataclasses.replace(attempt, example=example).move(probe, count)
    if not (move.stands_out and math.isfinite(larger.size)):
        findings.unjudged(("weights",), "Clients with more examples do not stand out from the noise.", _LARGER)
        return
    findings.made("weights")
    ratio = larger.size / move.size
    findings.measured["more_examples_move"] = ratio
    if not 1 / _BOUND < ratio < _BOUND:
        text = f"Clients with {_TIMES} times the examples move the aggregate {ratio:.3g} times as far."
        findings.failed("weights", text, _UNWEIGHTED)
