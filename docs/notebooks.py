"""Runs the notebooks of docs/tutorials without Jupyter, and compares what they print with their stored output.

`python docs/notebooks.py` names the cells that differ; with `--write` it stores what they print. A notebook's cells are
run in one namespace, in an empty folder; standard output alone is stored. A cell of lines that begin with `!` is run by
a shell, as in Jupyter. Of a cell with the tag `varies`, which prints fresh noise or times, numbers are not compared.
Notebooks that need a package that is missing (`needs` in their metadata) are left out, and named.
"""

import contextlib
import importlib.util
import io
import json
import linecache
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping

FOLDER = pathlib.Path(__file__).parent / "tutorials"
# What differs from run to run: hashes, versions, numbers with their signs, a remark on the largest of many.
_VARYING = re.compile(
    r"\b[0-9a-f]{16,64}\b|\d[\d.]*\.dev\d+(\+g[0-9a-f]+(\.d\d+)?)?|[-−+]?\d[\d.,e−-]*|[∞…]|of another stream"
)


def shell(line: str) -> str:
    """Returns what a command line prints on standard output.

    Raises:
        CalledProcessError: If the line ends with another status than 0.
    """
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, "PATH": path, "COLUMNS": "80"}
    # Into a file: TFF's worker may outlive the line, and would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out:
        subprocess.run(["bash", "-c", line], check=True, stdin=subprocess.DEVNULL, stdout=out, env=variables)
        out.seek(0)
        return out.read()


def printed(notebook: dict, run: Callable[[str], str] = shell) -> Iterator[tuple[dict, str]]:
    """Runs the code cells of a notebook in order, and yields each with what it prints; `run` runs command lines."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            if source.startswith("!"):
                lines = re.sub(r"\\\n *", "", source).splitlines()
                yield cell, "".join(run(line.removeprefix("!")) for line in lines)
                continue
            name = f"<cell {number}>"
            # TensorFlow converts loops and conditions from the source, which it looks for as a traceback does.
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, name, "exec"), names)
            yield cell, out.getvalue()


def stored(cell: dict) -> str:
    """Returns the stored output of a cell."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def compared(cell: dict, text: str) -> str:
    """Returns what of an output is compared: of a cell that varies, the words."""
    if "varies" not in cell.get("metadata", {}).get("tags", []):
        return text
    return " ".join(_VARYING.sub(" ", text).split())


def store(cell: dict, text: str, count: int) -> None:
    """Replaces the stored output of a cell."""
    stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    cell.update(execution_count=count, outputs=[stream] if text else [])


def read(path: pathlib.Path) -> dict:
    """Returns a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def changed(notebook: dict, changes: Mapping[str, str]) -> dict:
    """Returns a notebook with other texts in its code, as for a quick run.

    Raises:
        ValueError: If one of the texts is not in it.
    """
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    for old, new in changes.items():
        if not any(old in source for source in sources):
            raise ValueError(f"{old!r} is in no cell.")
        sources = [source.replace(old, new) for source in sources]
    cells = [{**cell, "source": [source]} for cell, source in zip(notebook["cells"], sources, strict=True)]
    return {**notebook, "cells": cells}


def needs(notebook: dict) -> str:
    """Returns the package beside the core layer that a notebook needs, "" if none."""
    return notebook["metadata"].get("tff_mf", {}).get("needs", "")


def main(write: bool) -> int:
    """Runs all notebooks; returns the number of cells that print something other than what is stored."""
    differing = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = read(path)
        if needs(notebook) and importlib.util.find_spec(needs(notebook)) is None:
            print(f"{path.name}: left out, without {needs(notebook)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for count, (cell, text) in enumerate(printed(notebook), start=1):
                if compared(cell, text) != compared(cell, stored(cell)):
                    differing += 1
                    print(f"{path.name}, cell {count}, prints:\n{text}", file=sys.stderr)
                    store(cell, text, count)
        if write:
            path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + os.linesep, encoding="utf-8")
    return 0 if write else differing


if __name__ == "__main__":
    sys.exit(bool(main(write=sys.argv[1:] == ["--write"])))
