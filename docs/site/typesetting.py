"""How MkDocs sets the pages of this site: indices and exponents, where lines may break, tables and pictures.

The sources are Markdown that reads well as it is, in which x_t is an index and 2^k a power. Needs nothing but Python.
"""

import html
import re

_TAG = re.compile(r"(<[^>]+>)")
_MARKS = "\u0300-\u036f"
_INDEX = re.compile(
    rf"((?<![^\W\d])(?<![{_MARKS}])(?:max|min|sens|share|Cx|[^\W\d_])[{_MARKS}]*[*′']?|\))"
    r"_(?:\{([^{}]*)\}|\(([^()\s]+)\)|((?:&lt;)?[^\W_]{1,2}[′']?))(?!\w)"
)
_POWER = re.compile(
    r"(?<=[\w)′>])\^(?:\{([^{}]*)\}|\(((?:[^()]|\([^()]*\))*)\)|([-−]?(?:bits|\d+|[^\W_])[′₀₁₂]?)(?![\w(]))"
)
# Words and numbers whose hyphen is no place for the end of a line.
_WHOLE = re.compile(r"(?<![\w-])(tff-mf|pfl-research|DP-[A-Z]+(?:-[A-Z]+)*|CIFAR-10|\d[\d.]*e[-+]\d+)(?!\w)")
_PICTURE = r'<p>(?:<a [^>]*>)?(<img [^>]*src="([^"]+)"[^>]*>)(?:</a>)?</p>'
# Characters that a telephone shows beside each other in code, and in a heading.
_LONG_NAME, _LONG_WORD = 28, 24
_SHORT_CELL, _LONG_CELL = 12, 40


def on_page_content(html: str, **_) -> str:
    """Called by MkDocs with each page."""
    return typeset(html)


def typeset(page: str) -> str:
    """Returns the HTML of a page as it is to be shown."""
    page = re.sub(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>\s*", "", page)
    page = re.sub(r"<td([^>]*)>(.*?)</td>", _cell, page, flags=re.S)
    page = re.sub(_PICTURE, r'<p><a class="picture" href="\2">\1</a></p>', page)
    parts, inside = [], []
    for part in _TAG.split(page):
        if tag := re.match(r"<(/?)(pre|code|script|style|svg)\b", part):
            if tag[1]:
                inside.remove(tag[2])
            else:
                inside.append(tag[2])
        elif not part.startswith("<") and inside in ([], ["code"]):
            part = re.sub(r"\S+", _name, part) if inside else _text(part)
        parts.append(part)
    return "".join(parts)


def _cell(cell: re.Match[str]) -> str:
    """A short cell stays on one line; a long one is not squeezed on a telephone."""
    attributes, content = cell.groups()
    content = content.replace(r"\|", "|")  # Python-Markdown leaves the escape of a table in code.
    length = len(html.unescape(_TAG.sub("", content)))
    kind = ' class="kept"' if length <= _SHORT_CELL else ' class="long"' if length > _LONG_CELL else ""
    return f"<td{kind}{attributes}>{content}</td>"


def _name(name: re.Match[str]) -> str:
    """A word of code breaks nowhere, or, if it is too long for a telephone, between its parts."""
    word = name[0]
    if len(html.unescape(word)) <= _LONG_NAME:
        return _kept(word) if re.search(r"[-/|{]", word) else word
    parts = re.split(r"(?<=[/,=({])(?=\w)|(?<=\.)(?=\w{3})|(?<=\w-)(?=\w)", word)
    return "<wbr>".join(part if len(part) <= _LONG_NAME else re.sub(r"(?<=_)(?=\w)", "<wbr>", part) for part in parts)


def _text(text: str) -> str:
    while (found := _INDEX.sub(_index, text)) != text:
        text = found
    text = _WHOLE.sub(lambda word: _kept(word[0]), _POWER.sub(_power, text))
    return re.sub(rf"\w{{{_LONG_WORD},}}", lambda name: name[0].replace("_", "_<wbr>"), text)


def _index(index: re.Match[str]) -> str:
    base, *alternatives = index.groups()
    return f"{base}<sub>{next(filter(None, alternatives)).replace('-', '−')}</sub>"


def _power(power: re.Match[str]) -> str:
    return f"<sup>{next(filter(None, power.groups())).replace('-', '−')}</sup>"


def _kept(word: str) -> str:
    return f'<span class="kept">{word}</span>'
