"""Raises a uniform error when optional packages are missing."""

import importlib.util
import platform
import sys

from tff_mf.base.errors import MissingDependencyError

# The only version of Python that TensorFlow Federated supports.
PYTHON = (3, 11)
# Not written to requirements.txt: in a checkout the shell would empty that file before the command reads it.
INSTALL_COMMAND = "tff-mf doctor --requirements > tff-pins.txt && pip install --no-deps -r tff-pins.txt"
# The packages of an extra themselves. tff-mf is on no index: whoever registered its name there would be installed.
CORE_COMMAND = (
    "pip install 'click>=8.1' 'dp-accounting>=0.4.3' 'jinja2>=3.1' 'markdown>=3.5' 'msgspec>=0.20' 'numpy>=1.25' "
    "'rich>=13.7' 'rich-click>=1.9' 'safetensors>=0.4' 'scipy>=1.9.3'"
)
PLOT_COMMAND = "pip install 'matplotlib>=3.8'"
FLOWER_COMMAND = "pip install 'flwr[simulation]>=1.41,<1.43'"
JAX_COMMAND = "pip install 'jax>=0.10' 'optax>=0.2.4'"
TORCH_COMMAND = "pip install 'cryptography>=42' 'torch>=2.4'"
AES_COMMAND = "pip install 'cryptography>=42'"


def is_installed(name: str) -> bool:
    """Returns whether a package can be found, without importing it."""
    return importlib.util.find_spec(name) is not None


def packages(feature: str, *names: str) -> None:
    """Raises `MissingDependencyError` unless every package in `names` can be imported."""
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise MissingDependencyError(f"{feature} needs {', '.join(missing)}, not installed here. {_remedy(missing)}")


def other_python() -> str:
    """Returns why TensorFlow Federated cannot be installed in this Python; an empty string if it can."""
    if sys.version_info[:2] == PYTHON:
        return ""
    return (
        f"TensorFlow Federated needs Python 3.11, and this is Python {platform.python_version()}: "
        "install tff-mf in an environment with Python 3.11"
    )


def _remedy(missing: list[str]) -> str:
    if "flwr" in missing:
        return f"In an environment without TensorFlow, run: {FLOWER_COMMAND}"
    if {"jax", "optax"} & set(missing):
        return f"In an environment without TensorFlow Federated, run: {JAX_COMMAND}"
    if "torch" in missing:
        return f"Run: {TORCH_COMMAND}"
    # Where TensorFlow is installed, only the pinned versions of other packages are compatible.
    if not any(name.startswith("tensorflow") for name in missing) and not is_installed("tensorflow"):
        return f"Run: {AES_COMMAND if 'cryptography' in missing else PLOT_COMMAND}"
    return f"{other_python()}." if other_python() else f"On Linux with Python 3.11: {INSTALL_COMMAND}"
