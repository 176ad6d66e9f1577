"""The worker of `pydoc`: reads file names, writes the sentences of their docstrings.

It runs as a program of its own, several at a time, because parsing takes most of the time and
Python parses on one core only. One line of JSON on standard input is a list of files, one line of
JSON on standard output the list of what `extract` returns for them.
"""

import ast
import functools
import gc
import json
import re
import sys
import warnings
from collections.abc import Iterator

from . import _prose

# A module with fewer sentences than this does not become a client.
MIN_SENTENCES = 10

_LONG_STRING = re.compile(rb'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def extract(path: str) -> list[tuple[str, str]]:
    """Returns (name of the documented object, tokens of a sentence) for the file at `path`, in its order.

    A file that cannot be read or parsed, or that is too short to be a client, gives nothing.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
        if _most_sentences(text) < MIN_SENTENCES:
            return []
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [(name, text) for name, docstring in _docstrings(tree, "") for text in _tokenized(docstring)]


# Public aliases, subclasses and copies for other backends repeat docstrings by the thousand.
@functools.cache
def _tokenized(docstring: str) -> tuple[str, ...]:
    return tuple(_prose.tokens(sentence) for sentence in _prose.sentences(docstring))


def _most_sentences(text: bytes) -> int:
    """Bounds the number of sentences from above: far cheaper than to parse the file."""
    strings = (first or second for first, second in _LONG_STRING.findall(text))
    return sum(1 + sum(string.count(sign) for sign in (b".", b"!", b"?", b":")) for string in strings)


def _docstrings(node: _Documented, name: str) -> Iterator[tuple[str, str]]:
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
        yield name, docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def main() -> None:
    """Answers every line of standard input with one line of standard output."""
    # The trees have no cycles that must be found, but are so large that looking for some takes half of the time.
    gc.disable()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        sys.stdout.write(json.dumps([extract(path) for path in json.loads(line)]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
