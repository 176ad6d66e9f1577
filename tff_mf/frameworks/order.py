"""What an order of examples is: the batch of each round, by a sampling."""

import dataclasses
import functools
import hashlib

import numpy as np

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.frameworks._central import check_central
from tff_mf.planning.plan import Plan
from tff_mf.problem.cohort_secret import CohortSecret
from tff_mf.problem.draws import Draws, SeededDraws, SystemDraws, rows_of
from tff_mf.problem.participation import FixedEpoch, Participation, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """Which examples are in the batch of each round: the cohorts of a sampling, with examples in the place of clients.

    Formal guarantee: the rounds of every example are a pattern of `participation`, whatever the data. Batches of a
    sampling at random, such as `tff_mf.Poisson` or `tff_mf.BallsInBins`, are drawn from the randomness of the system.
    `tff_mf.epsilon` of `rounds` and `sampling`, and `tff_mf.calibrate_noise_multiplier`, are then amplified: they hold
    as long as nobody learns which examples were in a batch, or how many. Groups of `tff_mf.CyclicPoisson`, which need
    not be secret, and all other batches follow from a public seed.

    Attributes:
        sampling: How batches are drawn. For `tff_mf.FixedEpoch`, examples are shuffled once and cut into `min_sep`
            batches, which take turns: each example is in exactly one of them, or, if it fills no batch, in none.
        examples: Number N of examples.
        batch_size: Number B of examples in a batch, or its expectation. Sums of gradients are divided by this constant,
            never by the size of a batch.
        rounds: Number of rounds n of the whole training.
        seed: The same seed gives the same batches, where they may be known.

    Example:
        >>> import tff_mf
        >>> epochs = tff_mf.FixedEpoch(min_sep=3, max_participations=4)
        >>> Order(sampling=epochs, examples=10, batch_size=3, rounds=12).batches(0, 12).shape
        (12, 3)
        >>> dp_sgd = Order(sampling=tff_mf.Poisson(population=1000, clients_per_round=10), examples=1000,
        ...                batch_size=10, rounds=100)
        >>> epsilon = tff_mf.epsilon(tff_mf.Identity(), 100, dp_sgd.sampling, noise_multiplier=1.0, delta=1e-6)
        >>> round(epsilon, 2)
        0.95

    Raises:
        InputValueError: If a field differs from the sampling's own.
    """

    sampling: Sampling
    examples: int
    batch_size: int
    rounds: int
    seed: int = 0

    def __post_init__(self) -> None:
        validation.instance("sampling", self.sampling, Sampling, "pass tff_mf.FixedEpoch, Poisson or another sampling")
        for name, least in (("examples", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name), at_least=least))
        object.__setattr__(self, "rounds", validation.listable(self.rounds))
        if self.batch_size > self.examples:
            raise InputValueError(
                f"batch_size={self.batch_size} exceeds examples={self.examples}: take smaller batches."
            )
        for name, own in (("examples", "population"), ("batch_size", "clients_per_round")):
            expected = getattr(self.sampling, own, None)
            if expected not in (None, getattr(self, name)):
                raise InputValueError(f"{name}={getattr(self, name)}, but {self.sampling} has {own}={expected}.")
        # Refuses a sampling that does not fit the rounds.
        _ = self.participation

    @classmethod
    def of(cls, plan: Plan, *, examples: int, seed: int = 0) -> "Order":
        """Returns the order of a plan, with examples in the place of clients.

        Args:
            plan: The plan; its `clients_per_round` is the size of a batch.
            examples: Number N of examples, the plan's `population` if it has one.
            seed: The same seed gives the same batches, where they may be known.

        Raises:
            InputValueError: If the plan has another number of examples, random cohorts without `secret_cohorts`, or
                what is not supported here: restarts, adaptive clipping, or a cohort that is simulated by a smaller one.
        """
        check_central(plan)
        if isinstance(plan.sampling, accounting.SecretSampling) and not plan.secret_cohorts:
            raise InputValueError(
                f"secret_cohorts=False in a plan with sampling={plan.sampling!r}, whose batches training keeps secret "
                f"to state its ε: take secret_cohorts=True, or sampling={plan.participation!r}."
            )
        if plan.population not in (None, examples):
            raise InputValueError(f"examples={examples}, but the plan has population={plan.population}.")
        return cls(
            sampling=plan.sampling, examples=examples, batch_size=plan.clients_per_round, rounds=plan.rounds, seed=seed
        )

    @property
    def participation(self) -> Participation:
        """The schema that each example keeps to."""
        return self.sampling.schema(self.rounds)

    @property
    def epoch_rounds(self) -> int:
        """Number of rounds of an epoch, after which training validates, saves and calls its callbacks."""
        if isinstance(self.sampling, FixedEpoch):
            return min(self.rounds, self.sampling.min_sep)
        return min(self.rounds, max(1, round(self.examples / self.batch_size)))

    @property
    def is_sampled(self) -> bool:
        """Whether batches are secret, and differ in size."""
        return isinstance(self.sampling, accounting.SecretSampling)

    def batches(self, begin: int, count: int, *, secret: CohortSecret | None = None) -> np.ndarray:
        """Returns the examples in the batches of `count` rounds from round `begin`.

        Args:
            begin: The first of the rounds.
            count: Their number.
            secret: What secret batches follow from, the same in all rounds of a training: `CohortSecret.drawn()`.
                Save it, and pass it again where a training goes on. Batches that may be known follow from `seed`, and
                rounds of `CyclicPoisson` are independent: they need none.

        Returns:
            Indices of examples, int32 `[count, width]`; −1 stands for no example, and fills the end of a row. They are
            the caller's own: whatever is written into them changes no other batch, nor this one if it is asked again.

        Raises:
            InputValueError: If the rounds are not all below `rounds`, the examples cannot fill the batches, or `secret`
                is missing.
        """
        begin = validation.whole("begin", begin, at_least=0)
        count = validation.whole("count", count, at_least=0)
        if begin + count > self.rounds:
            raise InputValueError(
                f"begin={begin} and count={count} exceed the {self.rounds} rounds that the order was accounted for: "
                "make an order of more epochs, and calibrate the noise for it."
            )
        if isinstance(self.sampling, accounting.CyclicPoisson):
            # Rounds are independent, given the groups, so that no coin has to be stored, nor tossed before its round.
            rounds, groups = range(begin, begin + count), self._groups
            return rows_of([self.sampling.joined(groups[t % len(groups)], SystemDraws()) for t in rounds])
        if not self.is_sampled:
            return self._public_batches[begin : begin + count].copy()
        if secret is None:
            raise InputValueError(
                f"secret=None, but examples have their places by {self.sampling} in all {self.rounds} rounds: pass one "
                "tff_mf.CohortSecret.drawn() in every call, and save it for a training that goes on."
            )
        if secret not in self._secret_batches:
            names = [str(index) for index in range(self.examples)]
            self._secret_batches[secret] = self._batches_by(secret.draws(names, self.sampling))
        return self._secret_batches[secret][begin : begin + count].copy()

    @functools.cached_property
    def _groups(self) -> np.ndarray:
        assert isinstance(self.sampling, accounting.CyclicPoisson)
        return self.sampling.members(SeededDraws(self.seed)).astype(np.int32)

    @functools.cached_property
    def _secret_batches(self) -> dict[CohortSecret, np.ndarray]:
        return {}

    @functools.cached_property
    def _public_batches(self) -> np.ndarray:
        return self._batches_by(SeededDraws(self.seed))

    def _batches_by(self, draws: Draws) -> np.ndarray:
        return self.sampling.cohorts(self.examples, self.rounds, clients_per_round=self.batch_size, draws=draws)

    @property
    def fingerprint(self) -> bytes:
        """Digest of the order: of its fields, and of the batches that its seed gives, which need not be secret."""
        if isinstance(self.sampling, accounting.CyclicPoisson):
            places = self._groups.tobytes()
        else:
            places = b"" if self.is_sampled else self._public_batches.tobytes()
        return hashlib.sha256(repr(self).encode() + places).digest()
