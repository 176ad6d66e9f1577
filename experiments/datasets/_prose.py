"""From a docstring to English sentences, and from a sentence to the tokens of StackOverflow.

Docstrings mix prose with code, doctests, tables, signatures, parameter lists and markup of three
styles (Google, NumPy, reStructuredText). The paragraphs that are prose by their layout are split into
sentences, without markup, and the sentences that read as English are kept. When in doubt a sentence
is left out: there are plenty.
"""

import re
from collections.abc import Iterator

from ._paragraphs import paragraphs

MIN_WORDS = 4
MAX_WORDS = 80


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ROLE = re.compile(r":[\w:+.-]+:`([^`]*)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}")
_CODE = re.compile(r"(`{1,3})([^`]+?)\1_{0,2}")
_BOLD = re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_FOOTNOTE = re.compile(r"\s?\[(?:\d+|#?\w*|\*)\]_+")
_SIGNS = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " ", "ﬁ": "fi", "ﬂ": "fl"}
)

_CALL = re.compile(r"(?<=\w)\(\)")
_LEADING_TYPE = re.compile(r"^\([^()]{1,40}\)[,:.]?\s+(?=\S)")
# Marks of code, paths, formulas and tables, which prose without its markup does not have.
_NOT_PROSE = re.compile(
    r"[^\x20-\x7e]|[=<>{}\[\]\\|@#$^~`*+&]|https?:|www\.|://|\.\.|--|//|\b__|_\s|\w-\s|\s[/:,]|/\s|\s[.-]\w|"
    r"\w\(\w|\(\)|%[a-z(]|\?[?\w]"
)
_ABBREVIATION = re.compile(
    r"\b(?:[eE]\.g|[iI]\.e|etc|vs|cf|al|[fF]igs?|[eE]qs?|[sS]ec|[nN]o|pp|ch|Dr|Mrs?|St|approx|resp|incl|eds?|vol)\.$"
)
_INITIAL = re.compile(r"\b[A-Z]\.$")
_BOUNDARY = re.compile(r"([.!?:][\"')]{0,2})\s+(?=[\"'(]{0,2}[A-Z0-9])")
_END = re.compile(r"[.!?:][\"')]{0,2}$")
_TOKEN = re.compile(r"(?:e\.g\.|i\.e\.)|[a-z0-9_](?:[a-z0-9_]|[.'/-](?=[a-z0-9_]))*|[^\sa-z0-9_]")
_PLAIN = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]{1,6}s?)(?:['/-][A-Za-z]?[a-z]*)*$")

# Function words of English, of which code, tables and lists of names have few.
_FUNCTION_WORDS = _words(
    "the a an of to in on at by for with from into as is are was were be been being it its this that these those "
    "and or but if not no so than then when where which who what how all any each some one only also can could may "
    "might must shall should will would do does did has have had you your we our they their there here out up about "
    "after before between over under more most other such same very just because while until whether both i"
)


def sentences(docstring: str) -> Iterator[str]:
    r"""Yields the sentences of `docstring` that read as English, without markup, in their order.

    Example:
        >>> list(sentences("Returns the larger of the two.\n\n>>> larger(1, 2)\n2"))
        ['Returns the larger of the two.']
    """
    for number, paragraph in enumerate(paragraphs(docstring)):
        text = _without_markup(paragraph)
        pieces = _split(text)
        for position, piece in enumerate(pieces):
            # The summary line of a docstring often has no full stop; any other such piece is a heading or a fragment.
            summary = number == 0 and position == 0 and len(pieces) == 1
            if (summary or _END.search(piece)) and _reads_as_english(piece):
                yield piece


def tokens(sentence: str) -> str:
    """Returns the tokens of `sentence` as StackOverflow has them: lower-case, between single spaces.

    Punctuation is a token of its own, apart from apostrophes and hyphens inside a word. Unlike
    there, a dot, a slash or an underscore inside a name or a number belongs to it.

    Example:
        >>> tokens("It's a well-known rule, isn't it?")
        "it's a well-known rule , isn't it ?"
    """
    return " ".join(_TOKEN.findall(sentence.lower()))


def _without_markup(text: str) -> str:
    if not text.isascii():
        text = text.translate(_SIGNS)
    if "`" in text:
        text = _ROLE.sub(lambda match: _shown(match[1]), text)
        text = _LINK.sub(r"\1", text)
        text = _CODE.sub(r"\2", text)
    if "*" in text:
        text = _BOLD.sub(r"\2", text)
    if "[" in text:
        text = _FOOTNOTE.sub("", _MARKDOWN_LINK.sub(r"\1", text))
    return " ".join(text.split())


def _shown(target: str) -> str:
    """Returns what a reST role shows: the title before <target>, and the last name of ~a.b.c."""
    title = target.split("<")[0].strip() or target
    return title.rsplit(".", 1)[-1] if title.startswith("~") else title.lstrip("!.")


def _split(text: str) -> list[str]:
    pieces = []
    start = 0
    for match in _BOUNDARY.finditer(text):
        end = match.end(1)
        last = text[max(start, end - 8) : end]
        if match[1] == "." and (
            _ABBREVIATION.search(last) or (_INITIAL.search(last) and not _opens(text[match.end() :]))
        ):
            continue
        pieces.append(text[start:end])
        start = match.end()
    pieces.append(text[start:])
    return [_CALL.sub("", _LEADING_TYPE.sub("", piece.strip())) for piece in pieces]


def _opens(text: str) -> bool:
    """Returns whether `text` begins with a function word, which begins a sentence, and not with a name."""
    return text[:20].split(" ", 1)[0].lower() in _FUNCTION_WORDS


def _reads_as_english(sentence: str) -> bool:
    if not sentence or len(sentence) > 600 or _NOT_PROSE.search(sentence):
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    if not (sentence[0].isalnum() or sentence[0] in "\"'("):
        return False
    words = [word for piece in sentence.split() if (word := piece.strip(".,:;!?()\"'"))]
    if not MIN_WORDS <= len(words) <= MAX_WORDS:
        return False
    plain = sum(1 for word in words if _PLAIN.match(word))
    if plain < MIN_WORDS - 1 or plain < 0.7 * len(words):
        return False
    held = sum(1 for word in words if word.lower() in _FUNCTION_WORDS)
    return held >= 1 and held >= 0.15 * len(words)
