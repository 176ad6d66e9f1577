"""Charts as SVG inside a page, in its colors and letters, with their values in a table below."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ._markup import Markup, element, number, together
from ._scales import Axis, Scale, scale, shown

_WIDTH, _HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 10, 42
_BAR = 0.7
# Colors differ by class in page.css; dashes and marks differ for those who do not see colors.
COLORS = 6
_DASHES = (None, "7 3", "2 2", "8 2 2 2", "12 3", "4 2 1 2")
_ARMS = ((-1.2, -3.8), (1.2, -3.8), (1.2, -1.2), (3.8, -1.2), (3.8, 1.2), (1.2, 1.2))
# Corners of marks; a mark without corners is a circle.
_MARKS = (
    (),
    ((-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)),
    ((0.0, -3.6), (-3.4, 2.6), (3.4, 2.6)),
    ((0.0, -4.2), (4.2, 0.0), (0.0, 4.2), (-4.2, 0.0)),
    ((0.0, 3.6), (-3.4, -2.6), (3.4, -2.6)),
    (*_ARMS, *((-x, -y) for x, y in _ARMS)),
)
_MOST_MARKS = 12
_MOST_ROWS = 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Values to draw.

    Attributes:
        name: Its name in the legend.
        points: Places and values; a value that is `None` is left out, with all that would be drawn beside it.
        drawn: "line"; "steps", where between two points the larger value holds; "dots"; or "bars".
        aside: Half the length of the interval of each point; `None` where there is none.
        style: Index of its color, dashes and mark.
        faint: Whether it stands behind the others, without a mark or a name.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    drawn: str = "line"
    aside: Sequence[float | None] = ()
    style: int = 0
    faint: bool = False

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart.

    Attributes:
        name: Its name, which is part of the ids in the page.
        title: What it shows.
        note: What to know about it.
        x: The horizontal axis.
        y: The vertical axis.
        curves: What is drawn.
        value: Writes a value in the table: an ε is rounded up.
    """

    name: str
    title: str
    note: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    value: Callable[[float], str] = shown


def figure(chart: Chart) -> Markup:
    """Returns a chart with its title, legend and values; without a known value, a line that says so."""
    caption = element("figcaption", element("b", chart.title), f". {chart.note}" if chart.note else None)
    if not any(curve.known for curve in chart.curves):
        return element("figure", caption, element("p", "There is nothing to draw.", class_="none"))
    named = [curve for curve in chart.curves if not curve.faint]
    legend = together(*(_entry(curve) for curve in named)) if len(named) > 1 else None
    return element(
        "figure",
        caption,
        _drawing(chart),
        None if legend is None else element("ul", legend, class_="legend"),
        _values(chart, named),
    )


