"""Axes of charts: from values to places, and where ticks are."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

_MOST_TICKS = 6
# A line at the edge is half cut away.
_MORE = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: What is on it, with its unit.
        log: Whether it is logarithmic.
        from_zero: Whether it begins at 0.
        named: Ticks at these values alone, as they are.
    """

    label: str
    log: bool = False
    from_zero: bool = False
    named: Sequence[float] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis with its range, drawn from one place to another.

    Attributes:
        axis: The axis.
        low: The smallest value.
        high: The largest value.
        begin: Where `low` is.
        end: Where `high` is.
    """

    axis: Axis
    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        """Returns where a value is."""
        low, high, at = self.low, self.high, value
        if self.axis.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Returns round values in the range."""
        if self.axis.named:
            return [each for each in self.axis.named if self.low <= each <= self.high]
        slack = 1e-9 * (self.high - self.low)
        both = (_decades, _steps) if self.axis.log else (_steps,)
        # Within less than a decade, there may be too few powers and halves of ten.
        for ticks in both:
            found = [each for each in ticks(self.low, self.high) if self.low - slack <= each <= self.high + slack]
            if len(found) > 1:
                break
        return found


def scale(axis: Axis, values: Iterable[float], begin: float, end: float) -> Scale:
    """Returns an axis that has room for values.

    Example:
        >>> found = scale(Axis(label="round", from_zero=True), [3, 9], 0, 90)
        >>> found.place(9.0), found.ticks()
        (85.71428571428571, [0.0, 2.0, 4.0, 6.0, 8.0])
    """
    known = list(values) or [1.0]
    low, high = min(known), max(known)
    if axis.log:
        low, high = (low / 1.1, high * 1.1) if low == high else (low, high * (high / low) ** _MORE)
    else:
        low = min(low, 0.0) if axis.from_zero else low
        high = high + _MORE * (high - low) if high > low else low + (abs(low) or 1.0)
    return Scale(axis=axis, low=low, high=high, begin=begin, end=end)


def shown(value: float) -> str:
    """Returns the label of a tick.

    Example:
        >>> shown(2000.0), shown(0.3), shown(1e-08)
        ('2,000', '0.3', '1e-08')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:g}"


def _steps(low: float, high: float) -> list[float]:
    rough = (high - low) / (_MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(times * unit for times in (1, 2, 5, 10, 20) if times * unit >= rough)
    first = math.ceil(low / step)
    # From whole numbers, so that 3 · 0.1 is 0.3.
    return [float(f"{index * step:.12g}") for index in range(first, first + _MOST_TICKS + 2)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = -(-(last - first + 1) // _MOST_TICKS)
    if last - first > 2:
        return [10.0**power for power in range(first, last + 1) if power % every == 0]
    return [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
