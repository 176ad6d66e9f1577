"""The notebook of docs/tutorials that trains on Flower."""

import logging
import pathlib
import runpy
import sys

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"))


# The rounds of test_strategy.py and the app of test_app.py are what its cells run.
@pytest.mark.long
def test_the_notebook_prints_its_stored_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("next_word")]:
        monkeypatch.delitem(sys.modules, name)
    level = logging.getLogger("flwr").level
    try:
        for cell, text in NOTEBOOKS["printed"](NOTEBOOKS["read"](DOCS / "tutorials" / "flower.ipynb")):
            assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))
    finally:
        logging.getLogger("flwr").setLevel(level)
