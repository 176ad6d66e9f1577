"""The standard normals that noise on a grid is drawn from: their name, their largest value, and their error."""

import math

NAME = "box-muller-float64"
# √(−2 log 2⁻⁵³): the radius has 53 random bits.
LARGEST = math.sqrt(2 * 53 * math.log(2)) * (1 + 2.0**-50)


def log_ratio(*, width: float, position_error: float) -> float:
    """Returns η: bound on |log(P̂/P)| of a cell of a normal, for every place of the cell.

    Args:
        width: Width of the cell in units of the normal's standard deviation.
        position_error: Bound on the error of the operations after the draw, in units of the cell.
    """
    raise NotImplementedError
