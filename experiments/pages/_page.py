"""A whole page: one file, with its style, scripts and figures inside, that a browser lets load nothing else."""

import base64
import functools
import hashlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
import markupsafe

import tff_mf
from tff_mf.base.errors import InputValueError

from ..output import digits, figures, files
from ..output.text import seen, spaced, up, words
from ..privacy import statements
from . import _svg

_FOLDER = pathlib.Path(__file__).parent
_ENDINGS = (".html", ".htm")
_MOST_ROWS = 80


def page(template: str, *, scripts: Iterable[str] = ("ticks.js",), **content: Any) -> str:
    """Returns a page.

    Formal guarantee: the policy in its head lets a browser run the scripts of this package alone, and load nothing,
    whatever texts the page contains.

    Args:
        template: The file of its template.
        scripts: The files of its scripts.
        **content: What the template shows; all of it is escaped.
    """
    style, own = _file("page.css"), [_file(each) for each in scripts]
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_hash(style)}; script-src {' '.join(map(_hash, own))}"
    )
    found = _environment().get_template(template)
    return found.render(policy=policy, style=style, scripts=own, version=tff_mf.__version__, **content)


def check_page(path: str) -> pathlib.Path:
    """Returns the path of a page if it can be written, so that no work is wasted.

    Args:
        path: The file.

    Raises:
        InputValueError: If it has another ending, which browsers show as text, or cannot be written.

    Example:
        >>> check_page("report.pdf")
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: html='report.pdf' must end in .html: browsers go by that.
    """
    found = pathlib.Path(path)
    if found.suffix.lower() not in _ENDINGS:
        raise InputValueError(f"html={path!r} must end in .html: browsers go by that.")
    files.check_file(found, "html")
    return found


def write_page(path: pathlib.Path, text: str) -> None:
    """Writes a page atomically.

    Args:
        path: As `check_page` returned it.
        text: The whole page.

    Raises:
        InputValueError: If it cannot be written any more.
    """
    try:
        files.write_atomically(path, text)
    except OSError as error:
        raise InputValueError(f"html={str(path)!r} cannot be written: {error.strerror or error}.") from error


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Texts of others cannot hide or reorder what is around them.
        finalize=lambda value: value if hasattr(value, "__html__") else seen(str(value)),
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}
    found.filters.update(
        comma="{:,}".format,
        drawn=_drawn,
        indented=_indented,
        nearest=digits.nearest,
        percent=digits.percent,
        privacy=statements.level_of,
        rounded_up=digits.rounded_up,
        spaced=spaced,
        up=up,
        upwards=_upwards,
        words=words,
    )
    return found


def _drawn(chart: figures.Chart) -> Mapping[str, Any]:
    """Returns the parts of a figure: its picture, its legend, and its values for readers who do not see it.

    There is no table if it would be long.
    """
    curves = chart.named
    places = sorted({at for curve in curves for at, _ in curve.points})
    by_place = [dict(curve.points) for curve in curves]
    return {
        # Markup that Matplotlib made, without text of others.
        "picture": markupsafe.Markup(_svg.svg(chart)),
        "legend": [(markupsafe.Markup(_svg.sample(chart, each)), each.name) for each in curves],
        "values": [(_place(at), *(_value(chart, each[at]) if at in each else "" for each in by_place)) for at in places]
        if len(places) <= _MOST_ROWS
        else [],
    }


def _indented(line: str) -> markupsafe.Markup:
    """Returns a line with all its spaces, which `finalize` would take away."""
    return markupsafe.escape(" ".join(map(seen, line.split(" "))))


def _upwards(value: float | None) -> str:
    return "∞" if value is None else digits.upwards(value)


def _value(chart: figures.Chart, value: float | None) -> str:
    return "∞" if value is None else chart.value(value)


def _place(at: float) -> str:
    return f"{at:,.0f}" if float(at).is_integer() else f"{at:.3g}"


@functools.cache
def _file(name: str) -> markupsafe.Markup:
    return markupsafe.Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
