"""The plan of a run: mechanism, noise and participation, the guarantee that follows, and how they are chosen."""

import dataclasses
import functools
import inspect
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

from tff_mf import accounting, artifacts
from tff_mf.accounting import Guarantee, Question, Search, SecretSampling, check_sampling
from tff_mf.base import files, strict_json, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.numerics import digits
from tff_mf.planning import compare
from tff_mf.problem import grids, participation
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import Participation, Sampling, check_capacity

# The files of a plan: its fields, and the artifact of its mechanism.
_PLAN, _MECHANISM, _VERSION = "plan.json", "mechanism.safetensors", 1
_SAMPLINGS = {
    kind.__name__: kind
    for kind in (
        participation.MinSep,
        participation.FixedEpoch,
        participation.SingleParticipation,
        accounting.Poisson,
        accounting.CyclicPoisson,
        accounting.BallsInBins,
        accounting.BMinSep,
    )
}
# Fields that have a form of their own in the file.
_OWN = ("mechanism", "sampling", "grid", "search", "options")
# Other mechanisms that are shown.
_MOST_SHOWN = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Mechanism, noise and sampling of a run, and the guarantee that follows from them.

    A cohort of `cohort` clients may be simulated by fewer, `clients_per_round`, with the noise scaled
    down in proportion, as in the papers: the averaged update then has the noise that the large cohort
    would have. The guarantee (ε, δ) holds for the large cohort. The small run itself has much less
    noise, and the guarantee `epsilon_as_run`.

    Formal guarantee: as `guarantee` says, if cohorts are drawn by `sampling`, or by anything else that keeps its
    schema, `participation`. The smaller ε of secret cohorts holds only with `secret_cohorts`.

    Attributes:
        mechanism: The mechanism; with restarts, the mechanism of one restart.
        rounds: Number of rounds n of the whole run.
        sampling: How cohorts are drawn: the object that draws them is the one that is accounted for.
        noise_multiplier: σ of the cohort.
        delta: δ.
        clients_per_round: Clients that train in a round.
        cohort: Clients that a round stands for.
        insecure_seed: Makes the noise repeatable. TEST ONLY: it leaves no guarantee.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping, for the cohort; `None` if
            the clip norm is fixed.
        grid: The grid on which updates, their sums and the noise are integers, or `None` for floating point.
        dimension: The most parameters that the model may have, with a grid: the guarantee is for as many.
        clip_norm: ζ, the bound on the L2 norm of a client's update.
        population: Clients that cohorts are drawn from; `None` if it is not known.
        secret_cohorts: Whether a trusted server draws the cohorts in secret, and nobody ever learns one.
        search: The search that the run is one of, if any: ε is then of the run that it selects.
        target_epsilon: The ε that σ was calibrated for; `None` if σ was given.
        why: Why this mechanism was chosen; empty if it was given.
        options: All mechanisms that were compared, the one with the least loss first; empty if it was given, and in a
            plan that was loaded.

    Raises:
        InputValueError: If fields contradict each other.
    """

    mechanism: Mechanism
    rounds: int
    sampling: Sampling
    noise_multiplier: float
    delta: float
    clients_per_round: int
    cohort: int
    insecure_seed: int | None = None
    restart_every: int | None = None
    adaptive_count_stddev: float | None = None
    grid: Grid | None = None
    dimension: int | None = None
    clip_norm: float = 1.0
    population: int | None = None
    secret_cohorts: bool = False
    search: Search | None = None
    target_epsilon: float | None = None
    why: str = dataclasses.field(default="", compare=False, repr=False)
    options: tuple[compare.Option, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        validation.instance("sampling", self.sampling, Sampling, "pass tff_mf.MinSep(...) or another sampling")
        validation.instance("secret_cohorts", self.secret_cohorts, bool, "pass True or False")
        validation.whole("rounds", self.rounds)
        validation.nonnegative("noise_multiplier", self.noise_multiplier)
        validation.open_unit("delta", self.delta)
        checked_cohort(self.clients_per_round, self.cohort)
        if self.insecure_seed is not None:
            validation.whole("insecure_seed", self.insecure_seed, at_least=0)
        check_restarts(self.participation.check(self.rounds), self.restart_every, self.adaptive_count_stddev)
        grids.check_dimension(self.grid, self.dimension)
        if self.grid is not None and self.clients_per_round > self.grid.max_clients:
            raise InputValueError(
                f"grid={self.grid} has room for fewer than clients_per_round={self.clients_per_round}: take a Grid of "
                "more."
            )
        validation.clip_norm(self.clip_norm)
        if self.target_epsilon is not None:
            validation.positive("target_epsilon", self.target_epsilon)
        if self.search is not None:
            validation.instance("search", self.search, Search, "pass tff_mf.Search(mean=...) or None")
        self._check_cohorts()
        if self.secret_cohorts:
            self._check_secret()

    def _check_cohorts(self) -> None:
        """Raises unless the numbers are those of the sampling, and the population can fill the cohorts."""
        for name in ("population", "clients_per_round"):
            number, of_sampling = getattr(self, name), getattr(self.sampling, name, None)
            if None not in (of_sampling, number) and of_sampling != number:
                raise InputValueError(
                    f"{name}={number!r}, but {self.sampling} has {name}={of_sampling!r}: give both the same."
                )
        if self.population is None:
            return
        validation.whole("population", self.population)
        if isinstance(self.sampling, Participation):
            check_capacity(self.participation, self.population, self.clients_per_round, self.rounds)
        elif self.population < self.clients_per_round:
            raise InputValueError(
                f"clients_per_round={self.clients_per_round} is more than population={self.population}: take fewer."
            )
        deployed = self.deployed_population(self.population)
        if self.delta >= 1 / deployed:
            raise InputValueError(
                f"delta={self.delta!r} must be below 1/population, with {deployed} clients: a mechanism that publishes "
                "one client at random would satisfy it. No report would state an ε."
            )

    def _check_secret(self) -> None:
        """Raises unless a theorem can be about this run's own cohorts."""
        if not isinstance(self.sampling, SecretSampling):
            raise InputValueError(
                f"sampling={self.sampling!r} is not amplified by secret_cohorts: take tff_mf.BallsInBins or another "
                "sampling at random, or secret_cohorts=False."
            )
        for name, is_set in (
            ("restart_every", self.restart_every is not None),
            ("adaptive_count_stddev", self.adaptive_count_stddev is not None),
            ("insecure_seed", self.insecure),
            ("cohort", self.cohort != self.clients_per_round),
            ("search", self.search is not None),
        ):
            if is_set:
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} does not go with secret_cohorts, whose ε is of the clients that "
                    "train, by theorems about one run with one clip norm and noise that never starts anew: leave one "
                    "out."
                )

    @functools.cached_property
    def participation(self) -> Participation:
        """The participation schema Π of the whole run, which holds for whoever knows the cohorts."""
        return self.sampling.schema(self.rounds)

    @property
    def grid_bits(self) -> int | None:
        """log₂ of the clip norm in units of the grid; `None` without one."""
        return None if self.grid is None else self.grid.bits

    @property
    def grid_max_clients(self) -> int | None:
        """Largest number of clients in a sum on the grid; `None` without one."""
        return None if self.grid is None else self.grid.max_clients

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and ε therefore unbounded."""
        return self.insecure_seed is not None

    @property
    def noise_multiplier_as_run(self) -> float:
        """σ of the noise that the run adds to the sum over the clients that train."""
        return self._as_run(self.noise_multiplier)

    @property
    def adaptive_count_stddev_as_run(self) -> float | None:
        """Standard deviation of the noise that the run adds to the count of the clients that train."""
        return None if self.adaptive_count_stddev is None else self._as_run(self.adaptive_count_stddev)

    def _as_run(self, of_cohort: float) -> float:
        """Returns the noise of a round with fewer clients than it stands for, in proportion to their number."""
        if self.clients_per_round == self.cohort:
            # Not multiplied and divided by the same number: rounding could make σ smaller than what is accounted for.
            return of_cohort
        return of_cohort * self.clients_per_round / self.cohort

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        """What the run guarantees that the cohort stands for: of all its restarts, and of the counts it releases.

        Formal guarantee: as for `tff_mf.guarantee` with the plan's restarts, composed with
        `tff_mf.adaptive_clipping_guarantee` if the clip norm adapts; μ is infinite if the noise is repeatable. With a
        grid, what its integers cost is included; without one, noise is taken to be real numbers. It is for whoever
        knows the cohorts, unless they are secret.
        """
        return Guarantee(mu=math.inf) if self.insecure else self.question.guarantee(self.noise_multiplier)

    @property
    def epsilon(self) -> float:
        """ε of the run that the cohort stands for; with a search, of the one that it selects."""
        return self.guarantee.epsilon(self.delta)

    @functools.cached_property
    def epsilon_as_run(self) -> float:
        """ε of the clients that really trained; infinite if their noise is too small for its grid."""
        if self.insecure:
            return math.inf
        smaller = dataclasses.replace(self.question, adaptive_count_stddev=self.adaptive_count_stddev_as_run)
        try:
            return smaller.guarantee(self.noise_multiplier_as_run).epsilon(self.delta)
        except InputValueError:
            if self.grid is None:
                raise
            return math.inf

    @property
    def zcdp_rho(self) -> float:
        """ρ of the run that the cohort stands for; with a search, of each run."""
        return self.guarantee.zcdp_rho

    @property
    def sensitivity(self) -> float:
        """sens_Π of the whole run, over all its restarts, of the C that runs: `mechanism.cast_to_float32()`."""
        return self.question.sensitivity.value

    @functools.cached_property
    def question(self) -> Question:
        """What is asked of the run: its guarantee, its sensitivity, and σ for an ε."""
        return Question(
            mechanism=self.mechanism,
            rounds=self.rounds,
            sampling=self.sampling if self.secret_cohorts else self.participation,
            restart_every=self.restart_every,
            adaptive_count_stddev=self.adaptive_count_stddev,
            grid=self.grid,
            dimension=self.dimension,
            search=self.search,
        )

    def for_model(self, dimension: int) -> "Plan":
        """Returns the plan for a model: with a grid of its size, and σ calibrated again if it was calibrated.

        A plan that has a grid already is returned as it is.

        Args:
            dimension: Number of the model's trainable parameters.

        Formal guarantee: the result's `epsilon` is at most `target_epsilon`, if there is one.

        Example:
            >>> import tff_mf
            >>> floats = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=10, sampling=tff_mf.SingleParticipation(),
            ...                      delta=1e-6, clients_per_round=20, epsilon=2.0)
            >>> floats.for_model(1_000_000).grid
            Grid(bits=15, max_clients=1000)

        Raises:
            InputValueError: If `dimension` is above the dimension that the plan's grid is for.
        """
        validation.whole("dimension", dimension)
        if self.dimension is not None:
            if dimension > self.dimension:
                raise InputValueError(
                    f"dimension={self.dimension} of the plan is smaller than the model, which has {dimension} "
                    "parameters: make the plan with as many, or without grid and dimension."
                )
            return self
        grid = Grid.with_room(dimension=dimension, cohort=self.cohort)
        return dataclasses.replace(self, grid=grid, dimension=dimension)._with_noise_for(self.target_epsilon)

    def _with_noise_for(self, epsilon: float | None) -> "Plan":
        """Returns the plan calibrated for ε; or as it is, if its own σ has a guarantee on its grid."""
        if epsilon is not None:
            return self.calibrated(epsilon)
        if self.grid is not None:
            # Refused now, and not by the first report of the run.
            _ = self.guarantee
        return self

    def calibrated(self, epsilon: float) -> "Plan":
        """Returns the plan with the smallest σ for which its run is (ε, δ)-DP.

        Formal guarantee: the result's `epsilon` is at most the given one: of all restarts, and composed with the counts
        of adaptive clipping.

        Args:
            epsilon: ε that the whole run may reach.

        Raises:
            InputValueError: If the counts alone exceed `epsilon`, or no finite noise is enough.
        """
        sigma = self.question.noise_multiplier(epsilon=epsilon, delta=self.delta)
        return dataclasses.replace(self, noise_multiplier=sigma, target_epsilon=epsilon)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the plan and its mechanism to a folder, which is made if it does not exist.

        Example:
            >>> import tempfile, tff_mf
            >>> plan = tff_mf.plan(population=200, clients_per_round=10, rounds=20, epsilon=8.0, delta=1e-6)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     plan.save(folder)
            ...     tff_mf.Plan.load(folder) == plan
            True

        Raises:
            InputTypeError: If the sampling or the mechanism is of a kind from outside that no file can hold.
        """
        folder, sampling = pathlib.Path(folder), self.sampling
        if _SAMPLINGS.get(type(sampling).__name__) is not type(sampling):
            raise InputTypeError(f"sampling={sampling!r} is of a kind that no file can hold: {', '.join(_SAMPLINGS)}.")
        parameters = {name: getattr(sampling, name) for name in inspect.signature(type(sampling)).parameters}
        fields = {
            "version": _VERSION,
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in _OWN},
            "sampling": {"kind": type(sampling).__name__, **parameters},
            "grid": None if self.grid is None else dataclasses.asdict(self.grid),
            "search": None if self.search is None else {"mean": self.search.mean, "shape": repr(self.search.shape)},
        }
        folder.mkdir(parents=True, exist_ok=True)
        artifacts.save(self.mechanism, folder / _MECHANISM)
        files.write_atomically(folder / _PLAN, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Plan":
        """Returns the plan that `save` wrote.

        Formal guarantee: no sensitivity and no ε is read from a file: `guarantee` is computed from the mechanism.

        Raises:
            ArtifactError: If the mechanism's file is not intact.
            InputError: If the plan's file is missing or damaged, or its fields contradict each other.
        """
        path = pathlib.Path(folder) / _PLAN
        fields = strict_json.read(path, "plan")
        try:
            if fields.pop("version") != _VERSION:
                raise InputValueError(f"plan={str(path)!r} was written by another version: make the plan again.")
            kind = _SAMPLINGS[fields["sampling"].pop("kind")]
            objects: dict[str, Any] = {
                "mechanism": artifacts.load(pathlib.Path(folder) / _MECHANISM),
                "sampling": kind(**fields["sampling"]),
                "grid": None if fields["grid"] is None else Grid(**fields["grid"]),
                "search": None if fields["search"] is None else _search(**fields["search"]),
            }
            return cls(**{**fields, **objects})
        except (KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputTypeError):
                raise
            raise InputValueError(f"plan={str(path)!r} is damaged: {error!r}. Make the plan again.") from error

    def __str__(self) -> str:
        """Returns what the run guarantees, what it needs, and what other mechanisms cost.

        Levels of privacy are numbers only: a report states what holds of a run.

        Formal guarantee: no number is smaller than what the plan has.
        """
        drawn = f"{self.clients_per_round:,}" + ("" if self.population is None else f" of {self.population:,}")
        secrecy = "secret" if self.secret_cohorts else "may be known"
        numbers = "floats, until the size of the model is known: for_model(dimension)"
        if self.grid is not None:
            numbers = f"integers of {self.grid.bits} bits, for models of up to {self.dimension:,} parameters"
        privacy = "TEST ONLY: the noise is repeatable, and nothing is private"
        if not self.insecure:
            privacy = f"epsilon={digits.rounded_up(self.epsilon)}, delta={self.delta!r}, if the run keeps to the plan"
        lines = {
            "privacy": privacy,
            "cohorts": f"{drawn} clients in each of {self.rounds:,} rounds, by {self.sampling}; {secrecy}",
            "mechanism": self.why or self.mechanism.kind,
            "noise": f"σ = {digits.upwards(self.noise_multiplier)} times the clip norm, {self.clip_norm!r}: the "
            "standard deviation of the independent noise that the mechanism correlates",
            "numbers": numbers,
        }
        if self.cohort != self.clients_per_round:
            as_run = digits.rounded_up(self.epsilon_as_run)
            lines["simulates"] = f"{self.cohort:,} clients a round; of those that train, epsilon_as_run={as_run}"
        if self.search is not None and math.isfinite(self.epsilon):
            of_run = digits.rounded_up(dataclasses.replace(self.guarantee, search=None).epsilon(self.delta))
            without = dataclasses.replace(self, search=None).calibrated(self.epsilon).noise_multiplier
            lines["search"] = (
                f"{self.search.mean:g} runs on average, of which the best is published: epsilon={of_run} of each run, "
                f"and {digits.nearest(self.noise_multiplier / without, 3)} times the noise of one run without a search"
            )
        if self.chosen is not None and len(self.options) > 1:
            lines["instead"] = self._instead(self.chosen)
        if "RmsLoss" in self.why:
            lines["RmsLoss"] = (
                "noise in the model after a round, as a root mean square over all rounds, at equal privacy"
            )
        return "\n".join(f"{name:<10} {text}" for name, text in lines.items())

    @property
    def chosen(self) -> compare.Option | None:
        """The one of `options` that is the plan's mechanism; `None` if the mechanism was given, or replaced."""
        return next((option for option in self.options if option.mechanism is self.mechanism), None)

    def _instead(self, chosen: compare.Option) -> str:
        """Returns what some others of the mechanisms that were compared would cost; independent noise is among them."""
        others = [option for option in self.options if option.figures and option is not chosen]
        independent = [option for option in others[_MOST_SHOWN:] if option.name == "identity"]
        costs = []
        for option in others[:_MOST_SHOWN] + independent:
            times, rows = option.noise_beside(chosen), option.figures["memory_rows"]
            copies = f"{rows} {'copy' if rows == 1 else 'copies'} of the model"
            costs.append(f"{option.name}: {digits.nearest(times, 3)} times the noise and {copies}")
        return "; ".join(costs)

    def deployed_population(self, clients: int) -> int:
        """Returns the number of clients of the deployment that the run stands for: see `deployed_population`."""
        return deployed_population(
            clients,
            cohort=self.cohort,
            clients_per_round=self.clients_per_round,
            rounds=self.rounds,
            participation=self.participation,
        )


def _search(*, mean: float, shape: str) -> Search:
    # JSON has no infinity.
    return Search(mean=mean, shape=float(shape))


def deployed_population(
    clients: int, *, cohort: int, clients_per_round: int, rounds: int, participation: Participation
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
        >>> import tff_mf
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


def checked_cohort(clients_per_round: int, cohort: int | None) -> int:
    """Returns how many clients a round stands for.

    Raises:
        InputValueError: If the cohort is smaller than what simulates it.
    """
    clients_per_round = validation.whole("clients_per_round", clients_per_round)
    cohort = clients_per_round if cohort is None else validation.whole("cohort", cohort)
    if cohort < clients_per_round:
        raise InputValueError(
            f"cohort={cohort} must be at least clients_per_round={clients_per_round}: fewer clients simulate more."
        )
    return cohort


def check_restarts(rounds: int, restart_every: int | None, adaptive_count_stddev: float | None) -> None:
    """Raises unless restarts lie within the run, and adaptive clipping has restarts, at which its clip norm changes."""
    if restart_every is not None and validation.whole("restart_every", restart_every) >= rounds:
        raise InputValueError(
            f"restart_every={restart_every} must be less than rounds={rounds}: the noise would never start anew; leave "
            "it out."
        )
    if adaptive_count_stddev is None:
        return
    validation.positive("adaptive_count_stddev", adaptive_count_stddev)
    if restart_every is None:
        raise InputValueError(
            f"adaptive_count_stddev={adaptive_count_stddev!r} needs restart_every: the clip norm adapts at restarts "
            "only, as correlated noise of two clip norms does not cancel."
        )


def plan(
    *,
    rounds: int,
    clients_per_round: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    population: int | None = None,
    mechanism: Mechanism | str | os.PathLike[str] | None = None,
    sampling: Sampling | None = None,
    clip_norm: float = 1.0,
    cohort: int | None = None,
    secret_cohorts: bool = False,
    search: Search | None = None,
    grid: Grid | None = None,
    dimension: int | None = None,
    restart_every: int | None = None,
    adaptive_count_stddev: float | None = None,
    insecure_seed: int | None = None,
    thorough: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Returns the plan of a run: everything that its guarantee depends on, in one object.

    What is not given is chosen: `plan.why` says why, and `plan.options` what the others would cost. `print(plan)` shows
    all of it, and `tff-mf plan` every figure.

    Formal guarantee: with `epsilon`, the plan's own `epsilon` is at most that: of all restarts, and composed with the
    counts of adaptive clipping.

    Args:
        rounds: Number of rounds n of the whole run.
        clients_per_round: Clients that train in a round, for some samplings on average.
        delta: δ; at most one divided by the number of clients, and rather less.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ of the cohort, in place of ε.
        population: Clients that cohorts are drawn from; needed if `sampling` is not given.
        mechanism: The mechanism, with restarts of one restart; or a name, such as "blt" or "banded", or the path of an
            artifact; or `None` for the recommended one: with secret cohorts, of those that the sampling amplifies.
        sampling: How cohorts are drawn; `None` for clients that come as far apart as their number allows.
        clip_norm: ζ, the bound on the L2 norm of a client's update.
        cohort: Clients that a round stands for; `clients_per_round` if not given.
        secret_cohorts: Whether a trusted server draws the cohorts in secret and nobody ever learns one: otherwise
            `sampling` amplifies nothing, and ε is of its schema.
        search: The search for settings that the run is one of, on clients that train: `epsilon` is then what the run
            may reach that it selects, and `draw` says how many runs there are.
        grid: The grid on which updates, their sums and the noise are integers, or `None` for floating point, where
            the guarantee holds only for the real numbers that floats stand for, until `for_model`.
        dimension: The most parameters that the model may have, with a grid.
        restart_every: Rounds after which noise starts anew with fresh z, less than `rounds`; or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping, for the cohort; `None` if
            the clip norm is fixed. It needs `restart_every`.
        insecure_seed: Makes the noise repeatable. TEST ONLY: it leaves no guarantee.
        thorough: Whether mechanisms whose optimization takes minutes are compared too.
        progress: Called with the name of each mechanism that has been compared.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(population=600, clients_per_round=20, rounds=100, epsilon=8.0, delta=1e-6)
        >>> plan.sampling, plan.mechanism.kind, f"{plan.epsilon:.2f}"
        (MinSep(min_sep=30, max_participations=4), 'blt', '8.00')
        >>> simulated = tff_mf.plan(mechanism="identity", rounds=10, sampling=tff_mf.SingleParticipation(),
        ...                         delta=1e-6, clients_per_round=20, cohort=1000, epsilon=2.0)
        >>> f"{simulated.noise_multiplier:.3f} {simulated.noise_multiplier_as_run:.4f}"
        '2.230 0.0446'

    Raises:
        ArtifactError: If `mechanism` is the path of a file that holds no intact artifact.
        InputValueError: If an argument is missing, arguments contradict each other, or the counts alone exceed
            `epsilon`.
    """
    compare.check_level(epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta)
    cohort = checked_cohort(clients_per_round, cohort)
    if sampling is None:
        if population is None:
            raise InputValueError(
                "population and sampling are missing: give population=len(clients), or say with sampling= how often a "
                "client may take part, for example tff_mf.MinSep(min_sep=20, max_participations=5)."
            )
        # Clients come as far apart as their number allows.
        sampling = compare.widest(population, clients_per_round=clients_per_round, rounds=rounds)
    check_sampling(sampling)
    given = Plan(
        mechanism=Identity(),
        rounds=rounds,
        sampling=sampling,
        delta=delta,
        clients_per_round=clients_per_round,
        cohort=cohort,
        insecure_seed=insecure_seed,
        restart_every=restart_every,
        adaptive_count_stddev=adaptive_count_stddev,
        grid=grid,
        dimension=dimension,
        clip_norm=clip_norm,
        population=population,
        secret_cohorts=secret_cohorts,
        search=search,
        noise_multiplier=0.0 if noise_multiplier is None else float(noise_multiplier),
        target_epsilon=epsilon,
    )
    if mechanism is None:
        chosen = _recommended(given, thorough, progress)
    elif isinstance(mechanism, str | os.PathLike):
        chosen = dataclasses.replace(given, mechanism=_setting(given).named(os.fspath(mechanism)))
    else:
        chosen = dataclasses.replace(given, mechanism=mechanism)
    return chosen._with_noise_for(epsilon)


def _setting(plan: Plan) -> compare.MechanismSetting:
    return compare.MechanismSetting(
        rounds=plan.rounds,
        participation=plan.participation,
        restart_every=plan.restart_every,
        grid=plan.grid,
        dimension=plan.dimension,
    )


def _recommended(plan: Plan, thorough: bool, progress: Callable[[str], None] | None) -> Plan:
    """Returns a plan with the recommended mechanism, the reason, and all that were compared."""
    epsilon, measure = plan.target_epsilon, "loss"
    if not plan.secret_cohorts:
        # Without noise, mechanisms are compared as with any.
        level = {"noise_multiplier": plan.noise_multiplier} if epsilon is None else {"epsilon": epsilon}
        options = compare.options(_setting(plan), delta=plan.delta, **level, thorough=thorough, progress=progress)
    elif epsilon is None:
        raise InputValueError(
            "mechanism is missing: with secret_cohorts, which one is best depends on ε; give epsilon in place of "
            "noise_multiplier, or a mechanism."
        )
    else:
        options, measure = (
            compare.amplified(plan.sampling, rounds=plan.rounds, epsilon=epsilon, delta=plan.delta),
            "error",
        )
    chosen, why = options[0], f"{options[0].name}: no other is amplified by {plan.sampling}."
    if len(options) > 1:
        chosen, why = compare.recommend(options, measure=measure)
    assert chosen.mechanism is not None
    return dataclasses.replace(plan, mechanism=chosen.mechanism, why=why, options=tuple(options))
