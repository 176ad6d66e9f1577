"""The notebooks of docs/tutorials that need TensorFlow; those without are in tests/tff_mf and tests/flower."""

import pathlib
import re
import runpy
import shlex
import subprocess

import pytest

pytest.importorskip("tensorflow_federated")

from click.testing import CliRunner

from tff_mf.experiments.cli import cli

HERE = pathlib.Path(__file__).resolve().parent.parent
FOLDER = HERE / "docs" / "tutorials"
NOTEBOOKS = runpy.run_path(str(HERE / "docs" / "notebooks.py"))
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
LINKS = re.compile(r"\]\(([^)\s#]+)")
# For a quick run in CI: what stands in a notebook, and what takes its place; what it prints then is not compared.
SHORTER = {
    "emnist": {
        "range(200)": "range(40)",
        "ROUNDS = 40": "ROUNDS = 2",
        "min_sep=20, max": "min_sep=1, max",
        "dataset.repeat(NUM_EPOCHS)": "dataset",
        "(swapped(name)) for name in mechanisms}": '(swapped(name)) for name in ["BLT"]}',
        'assert accuracies["BLT"] > accuracies["independent"]': "",
    },
}


def sources(path, kind):
    cells = NOTEBOOKS["read"](path)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def in_this_process(line):
    """What a line prints: tff-mf's without another import of TensorFlow."""
    if not line.startswith("tff-mf "):
        return NOTEBOOKS["shell"](line)
    command, _, filtered = line.partition(" | ")
    done = CliRunner().invoke(cli, shlex.split(command)[1:], catch_exceptions=False, standalone_mode=False)
    if not filtered:
        return done.stdout
    piped = subprocess.run(["bash", "-c", filtered], input=done.stdout, capture_output=True, text=True, check=True)
    return piped.stdout


# Long: another test runs a notebook with less data.
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("emnist", marks=pytest.mark.long),  # A shorter one runs in CI.
        "central-keras",
        pytest.param("next-word", marks=pytest.mark.long),  # Lines as those of docs/command-line.md, which run in CI.
        pytest.param("deploy", marks=pytest.mark.long),  # test_runner.py runs a bundle, docs/deployment.md the lines.
    ],
)
def test_a_notebook_prints_its_stored_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for cell, text in NOTEBOOKS["printed"](NOTEBOOKS["read"](PATHS[name]), in_this_process):
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))


@pytest.mark.parametrize("name", SHORTER)
def test_a_notebook_runs_with_less_data(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = NOTEBOOKS["read"](PATHS[name])
    text = "".join(sources(PATHS[name], "code"))
    assert all(old in text for old in SHORTER[name])
    for cell in notebook["cells"]:
        for old, new in SHORTER[name].items():
            cell["source"] = ["".join(cell["source"]).replace(old, new)]
    *_, (_, said) = NOTEBOOKS["printed"](notebook)
    assert said.startswith("client-level DP (zero-out): ε = 2.000")


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_links_and_stored_output_of_a_notebook_are_sound(path):
    for link in LINKS.findall("".join(sources(path, "markdown"))):
        assert "://" in link or (FOLDER / link).exists(), link
    outputs = [NOTEBOOKS["stored"](cell) for cell in NOTEBOOKS["read"](path)["cells"] if cell["cell_type"] == "code"]
    assert sum(map(bool, outputs)) >= 5
    assert not [text for text in outputs if "Traceback" in text or "/tmp/" in text]
    assert path.stat().st_size < 200_000
