"""Documents as web pages: one file each, with its style and figures inside, that runs and loads nothing."""

import base64
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import files
from ..text import seen, spaced_as_it_is
from . import _svg
from ._document import Block, Document

_FOLDER = pathlib.Path(__file__).parent
_ENDINGS = (".html", ".htm")


def html(document: Document) -> str:
    """Returns a document as a web page, which can be printed.

    Formal guarantee: the policy in its head lets a browser run no script and load nothing, whatever texts the page
    contains.

    Args:
        document: The document; all of its texts are escaped.
    """
    style = _file("page.css")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}"
    found = _environment().get_template("document.html.j2")
    return found.render(policy=policy, style=style, document=document, version=tff_mf.__version__)


def check_page(path: str) -> pathlib.Path:
    """Returns the path of a page; refuses one that browsers show as text, or that cannot be written.

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


def write_page(path: pathlib.Path, document: Document) -> None:
    """Writes a document as a page, atomically, to a path that was checked."""
    with files.writing(path, "html"):
        files.write_atomically(path, html(document))


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
    # The pictures are markup that Matplotlib made, without text of others.
    found.filters.update(
        groups=_groups,
        indented=_indented,
        kind=_kind,
        picture=_svg.svg,
        sample=_svg.sample,
    )
    return found


def _indented(line: str) -> markupsafe.Markup:
    """Returns a line with all its spaces, which `finalize` would take away."""
    return markupsafe.escape(spaced_as_it_is(line))


def _kind(block: Block) -> str:
    return type(block).__name__


def _groups(blocks: Sequence[Block]) -> list[tuple[str, list[Any]]]:
    """Returns blocks with those of a kind that follow each other together: figures stand side by side."""
    return [(kind, list(group)) for kind, group in itertools.groupby(blocks, _kind)]


@functools.cache
def _file(name: str) -> markupsafe.Markup:
    return markupsafe.Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
