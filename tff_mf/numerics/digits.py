"""Numbers with their significant digits, rounded in the direction that is safe for privacy."""

import decimal
import math

_DIGITS = 4
_DECIMALS = 3
_SHORTEST = -4
_LONGEST = 7


def upwards(value: float, digits: int = _DIGITS) -> str:
    """Returns `value` with `digits` digits and at least three decimals, rounded up: an ε, ρ, μ, σ or sensitivity.

    Formal guarantee: as a float, the result is at least `value`.

    Example:
        >>> upwards(3.4145082903890374), upwards(14.77361), upwards(0.19499), upwards(1.23456e-7)
        ('3.415', '14.774', '0.1950', '1.235e-7')
    """
    return _rounded(value, _with_decimals(value, digits), decimal.ROUND_CEILING)


def downwards(value: float, digits: int = _DIGITS) -> str:
    """Returns `value` with `digits` digits and at least three decimals, rounded down: an effective noise multiplier.

    Formal guarantee: as a float, the result is at most `value`.

    Example:
        >>> downwards(1.6019)
        '1.601'
    """
    return _rounded(value, _with_decimals(value, digits), decimal.ROUND_FLOOR)


def rounded_up(value: float) -> str:
    """Returns `value` with three decimals, rounded up: a printed ε is never smaller than the true one.

    Example:
        >>> rounded_up(2.0001)
        '2.001'
    """
    if value == math.inf:
        return "∞"
    shown, more = f"{value:.3f}", 0.001
    while float(shown) < value:
        # For a large value, a thousandth is less than the last digit of a float.
        shown, more = f"{float(shown) + more:.3f}", 2 * more
    return shown


def nearest(value: float, digits: int = _DIGITS) -> str:
    """Returns `value` with `digits` significant digits: a loss, a parameter, a time.

    Example:
        >>> nearest(9.625236), nearest(123456.0), nearest(0.0)
        ('9.625', '123500', '0')
    """
    return _rounded(value, digits, decimal.ROUND_HALF_EVEN)


def percent(value: float, half: float | None) -> str:
    """Returns an accuracy, or a difference of two, in percent, with half the width of its interval if that is known.

    Example:
        >>> percent(0.25, None), percent(0.25, 0.0123)
        ('25.00', '25.00 ± 1.23')
    """
    return f"{100 * value:.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def parameter(value: float) -> str:
    """Returns a parameter with six digits, or as a difference from 1 if it would be rounded to 1.

    Example:
        >>> parameter(0.4912001418098778), parameter(0.9999999999921251), parameter(1.0)
        ('0.491200', '1 - 7.87e-12', '1.00000')
    """
    rounded = nearest(value, 6)
    return f"1 - {1 - value:.2e}" if value < 1 and float(rounded) == 1 else rounded


def _with_decimals(value: float, digits: int) -> int:
    """Returns the number of significant digits that gives three decimals, as in sentences."""
    if not 10 <= value < 10**_LONGEST:
        return digits
    return max(digits, decimal.Decimal(repr(float(value))).adjusted() + 1 + _DECIMALS)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    # From the shortest decimal that is this float, so that 7.379 stays 7.379.
    exact = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    places = digits - 1 - exact.adjusted()
    if not _SHORTEST <= exact.adjusted() < _LONGEST:
        return f"{exact:.{digits - 1}e}"
    return f"{exact:.{max(places, 0)}f}"
