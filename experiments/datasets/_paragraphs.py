"""From a docstring to the paragraphs that are prose by their layout."""

import inspect
import re

# Nearly every line of a docstring matches this pattern, and then none of those below: the others are not tried.
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
_UNDERLINES = tuple("=-~^*#\"'")
_PROSE_DIRECTIVES = frozenset(
    [
        "note",
        "warning",
        "seealso",
        "tip",
        "important",
        "caution",
        "attention",
        "hint",
        "danger",
        "versionadded",
        "versionchanged",
        "deprecated",
        "admonition",
        "topic",
    ]
)
_TITLED_DIRECTIVES = frozenset({"admonition", "topic"})
_PROSE_FIELDS = frozenset(
    [
        "param",
        "parameter",
        "arg",
        "argument",
        "key",
        "keyword",
        "kwarg",
        "return",
        "returns",
        "yield",
        "yields",
        "raise",
        "raises",
        "except",
        "exception",
        "var",
        "ivar",
        "cvar",
        "note",
    ]
)


def paragraphs(docstring: str) -> list[str]:
    r"""Returns the paragraphs of `docstring` that are prose by their layout, each in one line.

    Example:
        >>> paragraphs("Adds numbers.\n\n>>> add(1, 2)\n3\n\nIt is exact,\nand fast.")
        ['Adds numbers.', 'It is exact, and fast.']
    """
    lines = inspect.cleandoc(docstring).splitlines()
    reader = _Reader()
    for number, raw in enumerate(lines):
        line = raw.strip()
        reader.read(line, indent=len(raw) - len(raw.lstrip()), underlined=_underlined(lines, number))
    reader.end_paragraph()
    return reader.found


class _Reader:
    """Reads a docstring line by line.

    Attributes:
        found: The paragraphs so far.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._lines: list[str] = []
        # Inside a literal block or directive: everything that is indented more than this is left out.
        self._skip_deeper_than = -1
        self._in_fence = self._in_doctest = False

    def read(self, line: str, *, indent: int, underlined: bool) -> None:
        """Reads the next line, without its indentation."""
        if self._is_block(line, indent):
            return
        if underlined:
            self.end_paragraph()
        elif _ORDINARY.match(line):
            self._lines.append(line)
        elif _RULE.match(line) or _HEADING.match(line) or _COLUMNS.search(line) or line[0] in "|>%$":
            self.end_paragraph()
        elif line.startswith(".. ") or line == "..":
            self._read_directive(line, indent)
        elif line.startswith(":") and (field := _FIELD.match(line)):
            self._begin(field[2] or None, indent, prose=field[1] in _PROSE_FIELDS)
        elif _NUMPY_ITEM.match(line):
            self.end_paragraph()
        else:
            self._read_text(line, indent)

    def end_paragraph(self) -> None:
        """Ends the paragraph, if one has begun."""
        if self._lines:
            self.found.append(" ".join(self._lines))
            self._lines.clear()

    def _is_block(self, line: str, indent: int) -> bool:
        """Returns whether a line is blank or belongs to a block that is not prose: a fence, a doctest, a literal."""
        fence = line.startswith(("```", "~~~"))
        if fence or self._in_fence:
            self._in_fence ^= fence
        elif not line:
            self._in_doctest = False
        elif 0 <= self._skip_deeper_than < indent:
            return True
        else:
            self._skip_deeper_than = -1
            self._in_doctest = self._in_doctest or line.startswith((">>>", "... ", "In [", "Out["))
            if not self._in_doctest:
                return False
        self.end_paragraph()
        return True

    def _read_directive(self, line: str, indent: int) -> None:
        directive = _DIRECTIVE.match(line)
        name, text = ("", "") if directive is None else (directive[1], directive[2])
        shown = _VERSION.sub("", text) if text and name not in _TITLED_DIRECTIVES else None
        self._begin(shown, indent, prose=name in _PROSE_DIRECTIVES)

    def _begin(self, text: str | None, indent: int, *, prose: bool) -> None:
        """Begins a paragraph with the text of a directive or field, or leaves out all that is indented below it."""
        self.end_paragraph()
        if not prose:
            self._skip_deeper_than = indent
        elif text is not None:
            self._lines.append(text)

    def _read_text(self, line: str, indent: int) -> None:
        if bullet := _BULLET.match(line):
            self.end_paragraph()
            line = line[bullet.end() :]
        if not self._lines or _GOOGLE_ITEM.match(line):
            item = _GOOGLE_ITEM.match(line) or _DASH_ITEM.match(line)
            if item and item[0].strip().lower() not in ("note:", "warning:", "important:"):
                self.end_paragraph()
                line = line[item.end() :]
        if line.endswith("::"):
            line = line[:-1]
            self._skip_deeper_than = indent
        self._lines.append(line)


def _underlined(lines: list[str], number: int) -> bool:
    following = lines[number + 1].lstrip() if number + 1 < len(lines) else ""
    return (
        following[:1] in _UNDERLINES and following[:3] == following[:1] * 3 and not following.strip(following[:1] + " ")
    )
