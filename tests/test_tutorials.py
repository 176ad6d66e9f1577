"""The notebooks of docs/tutorials that need TensorFlow; those without are in tests/tff_mf and tests/flower."""

import pathlib
import re
import runpy

import pytest

pytest.importorskip("tensorflow_federated")


HERE = pathlib.Path(__file__).resolve().parent.parent
FOLDER = HERE / "docs" / "tutorials"
NOTEBOOKS = runpy.run_path(str(HERE / "docs" / "notebooks.py"))
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
LINKS = re.compile(r"\]\(([^)\s#]+)")
PLANNED = "--population 6000 --clients-per-round 100 --rounds 60"
# For a quick run in CI: what stands in a notebook, and what takes its place; what it prints then is not compared.
SMALLER = {
    "emnist": {
        "range(200)": "range(40)",
        "ROUNDS = 40": "ROUNDS = 2",
        "min_sep=20, max": "min_sep=1, max",
        "dataset.repeat(NUM_EPOCHS)": "dataset",
        "(swapped(name)) for name in mechanisms}": '(swapped(name)) for name in ["BLT"]}',
    },
    "central-keras": {"EPOCHS = 128, 10": "EPOCHS = 128, 2"},
    "next-word": {"--population 24000 --clients-per-round 200 --rounds 240": PLANNED},
}
# The last line of its last cell begins so.
ENDS = {
    "emnist": "client-level DP (zero-out): ε = 2.000",
    "central-keras": "ε ≤ 2.000 at δ = 1e-05 for zero-out of one example",
    "next-word": "The report follows from its files; ε is stated.",
}


def sources(path, kind):
    cells = NOTEBOOKS["read"](path)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_prints_its_stored_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for cell, text in NOTEBOOKS["printed"](NOTEBOOKS["read"](PATHS[name])):
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))


@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_runs_with_less_to_do(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = NOTEBOOKS["changed"](NOTEBOOKS["read"](PATHS[name]), SMALLER[name])
    *_, (_, said) = NOTEBOOKS["printed"](notebook)
    assert said.startswith(ENDS[name]), said


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_links_and_stored_output_of_a_notebook_are_sound(path):
    for link in LINKS.findall("".join(sources(path, "markdown"))):
        assert "://" in link or (FOLDER / link).exists(), link
    outputs = [NOTEBOOKS["stored"](cell) for cell in NOTEBOOKS["read"](path)["cells"] if cell["cell_type"] == "code"]
    assert sum(map(bool, outputs)) >= 5
    assert not [text for text in outputs if "Traceback" in text or "/tmp/" in text]
    assert path.stat().st_size < 200_000
