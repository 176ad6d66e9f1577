"""Runs the notebooks of docs/tutorials without Jupyter, and compares what they print with their stored output.

`python docs/notebooks.py` names the cells that differ; with `--write` it stores what they print. A notebook's cells are
run in one namespace, in an empty folder; standard output alone is stored.
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

FOLDER = pathlib.Path(__file__).parent / "tutorials"


def printed(notebook: dict) -> Iterator[tuple[dict, str]]:
    """Runs the code cells of a notebook in order; yields each with what it prints."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            yield cell, out.getvalue()


def stored(cell: dict) -> str:
    """Returns the stored output of a cell."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def store(cell: dict, text: str, count: int) -> None:
    """Replaces the stored output of a cell."""
    stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    cell.update(execution_count=count, outputs=[stream] if text else [])


def read(path: pathlib.Path) -> dict:
    """Returns a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def main(write: bool) -> int:
    """Runs all notebooks; returns the number of cells that print something other than what is stored."""
    differing = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for count, (cell, text) in enumerate(printed(notebook), start=1):
                if text != stored(cell):
                    differing += 1
                    print(f"{path.name}, cell {count}, prints:\n{text}", file=sys.stderr)
                store(cell, text, count)
        if write:
            path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + os.linesep, encoding="utf-8")
    return 0 if write else differing


if __name__ == "__main__":
    sys.exit(bool(main(write=sys.argv[1:] == ["--write"])))
