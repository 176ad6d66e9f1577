"""Sizes that follow from the numbers of settings alone: of the grid and of the model."""

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.grids import FEWEST_BITS, MOST_BITS

AUTO, NONE = "auto", "none"
WORDS = (AUTO, NONE)

# As many as TFF's task adds to the words: padding, unknown, beginning and end of a sentence.
_SPECIAL_WORDS = 4
_KERNEL_WORDS = 3
# Parameters of the model of the papers' StackOverflow experiments.
PAPERS_DIMENSION = 4_050_748


def grid_of(grid: int | str, *, dimension: int, cohort: int) -> tff_mf.Grid | None:
    """Returns the grid that a setting stands for; `None` for "none", floating point.

    It has the room of `tff_mf.Grid.with_room`.

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
    if isinstance(grid, bool) or not isinstance(grid, int):
        raise InputTypeError(f"grid={grid!r} must be a whole number of bits, {AUTO!r} or {NONE!r}.")
    if not FEWEST_BITS <= grid <= MOST_BITS:
        raise InputValueError(f"grid={grid} must be at least {FEWEST_BITS} and at most {MOST_BITS} bits, or a word.")
    return tff_mf.Grid(bits=grid, max_clients=clients)


def dimension_of(model: str, *, vocab_size: int, embedding_size: int, units: int) -> int:
    """Returns the number of parameters of a model with its whole vocabulary, without TensorFlow.

    Args:
        model: `lstm` or `conv`.
        vocab_size: Most frequent words to know.
        embedding_size: Width of the word embedding.
        units: LSTM units, or filters of the convolution.

    Example:
        >>> dimension_of("lstm", vocab_size=10_000, embedding_size=96, units=670) == PAPERS_DIMENSION
        True
    """
    words, width = vocab_size + _SPECIAL_WORDS, embedding_size
    if model == "conv":
        return words * width + (_KERNEL_WORDS * width + 1) * units + (units + 1) * words
    return words * width + 4 * (width + units + 1) * units + (units + 1) * width + (width + 1) * words
