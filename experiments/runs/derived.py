"""Numbers that follow from settings: the grid, the size of the model, the server's learning rate."""

import dataclasses
import math

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.problem.grids import FEWEST_BITS, MOST_BITS
from tff_mf.sensitivities.losses import restart_errors

AUTO, NONE = "auto", "none"
WORDS = (AUTO, NONE)

# As many as TFF's task adds to the words: padding, unknown, beginning and end of a sentence.
_SPECIAL_WORDS = 4
# Words that the convolution sees at once.
KERNEL_WORDS = 3
# Parameters of the model of the papers' StackOverflow experiments.
PAPERS_DIMENSION = 4_050_748
GRID_BASE = 1.7


def grid_of(grid: int | str, *, dimension: int, cohort: int) -> tff_mf.Grid | None:
    """Returns the grid that a setting stands for; `None` for "none", floating point.

    It has the room of `tff_mf.Grid.with_room`.

    Example:
        >>> grid_of("auto", dimension=4_050_748, cohort=6500)
        Grid(bits=16, max_clients=13000)
    """
    if grid == NONE:
        return None
    try:
        clients = tff_mf.Grid.with_room(dimension=1, cohort=cohort).max_clients
    except InputValueError as error:
        raise InputValueError(
            f"clients_per_round, or cohort={cohort}, is too large for exact sums on a grid: take fewer clients, or "
            f"grid={NONE!r}."
        ) from error
    if grid == AUTO:
        return tff_mf.Grid.with_room(dimension=dimension, cohort=cohort)
    if isinstance(grid, str):
        raise InputValueError(f"grid={grid!r} must be a number of bits, {AUTO!r} or {NONE!r}.")
    if not FEWEST_BITS <= grid <= MOST_BITS:
        raise InputValueError(f"grid={grid} must be at least {FEWEST_BITS} and at most {MOST_BITS} bits, or a word.")
    return tff_mf.Grid(bits=grid, max_clients=clients)


def dimension_of(model: str, *, vocab_size: int, embedding_size: int, units: int) -> int:
    """Returns the number of parameters of a model with its whole vocabulary, without TensorFlow.

    Example:
        >>> dimension_of("lstm", vocab_size=10_000, embedding_size=96, units=670) == PAPERS_DIMENSION
        True
    """
    words, width = vocab_size + _SPECIAL_WORDS, embedding_size
    if model == "conv":
        return words * width + (KERNEL_WORDS * width + 1) * units + (units + 1) * words
    return words * width + 4 * (width + units + 1) * units + (units + 1) * width + (width + 1) * words


def rmse_of_plan(privacy: tff_mf.Plan) -> float:
    """Returns L_e, the root mean squared error of the prefix sums of averaged updates, for clip norm 1.

    Equation 10 of the paper: error of the mechanism times σ / cohort, both of C as stored, for the cohort that a round
    stands for.

    Example:
        >>> plan = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=3, sampling=tff_mf.SingleParticipation(),
        ...                    noise_multiplier=10.0, delta=1e-6, clients_per_round=10)
        >>> round(rmse_of_plan(plan), 6)
        1.414214
    """
    every = privacy.rounds if privacy.restart_every is None else privacy.restart_every
    error = restart_errors(privacy.mechanism, privacy.rounds, restart_every=every).rms
    return error * privacy.noise_multiplier / privacy.cohort


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """log η = slope·log L_e + intercept, in natural logarithms."""

    slope: float
    intercept: float

    def rate(self, rmse: float) -> float:
        """Returns the rate η on the line at `rmse`."""
        return math.exp(self.slope * math.log(validation.positive("effective_rmse", rmse)) + self.intercept)

    def proposed(self, rmse: float, *, clip_norm: float = 1.0) -> float:
        """Returns the rate of the grid 1.7^i next to the line.

        Both updates and noise scale with the clip norm, as long as most updates are clipped, so the rate on the line
        is divided by it.

        Example:
            >>> round(PAPER.proposed(0.333), 4)  # DP-SGD at ε = 1: table 4 has 0.0244
            0.0244
        """
        rate = self.rate(rmse) / validation.positive("clip_norm", clip_norm)
        return GRID_BASE ** round(math.log(rate, GRID_BASE))


PAPER = Regression(slope=-0.95, intercept=-4.64)
