"""Environments of peers, with packages that do not install beside TensorFlow Federated."""

import pathlib
import subprocess
import sys
from collections.abc import Sequence


def environment(
    name: str, requirements: Sequence[str], interpreter: str = sys.executable, *, with_checkout: bool = False
) -> pathlib.Path:
    """Returns the Python of peers, in build/peers/NAME, where they are installed if they are not there."""
    checkout = pathlib.Path(__file__).resolve().parents[1]
    folder = checkout / "build" / "peers" / name
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        if with_checkout:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-e", checkout], check=True)
        done.touch()
    return python
