"""Charts as SVG inside a page, in its colors and letters."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

import markupsafe
import matplotlib
from matplotlib import figure, lines

from .. import figures

# In a page, a point is a pixel of a screen of 380 pixels, and letters are as large as those around the picture.
_POINTS_PER_INCH = 72
_PAGE_SIZE, _SAMPLE_SIZE = (380, 250), (30, 12)
_PAGE_RC = {
    **figures.SETTINGS,
    "font.size": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "grid.color": "#b0b0b0",
    "grid.alpha": 1.0,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}
# Black is the ink of a page, and the other colors have places in page.css, for light, dark and print.
_ON_PAGE = {
    "#000000": "var(--ink)",
    "#b0b0b0": "var(--line)",
    **{
        color.lower(): f"var(--c{index})"
        for index, color in enumerate(color for color in figures.COLORS if color != "#000000")
    },
}


def svg(chart: figures.Chart) -> markupsafe.Markup:
    """Returns a chart as an element of a page, in the colors of its style, without text of others.

    Names of curves are left to the page, which escapes and wraps them: see `sample`.
    """
    with _on_page(chart.name, _PAGE_SIZE) as drawn:
        figures.draw(drawn.subplots(), chart)
        return _element(drawn, {"role": "img", "aria-label": chart.title})


def sample(curve: figures.Curve, chart: figures.Chart) -> markupsafe.Markup:
    """Returns the line and marker of a curve, for the legend beside its name."""
    look = chart.looks[curve.name].line() if curve.look is None else dict(curve.look)
    look |= {"dots": {"linestyle": ""}, "steps": {"marker": ""}}.get(curve.drawn, {})
    with _on_page(f"{chart.name}-{chart.curves.index(curve)}", _SAMPLE_SIZE) as drawn:
        drawn.add_artist(lines.Line2D([0.0, 0.5, 1.0], [0.5] * 3, markevery=[1], **look))
        return _element(drawn, {"aria-hidden": "true"})


@contextlib.contextmanager
def _on_page(name: str, size: tuple[int, int]) -> Iterator[figure.Figure]:
    # The name makes ids unique in a page.
    with matplotlib.rc_context({**_PAGE_RC, "svg.hashsalt": name}):
        yield figure.Figure(figsize=(size[0] / _POINTS_PER_INCH, size[1] / _POINTS_PER_INCH))


def _element(drawn: figure.Figure, described: Mapping[str, str]) -> markupsafe.Markup:
    """Returns a figure as an SVG element without style sheets, namespaces and names, which a page's policy forbids."""
    written = io.StringIO()
    drawn.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        found = {name.rpartition("}")[2]: value for name, value in node.attrib.items()}
        declared = (each.split(":") for each in found.pop("style", "").split(";") if each)
        found |= {name.strip(): value.strip() for name, value in declared if not name.strip().startswith("font")}
        if f"#{found.get('id')}" not in text:
            found.pop("id", None)
        node.attrib = {name: _ON_PAGE.get(value, value) for name, value in found.items()}
    root.attrib = {"viewBox": root.attrib["viewBox"], **described}
    return markupsafe.Markup(ElementTree.tostring(root, encoding="unicode"))
