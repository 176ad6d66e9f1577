"""The recursion of a registered mechanism on a grid."""

from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.grid_recursion import GridRecursion
from tff_mf.mechanisms.registry._kinds import registered


def grid_recursion(mechanism: Mechanism, *, deviation: float, largest_normal: float) -> GridRecursion:
    """Returns the recursion of a mechanism on a grid, with the bounds that its guarantee is computed from.

    The parameters are cast to float32; the other arguments are as of `GridRecursion`.

    Example:
        >>> from tff_mf import BLT
        >>> found = grid_recursion(BLT.production("b400"), deviation=7.0 * 2**16, largest_normal=13.0)
        >>> found.error(2052) < 1e-6, found.largest < 2**31
        (True, True)

    Formal guarantee: the bounds of a mechanism from outside of this package are computed from its recursion, or from C;
    `grid_recursion` of its class, which it may have inherited, is not asked.

    Raises:
        InputTypeError: If the exact class of the mechanism is not registered, or it has no integer recursion.
        InputValueError: If its integers would be too large.
    """
    bounds = Mechanism.grid_recursion if registered(mechanism).outside else type(mechanism).grid_recursion
    return bounds(mechanism.cast_to_float32(), deviation=deviation, largest_normal=largest_normal)
