"""Results of the runs of a comparison: best learning rates by validation, test accuracy, intervals and gaps."""

import dataclasses
import itertools
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import scipy.stats

from ..runs import learning_rates
from ..runs.metrics import ACCURACY, ROUND, read_metrics
from ..runs.statements import REFUSED

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Attributes:
        label: The mechanism with its options.
        privacy: Which of ε and σ was fixed, and its value.
        seed: Seed of the cohorts and the initial model.
        rate: Learning rate of the server.
        effective_rmse: L_e of figure 11.
        accuracy: On test sentences.
        validation_accuracy: On validation sentences, in the mean of the last evaluations
            (`run_folder.metrics.smoothed`).
        history: Round and accuracy of each evaluation on validation sentences.
        test_sentences: How many test sentences.
        claim: The facts of its guarantee, or of why there is none.
    """

    label: str
    privacy: tuple[str, float]
    seed: int
    rate: float
    effective_rmse: float
    accuracy: float
    validation_accuracy: float
    history: Sequence[tuple[int, float]]
    test_sentences: int
    claim: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A mechanism at one level of privacy, at the best of its rates.

    Attributes:
        label: The mechanism with its options.
        privacy: Which of ε and σ was fixed, and its value.
        best: Its runs at the best rate, one per seed.
        tried: Mean validation accuracy by rate.
    """

    label: str
    privacy: tuple[str, float]
    best: Sequence[Finished]
    tried: Mapping[float, float]

    @property
    def rate(self) -> float:
        """The best rate."""
        return self.best[0].rate

    @property
    def effective_rmse(self) -> float:
        """L_e of figure 11."""
        return self.best[0].effective_rmse

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried, so that a better one may lie beyond."""
        return self.rate in (min(self.tried), max(self.tried))

    @property
    def claim(self) -> Mapping[str, Any]:
        """The guarantee of its first run, or the one of a run that has none."""
        return next((run.claim for run in self.best if run.claim["state"] == REFUSED), self.best[0].claim)

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy on test clients by seed."""
        return {run.seed: run.accuracy for run in self.best}


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its 95 % interval by Student's t; None for a single value.

    Example:
        >>> mean, half = mean_and_half_width([1.0, 2.0, 3.0])
        >>> f"{mean:.1f} {half:.3f}"
        '2.0 2.484'
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)
    return mean, float(quantile * statistics.stdev(values) / math.sqrt(len(values)))


def levels(finished: Sequence[Finished]) -> list[Level]:
    """Returns each mechanism at each level of privacy, its rate chosen by mean validation accuracy, best first.

    Rates are compared over the seeds that all of them have in common; if there are none, over the seeds of each. They
    are compared by smoothed accuracy, as in Choquette-Choo et al. (2023), table 6.
    """
    found = []
    key = _key
    for (label, privacy), grouped in itertools.groupby(sorted(finished, key=key), key=key):
        group = list(grouped)
        by_rate: dict[float, dict[int, Finished]] = {}
        for run in group:
            by_rate.setdefault(run.rate, {})[run.seed] = run
        common = set.intersection(*(set(runs) for runs in by_rate.values()))
        tried = {
            rate: statistics.fmean(
                run.validation_accuracy for seed, run in runs.items() if seed in common or not common
            )
            for rate, runs in by_rate.items()
        }
        best = max(tried, key=lambda rate: tried[rate])
        runs = [by_rate[best][seed] for seed in sorted(by_rate[best])]
        found.append(Level(label=label, privacy=privacy, best=runs, tried=tried))
    return sorted(found, key=lambda level: (level.privacy, -statistics.fmean(level.accuracies.values())))


def gaps(found: Sequence[Level]) -> list[dict[str, Any]]:
    """Returns the difference in accuracy of any two mechanisms at one level of privacy, over the seeds that both have.

    `neighbours` is whether no other mechanism lies between the two.
    """
    result = []
    for (above, better), (below, worse) in itertools.combinations(enumerate(found), 2):
        shared = sorted(better.accuracies.keys() & worse.accuracies.keys())
        if better.privacy != worse.privacy or not shared:
            continue
        mean, half = mean_and_half_width([better.accuracies[seed] - worse.accuracies[seed] for seed in shared])
        result.append(
            {
                better.privacy[0]: better.privacy[1],
                "better": better.label,
                "worse": worse.label,
                "gap": mean,
                "half_width_95": half,
                "seeds": len(shared),
                "neighbours": below == above + 1,
            }
        )
    return result


def fitted(found: Sequence[Level]) -> learning_rates.Regression | None:
    """Returns the line through the best rates, or None if fewer than two noise levels have one inside the grid."""
    inside = [level for level in found if not level.at_edge and level.effective_rmse > 0]
    if len({level.effective_rmse for level in inside}) < 2:
        return None
    return learning_rates.fit([level.effective_rmse for level in inside], [level.rate for level in inside])


def history(path: pathlib.Path) -> list[tuple[int, float]]:
    """Returns round and accuracy of each evaluation in a run's metrics file."""
    return [(int(row[ROUND]), float(row[ACCURACY])) for row in read_metrics(path).rows if row.get(ACCURACY)]


def _key(run: Finished) -> tuple[str, tuple[str, float]]:
    return run.label, run.privacy
