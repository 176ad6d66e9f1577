"""Charts that reports and plans have in common: ε over δ and over rounds, and values over rounds."""

from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.numerics import digits

from ..figures import Axis, Chart, Curve, shown

_EPSILON, _DELTA = Axis(label="ε", from_zero=True), Axis(label="δ", log=True)
_ROUND = Axis(label="round", from_zero=True, whole=True)


def of_epsilon(
    over_delta: Mapping[str, Any], over_rounds: Mapping[str, Any], *, about: str, fixed: str, value: Callable[..., str]
) -> list[Chart]:
    """Returns ε over δ and ε over rounds, from the points of each curve by its name.

    Notes are `about` the first and `fixed` of the second; `value` writes a value, rounded up.
    """
    safe = "Between computed points the larger value is drawn."
    return [
        Chart(
            name=f"epsilon-over-{x.label}",
            title=f"ε over {title}",
            note=f"{note} {safe}",
            x=x,
            y=_EPSILON,
            curves=[Curve(name=name, points=own, drawn="steps") for name, own in points.items() if own],
            value=value,
        )
        for title, x, points, note in (("δ", _DELTA, over_delta, about), ("rounds", _ROUND, over_rounds, fixed))
    ]


def over_rounds(name: str, title: str, y: Axis, curves: Mapping[str, Any], note: str) -> Chart:
    """Returns the values of curves over rounds."""
    return Chart(
        name=name,
        title=title,
        note=note,
        x=_ROUND,
        y=y,
        curves=[Curve(name=each, points=points) for each, points in curves.items()],
        value=shown if y.whole else digits.nearest,
    )
