"""Mechanisms compared in the setting of a run, before anything is run, and a recommendation."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tff_mf import accounting
from tff_mf.accounting import BallsInBins, BMinSep, CyclicPoisson, balls_in_bins
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism, Tree
from tff_mf.numerics import digits
from tff_mf.optimize import optimize_banded_toeplitz, optimize_blt
from tff_mf.planning import by_name
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, Sampling, SingleParticipation
from tff_mf.problem.workloads import LearningRates, Workload
from tff_mf.sensitivities import SensitivityResult
from tff_mf.sensitivities.losses import Errors, restart_errors
from tff_mf.sensitivities.restarts import restart_sensitivity

# Bytes of a parameter of the model.
_FLOAT = 4
# Cost of a search as rounds times squared bands: this many take about a second.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7
_ROUNDS_OF_A_QUICK_DENSE_SEARCH = 128
# As much time as a round of a BLT with scaled columns takes.
_PRODUCTS_OF_A_SCALED_ROUND = 2**12

# Losses within this factor are taken to be equal.
AS_GOOD = 1.1


# What is never recommended, and why.
_NEVER = {
    "scaled-blt": "its columns are fitted to this participation, to exactly so many rounds and to RmsLoss: MaxLoss may "
    "be larger, and plan never recommends it without amplification"
}
# Rounds times bands of a comparison with amplification that takes seconds.
_MOST_ENTRIES = 2**16
# More bands are not tried after an error that exceeds the least by this factor.
_RISEN = 1.1
# Of a BLT for balls in bins.
_BUFFERS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismSetting:
    """The setting of a whole run, in which any mechanism has a sensitivity, losses and a guarantee.

    Attributes:
        rounds: Number of rounds n.
        participation: The participation schema Π of the whole run.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        workload: The workload A that losses are for; `None` is the prefix sum.
        grid: The grid whose cost is part of every guarantee, or `None` for real numbers.
        dimension: Number d of model parameters, with a grid.

    Example:
        >>> import tff_mf
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=3)
        >>> setting = MechanismSetting(rounds=12, participation=schema, restart_every=6)
        >>> setting.searched_participation
        MinSep(min_sep=4, max_participations=2)

    Raises:
        InputValueError: If the participations do not fit in `rounds`.
    """

    rounds: int
    participation: Participation
    restart_every: int | None = None
    workload: Workload | None = None
    grid: Grid | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        self.participation.check(self.rounds)
        if self.restart_every is not None:
            validation.whole("restart_every", self.restart_every)
        if self.workload is not None:
            self.workload.check(self.rounds)

    @property
    def searched_rounds(self) -> int:
        """Rounds of the longest restart, for which a mechanism must be defined."""
        return self.rounds if self.restart_every is None else min(self.rounds, self.restart_every)

    @property
    def searched_participation(self) -> Participation:
        """The schema of one restart: as many of a client's participations as fit in it."""
        schema = self.participation
        fits = -(-self.searched_rounds // schema.min_sep)
        if isinstance(schema, SingleParticipation) or schema.max_participations <= fits:
            return schema
        kind = FixedEpoch if isinstance(schema, FixedEpoch) else MinSep
        return kind(min_sep=schema.min_sep, max_participations=fits)

    @property
    def searched_workload(self) -> Workload | None:
        """The workload of one restart, to optimize for.

        Raises:
            InputValueError: If it has learning rates, which differ from restart to restart.
        """
        if self.searched_rounds < self.rounds and isinstance(self.workload, LearningRates):
            raise InputValueError(
                f"workload={self.workload.kind!r} with restart_every={self.restart_every}: no mechanism is optimized "
                "for learning rates that differ from restart to restart; leave one of the two out."
            )
        return self.workload

    def named(self, name: str, *, progress: by_name.Progress | None = None, **options: Any) -> Mechanism:
        """Returns the mechanism called `name`, optimized for this setting where it can be.

        Args:
            name: One of `by_name.names()`, `production:NAME`, or the path of an artifact.
            progress: As for `by_name.search`.
            options: As for `by_name.search`; the default of `bands` is the min-sep of the setting.

        Example:
            >>> import tff_mf
            >>> schema = tff_mf.MinSep(min_sep=4, max_participations=2)
            >>> MechanismSetting(rounds=8, participation=schema).named("banded").bands
            4

        Raises:
            InputError: If an option does not go with the mechanism, or the optimizer refuses it.
        """
        rounds, schema = self.searched_rounds, self.searched_participation
        if name not in by_name.SEARCHES:
            by_name.check_options(name, **options)
            return by_name.load(name, rounds)
        if options.get("bands") is None and "bands" in by_name.SEARCHES[name].options:
            options["bands"] = min(schema.min_sep, rounds)
        options["workload"] = self.searched_workload
        return by_name.search(name, rounds=rounds, participation=schema, progress=progress, **options)

    def sensitivity(self, mechanism: Mechanism) -> SensitivityResult:
        """Returns sens_Π of the whole run, for zero-out: `tff_mf.restart_sensitivity` of C as it is given.

        Formal guarantee: as for `tff_mf.restart_sensitivity`. Noise runs with the C of `mechanism.cast_to_float32()`.
        """
        every = self.searched_rounds
        return restart_sensitivity(mechanism, self.rounds, self.participation, restart_every=every)

    def question(self, mechanism: Mechanism) -> accounting.Question:
        """Returns the question about a run with this mechanism."""
        return accounting.Question(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.participation,
            restart_every=self.restart_every,
            grid=self.grid,
            dimension=self.dimension,
        )

    def errors(self, mechanism: Mechanism) -> Errors:
        """Returns RmsError and MaxError of the whole run; times sensitivity they are losses."""
        return restart_errors(mechanism, self.rounds, restart_every=self.searched_rounds, workload=self.workload)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A mechanism in a setting, with noise.

    Attributes:
        name: Its name for `tff-mf optimize` or `tff-mf train`; `note` has the flags of one that has no name.
        mechanism: The mechanism; `None` if it was not optimized.
        note: Why it was not optimized, or what it is for; or empty.
        figures: Columns of the table; an unbounded ε is infinite.
    """

    name: str
    mechanism: Mechanism | None
    note: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_no_last_round(self) -> bool:
        """Whether the mechanism is defined for any number of rounds."""
        return self.mechanism is not None and self.mechanism.max_rounds is None

    def noise_beside(self, other: "Option") -> float:
        """Returns how much more noise is in the sums than with another mechanism, at equal privacy."""
        measure = "rms_loss" if "rms_loss" in self.figures else "rms_error"
        return self.figures[measure] / other.figures[measure]


def widest(population: int, *, clients_per_round: int, rounds: int) -> Participation:
    """Returns the schema in which clients come as far apart as their number allows, and as often as fits.

    Args:
        population: Clients N that can take part.
        clients_per_round: Clients of a round.
        rounds: Number of rounds n.

    Example:
        >>> widest(342_477, clients_per_round=1000, rounds=2052)
        MinSep(min_sep=342, max_participations=6)
        >>> widest(342_477, clients_per_round=100, rounds=2052)
        SingleParticipation()

    Raises:
        InputValueError: If a cohort has more clients than there are.
    """
    for name, value in (("population", population), ("clients_per_round", clients_per_round), ("rounds", rounds)):
        validation.whole(name, value)
    if clients_per_round > population:
        raise InputValueError(
            f"clients_per_round={clients_per_round} is more than population={population}: take fewer."
        )
    min_sep = min(population // clients_per_round, rounds)
    return schema(min_sep, participations(rounds, min_sep))


def participations(rounds: int, min_sep: int) -> int:
    """Returns how often a client takes part that does so whenever it may: ⌈n / b⌉."""
    return -(-rounds // min_sep)


def schema(min_sep: int, max_participations: int, *, kind: type[MinSep] | type[FixedEpoch] = MinSep) -> Participation:
    """Returns the schema of these two numbers."""
    if max_participations == 1:
        return SingleParticipation()
    return kind(min_sep=min_sep, max_participations=max_participations)


def check_level(*, epsilon: float | None, noise_multiplier: float | None, delta: float) -> None:
    """Raises unless exactly one of ε and σ is given, and all numbers are in range.

    Raises:
        InputValueError: If not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InputValueError(f"epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}: give one of them.")
    validation.open_unit("delta", delta)
    if epsilon is not None:
        validation.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        validation.nonnegative("noise_multiplier", noise_multiplier)


def options(
    setting: MechanismSetting,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    thorough: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Option]:
    """Returns every mechanism in a setting, the one with the least loss first.

    Args:
        setting: The setting of the run.
        delta: δ.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ, in place of ε.
        thorough: Whether searches of minutes are made.
        progress: Called with the name of each mechanism when it is done.

    Raises:
        InputValueError: If not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    check_level(epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta)
    level = {"delta": delta, "epsilon": epsilon, "noise_multiplier": noise_multiplier}
    compared = []
    for name, search, too_slow in _searches(setting):
        if too_slow and not thorough:
            compared.append(Option(name=name, mechanism=None, note=too_slow))
            continue
        start = time.perf_counter()
        try:
            mechanism = search()
            seconds = time.perf_counter() - start
            option = _at(setting, name, mechanism, **level)
            option.figures["seconds"] = seconds
            compared.append(option)
        except InputValueError as error:
            # A limit of one mechanism does not concern the others: the table names it.
            compared.append(Option(name=name, mechanism=None, note=str(error)))
        if progress is not None:
            progress(name)
    return sorted(compared, key=lambda option: option.figures.get("rms_loss", math.inf))


def recommend(options: list[Option], measure: str = "loss") -> tuple[Option, str]:
    """Returns the mechanism to take, and why.

    Of those whose loss is within a tenth of the least, if possible of those that a longer run could go on with, it is
    the one that keeps the least state; of equal ones, that with the least loss. Column norms that are fitted to the
    participation, which lower one loss at the expense of the other, are left out.

    Args:
        options: Every mechanism, the one with the least loss first.
        measure: "loss", or "error", in clip norms, where noise is not in proportion to a sensitivity.

    Raises:
        InputValueError: If there is no mechanism for these numbers.
    """
    counts, name = f"rms_{measure}", f"Rms{measure.capitalize()}"
    searched = [option for option in options if option.mechanism is not None and option.name not in _NEVER]
    if not searched:
        raise InputValueError(f"There is no mechanism for these numbers: {options[0].name}: {options[0].note}")
    best = searched[0].figures[counts]
    close = [option for option in searched if option.figures[counts] <= AS_GOOD * best]
    pool = [option for option in close if option.has_no_last_round] or close
    chosen = min(pool, key=lambda option: (option.figures["memory_rows"], option.figures[counts]))
    fitted = [option for option in options if option.name in _NEVER]
    less = [option.name for option in fitted if option.figures.get(counts, math.inf) < best]
    without = f", without {' and '.join(less)}" if less else ""
    loss, rows = chosen.figures[counts], chosen.figures["memory_rows"]
    reasons = [
        f"its {name}, {digits.nearest(loss)}, is the least found{without}"
        if loss == best
        else f"its {name}, {digits.nearest(loss)}, is within {100 * (loss / best - 1):.1f} % of the least found "
        f"({searched[0].name}{without})"
    ]
    bound = [option.name for option in close if not option.has_no_last_round]
    if bound and chosen.has_no_last_round:
        reasons.append(f"unlike {bound[0]}, it allows more rounds than planned")
    more = [option for option in pool if option.figures["memory_rows"] > rows]
    copies = f"it keeps {rows or 'no'} {'copies' if rows > 1 else 'copy'} of the model as state"
    reasons.append(copies + (f", {more[0].name} {more[0].figures['memory_rows']}" if more else ""))
    return chosen, f"{chosen.name}: {'; '.join(reasons)}."


def _searches(setting: MechanismSetting) -> Iterator[tuple[str, Callable[[], Mechanism], str]]:
    """Yields names, searches, and why a search is skipped unless `thorough`."""
    n = setting.searched_rounds
    schema = setting.participation
    bands = n if schema.max_participations == 1 else min(schema.min_sep, n)
    buffers = min(4, max(1, n - 1))

    def search(name: str, **options: Any) -> Callable[[], Mechanism]:
        takes = by_name.SEARCHES[name].options
        if "objective" in takes:
            options["objective"] = "rms"

        def run() -> Mechanism:
            if "workload" in takes:
                options["workload"] = setting.searched_workload
            return by_name.search(name, rounds=n, participation=setting.searched_participation, **options)

        return run

    def slow(products: float) -> str:
        seconds = products / _PRODUCTS_OF_A_QUICK_SEARCH
        return f"not searched, takes about {seconds:.0f} s: --thorough" if seconds > 1 else ""

    dense_slow = "not searched, takes minutes or more: --thorough"
    yield "identity", Identity, ""
    yield "blt", search("blt", buffers=buffers), ""
    # From 4 on, pairs of buffers are searched too, which takes seconds.
    scaled = search("scaled-blt", buffers=min(3, buffers))
    yield "scaled-blt", scaled, slow(n * _PRODUCTS_OF_A_SCALED_ROUND)
    yield "banded", search("banded", bands=bands), slow(n * bands**2)
    yield "banded-toeplitz", search("banded-toeplitz", bands=bands), ""
    yield "dense", search("dense"), dense_slow if n > _ROUNDS_OF_A_QUICK_DENSE_SEARCH else ""
    for variant in ("full", "online", "vanilla"):
        yield f"tree-{variant}", lambda variant=variant: Tree(n, variant=variant), ""


def _at(
    setting: MechanismSetting,
    name: str,
    mechanism: Mechanism,
    *,
    delta: float,
    epsilon: float | None,
    noise_multiplier: float | None,
) -> Option:
    """Returns losses, noise and guarantees of a mechanism for an ε or a σ."""
    question, error = setting.question(mechanism), setting.errors(mechanism)
    sigma = noise_multiplier
    if epsilon is not None:
        sigma = question.noise_multiplier(epsilon=epsilon, delta=delta)
    assert sigma is not None
    sensitivity, guarantee = question.sensitivity, question.guarantee(sigma)
    figures = {
        "rms_loss": sensitivity.value * error.rms,
        "max_loss": sensitivity.value * error.max,
        "sensitivity": sensitivity.value,
        "noise_multiplier": sigma,
        "zcdp_rho": guarantee.zcdp_rho,
        "epsilon": guarantee.epsilon(delta),
        "memory_rows": _copies(question, sigma),
    }
    return Option(name=name, mechanism=mechanism, note=_NEVER.get(name, ""), figures=figures)


def _copies(question: accounting.Question, noise_multiplier: float) -> int:
    if question.grid is None:
        return question.mechanism.cast_to_float32().recursion().rows
    deviation = noise_multiplier * 2**question.grid.bits
    integers = question.bounds.at(deviation)
    return sum(np.dtype(kind).itemsize for kind in integers.recursion.types(0)) // _FLOAT


def amplified(sampling: Sampling, *, rounds: int, epsilon: float, delta: float) -> list[Option]:
    """Returns the mechanisms that the theorem of a sampling covers, the one with the least error first.

    Where it covers independent noise alone, nothing is compared, and there are no figures.

    For `BallsInBins` they are compared by estimates of σ, as certificates take longer; for every other sampling by the
    σ that is proved. Costs of a grid are left out: they hardly differ.

    Args:
        sampling: How cohorts are drawn, in secret.
        rounds: Number of rounds n.
        epsilon: ε that the whole run may reach, with amplification.
        delta: δ.

    Example:
        >>> import tff_mf
        >>> options = amplified(tff_mf.CyclicPoisson(groups=4, population=400, clients_per_round=10),
        ...                     rounds=64, epsilon=2.0, delta=1e-6)
        >>> [option.name for option in options]
        ['banded-toeplitz, 4 bands', 'banded-toeplitz, 2 bands', 'identity']
    """
    if _most_bands(sampling, rounds) == 1:
        return [Option(name="identity", mechanism=Identity())]
    compared: list[Option] = []
    least = math.inf
    for name, mechanism, rows in _candidates(sampling, rounds, epsilon, delta):
        sigma = _sigma(sampling, mechanism, rounds, epsilon, delta)
        error = sigma * restart_errors(mechanism, rounds, restart_every=rounds, workload=None).rms
        figures = {"rms_error": error, "noise_multiplier": sigma, "memory_rows": rows}
        compared.append(Option(name=name, mechanism=mechanism, figures=figures))
        least = min(least, error)
        if error > _RISEN * least:
            break
    return sorted(compared, key=lambda option: option.figures["rms_error"])


def _candidates(sampling: Sampling, rounds: int, epsilon: float, delta: float) -> Iterator[tuple[str, Mechanism, int]]:
    """Yields names, mechanisms and the rows of their noise."""
    yield "identity", Identity(), 0
    if isinstance(sampling, BallsInBins):
        # Amplification favors a shorter memory than the best one for known cohorts.
        for min_sep in dict.fromkeys((-(-sampling.groups // 2), sampling.groups)):
            schema = MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))
            blt = optimize_blt(rounds=rounds, participation=schema, buffers=_BUFFERS, objective="rms")
            yield f"blt, made for min-sep {min_sep}", blt, blt.buffers
        return
    most = min(_most_bands(sampling, rounds), _MOST_ENTRIES // rounds)
    for bands in sorted({*(2**power for power in range(1, most.bit_length())), most} - {0, 1}):
        # What is amplified is a round of a client: one column of C.
        toeplitz = optimize_banded_toeplitz(rounds=rounds, bands=bands, participation=SingleParticipation())
        yield f"banded-toeplitz, {bands} bands", toeplitz, bands - 1


def _most_bands(sampling: Sampling, rounds: int) -> int:
    """Returns the largest number of bands that the theorem of a sampling covers."""
    match sampling:
        case BallsInBins():
            return rounds
        case CyclicPoisson():
            return min(sampling.groups, rounds)
        case BMinSep():
            return min(sampling.min_sep, rounds)
        case _:
            return 1


def _sigma(sampling: Sampling, mechanism: Mechanism, rounds: int, epsilon: float, delta: float) -> float:
    if isinstance(sampling, BallsInBins):
        gram = balls_in_bins.balls_in_bins_gram(mechanism, rounds, bins=sampling.groups)
        return balls_in_bins.Estimator(gram).noise_multiplier(epsilon, delta)
    return accounting.calibrate_noise_multiplier(mechanism, rounds, sampling, epsilon=epsilon, delta=delta)
