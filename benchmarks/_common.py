"""What several benchmarks share: tables, TFF's worker, and environments of peers."""

import pathlib
import subprocess
import sys
from collections.abc import Sequence

import psutil


def row(name: str, value: str, goal: str = "") -> None:
    """Prints a row of a table with three columns."""
    print(f"| {name} | {value} | {goal} |", flush=True)


def header(name: str = "quantity", value: str = "measured") -> None:
    """Prints the header of a table of `row`s."""
    row(name, value, "must be")
    row("---", "---", "---")


def worker() -> psutil.Process:
    """Returns TFF's worker, the only child of this process."""
    (found,) = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return found


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
