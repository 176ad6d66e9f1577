"""The recursion of a mechanism on a grid, with the bounds that its guarantee is computed from."""

from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.grid_recursion import GridRecursion


def recursion(mechanism: Mechanism, *, deviation: float, largest_normal: float) -> GridRecursion:
    """Returns the recursion of a mechanism on a grid, with the bounds that its guarantee is computed from.

    Args:
        mechanism: The mechanism; its parameters are cast to float32.
        deviation: s, standard deviation of a coordinate of the independent noise in units of the grid.
        largest_normal: T, largest absolute value of a standard normal that is drawn.

    Example:
        >>> from tff_mf import BLT
        >>> found = recursion(BLT.production("b400"), deviation=7.0 * 2**16, largest_normal=13.0)
        >>> found.error(2052) < 1e-6, found.largest < 2**31
        (True, True)

    Raises:
        InputTypeError: If the mechanism has no integer recursion.
        InputValueError: If its integers would be too large.
    """
    return mechanism.cast_to_float32().grid_recursion(deviation=deviation, largest_normal=largest_normal)
