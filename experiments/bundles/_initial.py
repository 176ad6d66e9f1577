"""The inputs of `initialize` in a bundle: the initial model, whose last bits depend on the machine, and matrices."""

import pathlib

import numpy as np
import safetensors.numpy

_MODEL = "model__"
# Of the largest number of a tensor: what orthogonal matrices of two machines differ by, and far less than a round does.
_NEARLY = 1e-6


def same_initial(path: pathlib.Path, again: pathlib.Path) -> bool:
    """Returns whether a file has what was computed again, the model to within 1e-6, and nothing else.

    Formal guarantee: names, types, shapes and all that noise is computed from are equal, bit for bit. The model is
    public, and the guarantee is the same for every initial model.

    Args:
        path: The file of a bundle.
        again: The file that was exported again.
    """
    content = path.read_bytes()
    try:
        found = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError):
        return False
    expected = safetensors.numpy.load(again.read_bytes())
    written = {name: found[name] for name in expected if name in found}
    return (
        found.keys() == expected.keys()
        and safetensors.numpy.save(written) == content
        and all(_same(name, found[name], value) for name, value in expected.items())
    )


def same_model(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Returns whether two models are the same to within 1e-6 of the largest number of each tensor."""
    return len(found) == len(expected) and all(map(_nearly, found, expected))


def _same(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    if name.startswith(_MODEL):
        return _nearly(found, expected)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()


def _nearly(found: np.ndarray, expected: np.ndarray) -> bool:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    most = _NEARLY * float(np.abs(expected).max(initial=0.0))
    # A number that is not finite is no nearer than any bound.
    return bool(np.all(np.abs(found.astype(np.float64) - expected) <= most))
