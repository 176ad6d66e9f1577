"""Elements of HTML and SVG. All text is escaped, unless it is markup that these functions made."""

import html
import json
import math
from typing import Any

from ..output.text import seen

# They have no end tag in HTML.
_EMPTY = frozenset({"br", "hr", "input", "meta"})


class Markup(str):
    """HTML that may stand in a page as it is."""

    __slots__ = ()


def element(tag: str, *content: Any, **attributes: Any) -> Markup:
    """Returns an element.

    Args:
        tag: Its name.
        *content: Texts, which are escaped, and markup, which is not; `None` is left out.
        **attributes: Its attributes: `_` stands for `-`, and is left out at the end of a name. `True` is an attribute
            without a value; `None` and `False` are left out.

    Example:
        >>> element("p", "1 < 2 ", element("b", "&"), class_="note", hidden=True)
        '<p class="note" hidden>1 &lt; 2 <b>&amp;</b></p>'
    """
    inside = "".join(_attribute(name, value) for name, value in attributes.items() if value not in (None, False))
    opened = f"<{tag}{inside}>"
    return Markup(opened if tag in _EMPTY else f"{opened}{together(*content)}</{tag}>")


def together(*content: Any) -> Markup:
    """Returns texts and markup one after the other."""
    return Markup("".join(_escaped(each) for each in content if each is not None))


def embedded(value: Any) -> Markup:
    r"""Returns JSON that may stand in a script element: nothing in it ends the element or begins a comment.

    Example:
        >>> embedded({"name": "</script>"})
        '{"name": "\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def number(value: float) -> str:
    """Returns a coordinate with two decimals."""
    if not math.isfinite(value):
        raise ValueError(f"value={value!r} is no coordinate.")
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute(name: str, value: Any) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(seen(text))}"'


def _escaped(content: Any) -> str:
    if isinstance(content, Markup):
        return content
    text = str(content)
    # `seen` takes spaces at both ends away.
    before, after = (" " if text[:1].isspace() else ""), (" " if text[1:] and text[-1:].isspace() else "")
    return f"{before}{html.escape(seen(text))}{after}"
