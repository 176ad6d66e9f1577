"""The task: a log-bilinear model of the next word, in NumPy, and docstrings of the standard library.

The library's modules are split among the clients. The last part is held out.
"""

import ast
import collections
import functools
import pathlib
import re
import sysconfig
import zlib

import numpy as np

WORDS, CONTEXT, WIDTH = 500, 2, 16
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


def initial_model() -> dict[str, np.ndarray]:
    """Returns the model that training starts from; it depends on no client.

    It has what gradients train alone. Statistics that a layer keeps of its batches stay on the nodes, since all that is
    sent gets noise.
    """
    generator = np.random.default_rng(0)
    return {
        "embedding": generator.normal(0, 0.1, (WORDS + 1, WIDTH)).astype(np.float32),
        "output": np.zeros((WIDTH, WORDS + 1), np.float32),
        "bias": np.zeros(WORDS + 1, np.float32),
    }


def train(model: dict[str, np.ndarray], examples: tuple[np.ndarray, np.ndarray], rate: float = 1.0) -> dict:
    """Returns the model after one pass over a client's examples, in batches of 32."""
    model = {name: value.copy() for name, value in model.items()}
    contexts, words = examples
    for begin in range(0, len(words), 32):
        context, word = contexts[begin : begin + 32], words[begin : begin + 32]
        hidden, errors = _errors(model, context, word)
        step = np.float32(rate / len(word))
        back = errors @ model["output"].T / CONTEXT
        model["output"] -= step * hidden.T @ errors
        model["bias"] -= step * errors.sum(axis=0)
        for place in range(CONTEXT):
            np.subtract.at(model["embedding"], context[:, place], step * back)
    return model


def accuracy(model: dict[str, np.ndarray], examples: tuple[np.ndarray, np.ndarray]) -> float:
    """Returns how often the likeliest word is the next one."""
    hidden = model["embedding"][examples[0]].mean(axis=1)
    return float(np.mean((hidden @ model["output"] + model["bias"]).argmax(axis=1) == examples[1]))


def _errors(model: dict[str, np.ndarray], context: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = model["embedding"][context].mean(axis=1)
    scores = hidden @ model["output"] + model["bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    odds[np.arange(len(word)), word] -= 1
    return hidden, odds
