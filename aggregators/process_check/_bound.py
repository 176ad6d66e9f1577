"""How far clients move the aggregate: each at most by the clip norm, whoever else reports."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from . import _cohorts
from ._probe import Probe
from ._result import CHANCE, UNDIVIDED, Findings

# The server's rate, where it is not known, is found to within this part of itself.
_ERROR = 0.1

# With so many clients a round, standard deviations of what is compared are a fiftieth of it, also for half of them.
_CLIENTS = 40
_CLIENTS_OF_LARGE_MODELS = 8
_FEWEST = 8

# Six standard deviations of what is compared, and more.
_BOUND = 1.15
_REACHED = 0.85
_SAME = 0.1
_TWICE = (1.5, 2.7)
_TIMES = 64
_DEVIATIONS = 6

_CLIPPED = "Pass model_aggregator=build_mf_aggregator(...) with the claimed clip_norm, and enlarge nothing after it."
_UNWEIGHTED = (
    "Let clients weigh the same: client_weighting=UNIFORM, or tff.aggregators.as_weighted_aggregator around ours."
)
_LARGER = (
    "Pass hostile=: data of a client whose update is longer than clip_norm in one step; or raise the rate of "
    "client_optimizer_fn."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """How far a client of norm `clip_norm` moves the model.

    Attributes:
        size: The norm of that move.
        error: Its relative error.
    """

    size: float
    error: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Move:
    """What equal clients together add to the model: its norm without noise, and the noise that was beside it."""

    size: float
    noise_stddev: float
    dimension: int

    @property
    def stands_out(self) -> bool:
        """Whether it is more than noise."""
        variance = self.noise_stddev**2
        deviation = math.sqrt(2 * self.size**2 * variance + self.dimension * variance**2)
        return self.size**2 > _DEVIATIONS * deviation


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Attempt:
    """A client with a long update: an example, by what it is multiplied (or `None`), and by what the model is."""

    example: Any
    scale: float | None = None
    factor: float = 1.0

    @property
    def client(self) -> Any:
        """Its data."""
        return self.example if self.scale is None else _cohorts.scaled(self.example, self.scale)

    def move(self, probe: Probe, count: int) -> _Move:
        """Returns what so many such clients add; not finite if the model is not.

        Two rounds with noise of their own have an inner product that has none, on average.
        """
        cohort = [self.client] * count
        first, second = (probe.step(probe.fresh(self.factor), cohort).change for _ in range(2))
        product = float(first @ second)
        size = math.sqrt(max(0.0, product)) if math.isfinite(product) else math.nan
        noise = float(np.sqrt(np.mean((first - second) ** 2) / 2))
        return _Move(size=size, noise_stddev=noise, dimension=first.size)


def count_for(stddev: float, dimension: int) -> int:
    """Returns the clients of a round that noise of `stddev` clip norms does not hide, an even number."""
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
    """Checks clipping, divisor and weights by rounds of many equal clients.

    Args:
        probe: The process.
        clients: Example data.
        hostile: Data of a client with a long update, or `None`.
        claimed: How far a client may move the model, or `None` if the server's rate is unknown.
        noise: Standard deviation of what rounds without clients add to a weight, or `None` if it is not finite.
        count: Clients of a round.
        findings: What was found is noted here.

    Returns:
        How far a client that is clipped moves the model, or `None` if that could not be seen.
    """
    if not _survives_nans(probe, clients, findings):
        return None
    tried: list[tuple[_Attempt, _Move]] = []
    for attempt in _attempts(clients, hostile):
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
        findings.unjudged(("divisor",), "No client could be made up that moves the model visibly.", _LARGER)
    if not saturated:
        _unreached(tried, claimed, findings)
        return None
    findings.made("clipping")
    _weights(probe, attempt, move, count, findings)
    if claimed is not None:
        findings.measured["move_over_claimed"] = move.size / count / claimed
    return Unit(size=move.size / count, error=_ERROR) if claimed is None else Unit(size=claimed, error=0.0)


def _attempts(clients: Sequence[Any], hostile: Any) -> Iterator[_Attempt]:
    """Yields clients with longer and longer updates: of larger numbers, or for a model with larger numbers."""
    given = clients[0] if hostile is None else hostile
    if hostile is not None:
        yield _Attempt(example=hostile)
    for scale in (10.0, 100.0, 1000.0) if _cohorts.scaled(given, 1.0) is not None else ():
        yield _Attempt(example=given, scale=scale)
    for factor in (1.0, 10.0, 100.0):
        yield _Attempt(example=given, factor=factor)


def _beyond(size: float, claimed: float | None, findings: Findings) -> bool:
    if not math.isfinite(size):
        findings.failed("clipping", "One client's data makes the model infinite or NaN.", _CLIPPED)
        return True
    if claimed is None or size <= _BOUND * claimed:
        return False
    findings.measured["move_over_claimed"] = size / claimed
    text = f"A client moves the aggregate {size / claimed:.3g} times as far as clip_norm allows."
    findings.failed("clipping", text, _CLIPPED)
    return True


def _saturated(tried: Sequence[tuple[_Attempt, _Move]], count: int, claimed: float | None) -> bool:
    """Whether the last two updates were clipped: the later was meant to be longer, and is not."""
    if len(tried) < 2:
        return False
    sizes = [move.size / count for _, move in tried[-2:]]
    if claimed is not None:
        return min(sizes) > _REACHED * claimed
    # A model with larger numbers may have the same gradients; larger data have larger ones.
    larger = all(attempt.scale is not None and move.stands_out for attempt, move in tried[-2:])
    return larger and abs(sizes[1] / sizes[0] - 1) < _SAME


def _survives_nans(probe: Probe, clients: Sequence[Any], findings: Findings) -> bool:
    client = _cohorts.poisoned(clients[0])
    if client is None or np.all(np.isfinite(probe.step(probe.fresh(), [client, *clients[1:]]).change)):
        return True
    findings.failed("clipping", "One client with NaN makes the whole model NaN.", _CLIPPED)
    return False


def _unreached(tried: Sequence[tuple[_Attempt, _Move]], claimed: float | None, findings: Findings) -> None:
    sizes = [move.size for attempt, move in tried if attempt.scale]
    if claimed is None and len(sizes) > 2 and sizes[0] > 0 and all(np.diff(np.log(sizes)) > math.log(2)):
        text = f"A client with longer and longer updates moves the aggregate {sizes[-1] / sizes[0]:.3g} times as far."
        findings.failed("clipping", text, _CLIPPED)
        return
    text = "No client could be made up whose update is long enough to be clipped."
    findings.unjudged(("clipping", "weights"), text, _LARGER)


def _divisor(half: _Move, move: _Move, noise: float | None, findings: Findings) -> None:
    # What differs between rounds of the same clients may be more than noise, as where they shuffle, and never less.
    if noise and stats.chi2.cdf(move.dimension * (move.noise_stddev / noise) ** 2, move.dimension) < CHANCE:
        text = f"With clients the noise is {move.noise_stddev / noise:.3g} times as large as without."
        findings.failed("divisor", text, UNDIVIDED)
        return
    findings.made("divisor")
    ratio = move.size / half.size if half.size else math.inf
    findings.measured["twice_the_clients_move"] = ratio
    if not _TWICE[0] < ratio < _TWICE[1]:
        text = f"Twice as many clients move the aggregate {ratio:.3g} times as far: the divisor depends on who reports."
        findings.failed("divisor", text, UNDIVIDED)


def _weights(probe: Probe, attempt: _Attempt, move: _Move, count: int, findings: Findings) -> None:
    example = _cohorts.enlarged(attempt.example, _TIMES)
    if example is None:
        remedy = "Pass clients= as tf.data.Datasets whose batches may be of any size."
        findings.unjudged(("weights",), "No client with more examples could be made up.", remedy)
        return
    larger = dataclasses.replace(attempt, example=example).move(probe, count)
    if not (move.stands_out and math.isfinite(larger.size)):
        findings.unjudged(("weights",), "Clients with more examples are not seen.", _LARGER)
        return
    findings.made("weights")
    ratio = larger.size / move.size
    findings.measured["more_examples_move"] = ratio
    if not 1 / _BOUND < ratio < _BOUND:
        text = f"Clients with {_TIMES} times the examples move the aggregate {ratio:.3g} times as far."
        findings.failed("weights", text, _UNWEIGHTED)
