"""From a docstring to English sentences, and from a sentence to the tokens of StackOverflow.

Docstrings mix prose with what only looks like it: code, doctests, tables, signatures, parameter
lists, markup of three styles (Google, NumPy, reStructuredText). The way here is: cut the text into
paragraphs and leave out those that are not prose by their layout; take the markup out of the rest;
cut it into sentences; keep the sentences that read as English. When in doubt a sentence is left out:
there are plenty.
"""

import inspect
import re
from collections.abc import Iterator

MIN_WORDS = 4
MAX_WORDS = 80

# Nearly every line of a docstring is one that none of the other patterns for lines can match.
_ORDINARY = re.compile(r"[A-Za-z]{2,}(?!.*(?:[:\t—–]|   | -))")
_DIRECTIVE = re.compile(r"^\.\.\s+([\w:+-]+?)::\s*(.*)$")
_FIELD = re.compile(r"^:(\w+)(?:\s[^:]*)?:(?:\s+(.*))?$")
_RULE = re.compile(r"^[\W_]{3,}$")
_BULLET = re.compile(r"^(?:[-*+•]|\(?(?:\d{1,2}|[a-zA-Z]|#)[.)])\s+(?=\S)")
_NUMPY_ITEM = re.compile(r"^[`*]{0,2}[\w.]+[`*]{0,2}(?:\s*,\s*[`*]{0,2}[\w.]+[`*]{0,2})*\s+:(\s|$)")
_GOOGLE_ITEM = re.compile(r"^[`'\"*]{0,3}[\w.]+[`'\"]{0,2}(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?\s?:\s+(?=\S)")
_DASH_ITEM = re.compile(r"^[`'\"*-]{0,3}[\w.()]+[`'\"]{0,2}\s+(?:--?|—|–)\s+(?=\S)")
_HEADING = re.compile(r"^[A-Z][\w ]{1,40}:$")
_COLUMNS = re.compile(r"\S(?: {3,}|\t+)\S")
_VERSION = re.compile(r"^(?:version\s+)?\d+(?:\.\d+)+\w*[:.,]?\s*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNDERLINES = tuple("=-~^*#\"'")
_PROSE_DIRECTIVES = _words(
    "note warning seealso tip important caution attention hint danger versionadded versionchanged deprecated "
    "admonition topic"
)
_TITLED_DIRECTIVES = frozenset({"admonition", "topic"})
_PROSE_FIELDS = _words(
    "param parameter arg argument key keyword kwarg return returns yield yields raise raises except exception "
    "var ivar cvar note"
)

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
# What code, paths, formulas and tables have, and prose, with its markup taken out, has not.
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

# Words that English sentences are held together by; code, tables and lists of names have few of them.
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
    for number, paragraph in enumerate(_paragraphs(docstring)):
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


def _paragraphs(docstring: str) -> Iterator[str]:
    lines = inspect.cleandoc(docstring).splitlines()
    collected: list[str] = []
    skip_deeper_than = -1  # inside a literal block or directive: skip all that is indented more than this
    in_fence = in_doctest = False
    for number, raw in enumerate(lines):
        line = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if line.startswith(("```", "~~~")):
            in_fence = not in_fence
            yield from _flush(collected)
            continue
        if in_fence:
            continue
        if not line:
            in_doctest = False
            yield from _flush(collected)
            continue
        if skip_deeper_than >= 0:
            if indent > skip_deeper_than:
                continue
            skip_deeper_than = -1
        if in_doctest or line.startswith((">>>", "... ", "In [", "Out[")):
            in_doctest = True
            yield from _flush(collected)
            continue
        if _underlined(lines, number):
            yield from _flush(collected)
            continue
        if _ORDINARY.match(line):
            collected.append(line)
            continue
        if _RULE.match(line) or _HEADING.match(line) or _COLUMNS.search(line) or line[0] in "|>%$":
            yield from _flush(collected)
            continue
        if line.startswith(".. ") or line == "..":
            yield from _flush(collected)
            directive = _DIRECTIVE.match(line)
            if directive is None or directive[1] not in _PROSE_DIRECTIVES:
                skip_deeper_than = indent
            elif directive[2] and directive[1] not in _TITLED_DIRECTIVES:
                collected.append(_VERSION.sub("", directive[2]))
            continue
        if line.startswith(":") and (field := _FIELD.match(line)):
            yield from _flush(collected)
            if field[1] not in _PROSE_FIELDS:
                skip_deeper_than = indent
            elif field[2]:
                collected.append(field[2])
            continue
        if _NUMPY_ITEM.match(line):
            yield from _flush(collected)
            continue
        if bullet := _BULLET.match(line):
            yield from _flush(collected)
            line = line[bullet.end() :]
        if not collected or _GOOGLE_ITEM.match(line):
            item = _GOOGLE_ITEM.match(line) or _DASH_ITEM.match(line)
            if item and item[0].strip().lower() not in ("note:", "warning:", "important:"):
                yield from _flush(collected)
                line = line[item.end() :]
        if line.endswith("::"):
            line = line[:-1]
            skip_deeper_than = indent
        collected.append(line)
    yield from _flush(collected)


def _underlined(lines: list[str], number: int) -> bool:
    following = lines[number + 1].lstrip() if number + 1 < len(lines) else ""
    return (
        following[:1] in _UNDERLINES and following[:3] == following[:1] * 3 and not following.strip(following[:1] + " ")
    )


def _flush(collected: list[str]) -> Iterator[str]:
    if collected:
        yield " ".join(collected)
        collected.clear()


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
    """Says whether `text` begins with a word that begins sentences, rather than with somebody's name."""
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
