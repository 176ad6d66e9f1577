"""Model: a log-bilinear model of the next word, in NumPy."""

import numpy as np

from next_word.data import CONTEXT, WORDS

WIDTH = 16


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