def _drawing(chart: Chart) -> Markup:
    points = [point for curve in chart.curves for point in curve.known]
    reached = [
        y + sign * (half or 0.0)
        for curve in chart.curves
        for (_, y), half in zip(curve.points, curve.aside, strict=False)
        if y is not None
        for sign in (-1, 1)
    ]
    x = scale(chart.x, _with_bars(chart, [at for at, _ in points]), _LEFT, _WIDTH - _RIGHT)
    y = scale(chart.y, [*(value for _, value in points), *reached], _HEIGHT - _BOTTOM, _TOP)
    title = f"{chart.name}-title"
    return element(
        "svg",
        element("title", chart.title, id=title),
        _grid(x, y),
        *(_curve(curve, x, y) for curve in sorted(chart.curves, key=lambda each: not each.faint)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=title,
    )


def _with_bars(chart: Chart, places: list[float]) -> list[float]:
    """Returns places with room for the bars at both ends."""
    if not any(curve.drawn == "bars" for curve in chart.curves):
        return places
    return [*places, min(places) - 0.5, max(places) + 0.5]


def _grid(x: Scale, y: Scale) -> Markup:
    parts = []
    for tick in y.ticks():
        at = number(y.place(tick))
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(element("text", shown(tick), x=_LEFT - 6, y=at, dy="0.35em", text_anchor="end"))
    for tick in x.ticks():
        at = number(x.place(tick))
        parts.append(element("line", x1=at, x2=at, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="grid"))
        parts.append(element("text", shown(tick), x=at, y=_HEIGHT - _BOTTOM + 15, text_anchor="middle"))
    middle, across = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(element("text", x.axis.label, x=middle, y=_HEIGHT - 6, text_anchor="middle"))
    turned = f"translate(13 {number(across)}) rotate(-90)"
    return together(*parts, element("text", y.axis.label, transform=turned, text_anchor="middle"))


def _curve(curve: Curve, x: Scale, y: Scale) -> Markup:
    color = f"c{curve.style % COLORS}"
    if curve.drawn == "bars":
        return element("g", *_bars(curve, x, y), class_=f"bar {color}")
    parts = []
    if curve.drawn != "dots":
        path = _path(curve, x, y)
        parts.append(element("path", d=path, stroke_dasharray=None if curve.faint else _dashes(curve)))
    for (at, value), half in zip(curve.points, curve.aside, strict=False):
        if half and value is not None:
            ends = {"y1": y.place(value - half), "y2": y.place(value + half)}
            parts.append(element("line", x1=x.place(at), x2=x.place(at), **ends, class_="interval"))
    every = max(1, -(-len(curve.known) // _MOST_MARKS))
    if not curve.faint and curve.drawn != "steps":
        parts += [_mark(curve.style, x.place(at), y.place(value)) for at, value in curve.known[::every]]
    return element("g", *parts, class_=f"curve {color}{' faint' if curve.faint else ''}")


def _path(curve: Curve, x: Scale, y: Scale) -> str:
    """Returns the line of a curve, which is interrupted where a value is missing."""
    parts, before = [], None
    for at, value in curve.points:
        if value is None or not math.isfinite(value):
            before = None
            continue
        here = f"{number(x.place(at))} {number(y.place(value))}"
        if before is not None and curve.drawn == "steps":
            larger = y.place(max(before[1], value))
            parts.append(f"L{number(x.place(before[0]))} {number(larger)}L{number(x.place(at))} {number(larger)}")
        parts.append(f"{'M' if before is None else 'L'}{here}")
        before = (at, value)
    return "".join(parts)


def _bars(curve: Curve, x: Scale, y: Scale) -> Iterator[Markup]:
    width = (x.place(1.0) - x.place(0.0)) * _BAR
    for at, value in curve.known:
        top, bottom = y.place(value), y.place(max(y.low, 0.0))
        yield element("rect", x=x.place(at) - width / 2, y=top, width=width, height=max(bottom - top, 0.0))


def _mark(style: int, x: float, y: float) -> Markup:
    corners = _MARKS[style % len(_MARKS)]
    if not corners:
        return element("circle", cx=x, cy=y, r=3)
    return element("polygon", points=" ".join(f"{number(x + a)},{number(y + b)}" for a, b in corners))


def _dashes(curve: Curve) -> str | None:
    return _DASHES[curve.style % len(_DASHES)]


def _entry(curve: Curve) -> Markup:
    line = element("path", d="M1 6L29 6", stroke_dasharray=_dashes(curve)) if curve.drawn != "dots" else None
    mark = None if curve.drawn == "steps" else _mark(curve.style, 15.0, 6.0)
    sample = element("g", line, mark, class_=f"curve c{curve.style % COLORS}")
    return element("li", element("svg", sample, viewBox="0 0 30 12", aria_hidden="true"), curve.name)


def _values(chart: Chart, curves: Sequence[Curve]) -> Markup | None:
    """Returns a table of the values, for readers who do not see the picture; none if it would be long."""
    places = sorted({at for curve in curves for at, _ in curve.points})
    if len(places) > _MOST_ROWS:
        return None
    by_place = [dict(curve.points) for curve in curves]
    rows = [
        element("tr", element("th", _shown_place(at), scope="row"), *(_cell(chart, each, at) for each in by_place))
        for at in places
    ]
    names = [element("th", curve.name, scope="col") for curve in curves]
    head = element("thead", element("tr", element("th", chart.x.label, scope="col"), *names))
    table = element("table", head, element("tbody", *rows))
    return element("details", element("summary", f"Values: {chart.title}"), scrolled(table, f"values of {chart.title}"))


def scrolled(table: Markup, name: str) -> Markup:
    """Returns a table that scrolls by itself on a narrow screen, also by keyboard."""
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def _cell(chart: Chart, values: dict[float, float | None], at: float) -> Markup:
    if at not in values:
        return element("td", "")
    value = values[at]
    return element("td", "∞" if value is None else chart.value(value))


def _shown_place(at: float) -> str:
    return f"{at:,.0f}" if float(at).is_integer() else f"{at:.3g}"


def styled(curves: Sequence[Curve]) -> list[Curve]:
    """Returns curves that differ in color, dashes and mark."""
    return [dataclasses.replace(curve, style=index) for index, curve in zip(itertools.count(), curves, strict=False)]
