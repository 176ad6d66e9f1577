"""A whole page: one file, with its style and scripts inside, that a browser lets load nothing else."""

import base64
import hashlib
import pathlib
from typing import Any

import tff_mf

from ._markup import Markup, element, embedded, together

_FOLDER = pathlib.Path(__file__).parent


def document(title: str, *content: Markup, data: Any = None, explorer: bool = False) -> str:
    """Returns a page.

    Formal guarantee: the policy in its head lets a browser run the scripts of this package alone, and load nothing,
    whatever texts the page contains.

    Args:
        title: Its title and first heading.
        *content: Its parts.
        data: What the sliders show, as JSON.
        explorer: Whether it has sliders.
    """
    style = _file("page.css")
    scripts = [_file("ticks.js"), *([_file("explorer.js")] if explorer else [])]
    allowed = " ".join(_hash(each) for each in scripts)
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {allowed}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    held = None if data is None else element("script", embedded(data), type="application/json", id="data")
    made = f"Made by tff-mf {tff_mf.__version__}. This file is complete: it loads nothing, and keeps nothing."
    body = element(
        "body",
        element("main", element("h1", title), *content),
        element("footer", element("p", made)),
        held,
        *(element("script", Markup(each)) for each in scripts),
    )
    return together(Markup("<!DOCTYPE html>\n"), element("html", head, "\n", body, lang="en"), "\n")


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
