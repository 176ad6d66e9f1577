"""The content of `comparison.json`: what tables and pictures show of a comparison."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ..output.typed import Number, Record
from ..runs import statements


class AtALevel(Record, kw_only=True):
    """An entry that belongs to one level of noise: either of the two is given.

    Attributes:
        epsilon: The ε that was fixed.
        noise_multiplier: The σ that was fixed.
    """

    epsilon: Number | UnsetType = UNSET
    noise_multiplier: Number | UnsetType = UNSET

    @property
    def level(self) -> str:
        """The level of noise in words.

        Example:
            >>> AtALevel(epsilon=2.0).level
            'ε = 2'
        """
        if not isinstance(self.epsilon, UnsetType):
            return statements.level("epsilon", self.epsilon)
        assert not isinstance(self.noise_multiplier, UnsetType)
        return statements.level("noise_multiplier", self.noise_multiplier)


class LevelResult(AtALevel, kw_only=True):
    """A mechanism at one level of noise, at the best of its rates.

    Attributes:
        mechanism: The mechanism with its options.
        accuracy: Mean accuracy on test sentences over seeds.
        half_width_95: Half the width of its 95 % interval; `None` of one seed.
        baseline_accuracy: What always the most frequent word would reach.
        seeds: Number of seeds.
        accuracy_by_seed: Accuracy on test sentences by seed.
        accuracy_over_rounds: Rounds and validation accuracies by seed.
        server_learning_rate: The best rate.
        rate_at_edge: Whether it is the smallest or the largest that was tried.
        test_sentences: Numbers of test sentences of its runs.
        validation_accuracy_by_rate: Mean validation accuracy of every rate that was tried.
        effective_rmse: L_e of figure 11.
        claim: The guarantee of its runs.
        published: Results of the paper, by name.
    """

    mechanism: str
    accuracy: Number
    half_width_95: Number | None
    baseline_accuracy: Number | UnsetType = UNSET
    seeds: int
    accuracy_by_seed: dict[str, Number]
    accuracy_over_rounds: dict[str, list[tuple[int, Number]]]
    server_learning_rate: Number
    rate_at_edge: bool
    test_sentences: list[int]
    validation_accuracy_by_rate: dict[str, Number]
    effective_rmse: Number
    claim: statements.Claim
    published: dict[str, float] | UnsetType = UNSET

    @property
    def in_paper(self) -> dict[str, float]:
        """Results of the paper, by name; none if there are none."""
        return {} if isinstance(self.published, UnsetType) else self.published


class Gap(AtALevel, kw_only=True):
    """The difference in accuracy of two mechanisms at one level of noise.

    Attributes:
        better: The mechanism that is ahead.
        worse: The other one.
        gap: Mean difference over the seeds that both have.
        half_width_95: Half the width of its 95 % interval; `None` of one seed.
        seeds: Number of these seeds.
        neighbours: Whether no third mechanism is between them.
    """

    better: str
    worse: str
    gap: Number
    half_width_95: Number | None
    seeds: int
    neighbours: bool


class ComparisonResult(Record, kw_only=True):
    """The content of `comparison.json`.

    Attributes:
        specification: What the specification says of itself.
        runs_planned: Number of runs.
        runs_done: Number of runs that are done.
        runs_failed: The last line of each run that failed, by its name.
        levels: Mechanisms at each level of noise, best first.
        gaps: Differences of any two of them.
        pictures: Names of the pictures.
    """

    specification: dict[str, Any] | UnsetType = UNSET
    runs_planned: int
    runs_done: int
    runs_failed: dict[str, str]
    levels: list[LevelResult]
    gaps: list[Gap]
    pictures: Sequence[str] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What the specification says of itself."""
        return {} if isinstance(self.specification, UnsetType) else self.specification

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `comparison.json`."""
        return msgspec.to_builtins(self)
