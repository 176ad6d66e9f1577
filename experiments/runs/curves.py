"""What figures of a guarantee show: ε over δ and over rounds, and errors of some of the rounds."""

from collections.abc import Callable, Sequence

import numpy as np

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.base.strict_json import finite

Points = list[tuple[float, float | None]]

_DELTAS = 25
_SMALLEST_DELTA, _LARGEST_DELTA = 1e-12, 1e-6
_MOST_BLOCKS = 16
_MOST_ROUNDS = 200


def block_ends(rounds: int, min_sep: int) -> list[int]:
    """Returns the first round, and the ends of blocks of min-sep rounds, between which clients come back.

    Several blocks are taken together if there are many.

    Example:
        >>> block_ends(9, 4), block_ends(3, 3)
        ([1, 4, 8, 9], [1, 2, 3])
    """
    blocks = -(-rounds // min_sep)
    if blocks < 2:
        return sorted({*np.linspace(1, rounds, min(rounds, _MOST_BLOCKS), dtype=int).tolist(), rounds})
    step = -(-blocks // _MOST_BLOCKS) * min_sep
    return sorted({1, *range(step, rounds, step), rounds})


def deltas(delta: float) -> list[float]:
    """Returns values of δ around a guarantee's δ, which is one of them.

    Example:
        >>> found = deltas(1e-8)
        >>> found[0], 1e-8 in found, found[-1]
        (1e-12, True, 1e-06)
    """
    smallest, largest = min(_SMALLEST_DELTA, delta / 1e4), max(delta, _LARGEST_DELTA)
    between = np.geomspace(smallest, largest, _DELTAS)[1:-1].tolist()
    return sorted({smallest, *between, delta, largest})


def of_some_rounds(values: np.ndarray, scale: float) -> list[tuple[float, float | None]]:
    """Returns rounds and scaled values, of all rounds or of as many as a figure can show.

    Example:
        >>> of_some_rounds(np.array([1.0, 2.0]), 0.5)
        [(1, 0.5), (2, 1.0)]
    """
    chosen = sorted({*np.linspace(1, len(values), min(len(values), _MOST_ROUNDS), dtype=int).tolist()})
    return [(number, float(scale * values[number - 1])) for number in chosen]


def over_delta(guarantee: tff_mf.Guarantee, delta: float) -> Points:
    """Returns ε of a guarantee at values of δ around its own; `None` is no finite ε."""
    return [(each, finite(guarantee.epsilon(each))) for each in deltas(delta)]


def over_rounds(
    ends: Sequence[int], guarantee: Callable[[int], tff_mf.Guarantee | None], whole: tff_mf.Guarantee, delta: float
) -> Points:
    """Returns ε after each of some rounds; never less than after fewer, and after the last, ε of the whole run.

    Args:
        ends: The rounds, in order.
        guarantee: Returns the guarantee of the first rounds alone; `None` if nobody took part in them.
        whole: The guarantee of the whole run.
        delta: δ.
    """
    found: Points = []
    # The first rounds are part of the whole release, whose bound can be tighter than theirs.
    largest, most = 0.0, whole.epsilon(delta)
    for rounds in ends:
        try:
            known = whole if rounds == ends[-1] else guarantee(rounds)
        except InputError:
            known = whole
        if known is not None:
            largest = max(largest, min(known.epsilon(delta), most))
            found.append((rounds, finite(largest)))
    return found
