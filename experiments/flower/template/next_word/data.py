"""Data: docstrings of the standard library, whose modules are split among the clients. The last part is held out."""

import ast
import collections
import functools
import pathlib
import re
import sysconfig
import zlib

import numpy as np

WORDS, CONTEXT = 500, 2
_MOST_TEXT = 20_000


@functools.cache
def examples_of(partition: int, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples of a client, from one module of the standard library in so many."""
    text = ""
    for path in _modules():
        if zlib.crc32(path.name.encode()) % (partitions + 1) == partition and len(text) < _MOST_TEXT:
            text += _text(path) + " "
    return _encoded(text[:_MOST_TEXT])


def held_out(partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples of modules that no client has: the server measures the model on them."""
    return examples_of(partitions, partitions)


def _encoded(text: str) -> tuple[np.ndarray, np.ndarray]:
    vocabulary = _vocabulary()
    ids = np.array([vocabulary.get(word, WORDS) for word in _words(text)], np.int32)
    if not (ids[CONTEXT:] < WORDS).any():
        return np.zeros((1, CONTEXT), np.int32), np.zeros(1, np.int32)
    contexts = np.stack([ids[place : len(ids) - CONTEXT + place] for place in range(CONTEXT)], axis=1)
    known = ids[CONTEXT:] < WORDS
    return contexts[known], ids[CONTEXT:][known]


@functools.cache
def _vocabulary() -> dict[str, int]:
    """Returns the words of the model: the commonest of a public text, so that they tell nothing of any client."""
    import pydoc_data.topics

    counts = collections.Counter(_words(" ".join(pydoc_data.topics.topics.values())))
    return {word: index for index, (word, _) in enumerate(counts.most_common(WORDS))}


@functools.cache
def _modules() -> list[pathlib.Path]:
    return sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))


def _text(path: pathlib.Path) -> str:
    tree = ast.parse(path.read_bytes())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return " ".join(ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
