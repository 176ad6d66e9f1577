"""The grid of a run, from its settings alone: before data, model and cohorts are known."""

import tff_mf
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.grids import FEWEST_BITS, MOST_BITS

from .settings import ModelConfig

AUTO, NONE = "auto", "none"
WORDS = (AUTO, NONE)

# Cohorts of a sampling may be larger than those on average: with this room, all are with near certainty.
_ROOM, _FEWEST_CLIENTS = 2, 1000
# As many as TFF's task adds to the words: padding, unknown, beginning and end of a sentence.
_SPECIAL_WORDS = 4
_KERNEL_WORDS = 3


def grid_of(grid: int | str, *, dimension: int, cohort: int) -> tff_mf.Grid | None:
    """Returns the grid that a setting stands for; `None` for "none", floating point.

    It has room for twice a cohort, and for 1000 clients at least, as `aggregators.MFAggregationFactory` has: the number
    of clients of a sum must not depend on who was drawn.

    Args:
        grid: The number of bits, "auto" or "none".
        dimension: Number of the model's parameters.
        cohort: Clients that a round stands for.

    Example:
        >>> grid_of("auto", dimension=4_050_748, cohort=6500)
        Grid(bits=16, max_clients=13000)

    Raises:
        InputTypeError: If `grid` is neither a number nor a word.
        InputValueError: If it is another word or out of range, or sums of so many clients could be inexact.
    """
    if grid == NONE:
        return None
    clients = max(_FEWEST_CLIENTS, _ROOM * cohort)
    try:
        tff_mf.Grid(bits=FEWEST_BITS, max_clients=clients)
    except InputValueError as error:
        raise InputValueError(
            f"clients_per_round, or cohort={cohort}, is too large for exact sums on a grid: take fewer clients, or "
            f"grid={NONE!r}."
        ) from error
    if grid == AUTO:
        return tff_mf.Grid.auto(dimension=dimension, max_clients=clients)
    if isinstance(grid, str):
        raise InputValueError(f"grid={grid!r} must be a number of bits, {AUTO!r} or {NONE!r}.")
    if isinstance(grid, bool) or not isinstance(grid, int):
        raise InputTypeError(f"grid={grid!r} must be a whole number of bits, {AUTO!r} or {NONE!r}.")
    if not FEWEST_BITS <= grid <= MOST_BITS:
        raise InputValueError(f"grid={grid} must be at least {FEWEST_BITS} and at most {MOST_BITS} bits, or a word.")
    return tff_mf.Grid(bits=grid, max_clients=clients)


def dimension_of(model: ModelConfig) -> int:
    """Returns the number of parameters of a model with its whole vocabulary, without TensorFlow.

    Example:
        >>> dimension_of(ModelConfig())
        4050748
    """
    words, width, units = model.vocab_size + _SPECIAL_WORDS, model.embedding_size, model.units
    if model.architecture == "conv":
        return words * width + (_KERNEL_WORDS * width + 1) * units + (units + 1) * words
    return words * width + 4 * (width + units + 1) * units + (units + 1) * width + (width + 1) * words
