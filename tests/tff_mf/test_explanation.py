"""Pages of docs/explanation, notebooks, pictures and the script of least squares say what the code computes."""

import doctest
import pathlib
import re
import runpy

import pytest

import tff_mf

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = [path for path in sorted((DOCS / "explanation").glob("*.md")) if "```pycon" in path.read_text()]
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"))
# tests/test_tutorials.py and tests/flower run the others.
WITHOUT_TENSORFLOW = [
    path for path in sorted((DOCS / "tutorials").glob("*.ipynb")) if not NOTEBOOKS["needs"](NOTEBOOKS["read"](path))
]
PICTURES = runpy.run_path(str(DOCS / "pictures.py"))


def examples(page):
    """The lines of a page with a prompt, in one namespace."""
    blocks = re.findall(r"^```pycon\n(.*?)^```", page.read_text(), re.S | re.M)
    return doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)


@pytest.mark.once
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_number_of_a_page_is_computed_by_its_lines(page):
    runner = doctest.DocTestRunner()
    runner.run(examples(page))
    assert runner.summarize().attempted >= 5
    assert runner.summarize().failed == 0


@pytest.mark.once
@pytest.mark.parametrize("path", WITHOUT_TENSORFLOW, ids=lambda path: path.stem)
def test_a_notebook_prints_its_stored_output(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = list(NOTEBOOKS["printed"](NOTEBOOKS["read"](path)))
    assert [text for _, text in cells] == [NOTEBOOKS["stored"](cell) for cell, _ in cells]
    assert sum(bool(text) for _, text in cells) >= 5


def test_every_picture_is_drawn_by_the_script():
    assert {path.stem for path in PICTURES["FOLDER"].glob("*.svg")} == set(PICTURES["PICTURES"])


PAGE = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs" / "least_squares.py"))


@pytest.mark.once
def test_correlated_noise_in_the_statistics_is_worth_it():
    """At ε = 4: trees beat independent noise, and noise in the statistics beats the paper's tree on gradients."""
    rounds = 512
    mechanisms = {"identity": tff_mf.Identity(), "tree": tff_mf.Tree(rounds, variant="vanilla")}
    found = PAGE["compare"](mechanisms, rounds=rounds, seeds=2, epsilon=4.0)
    for name, mechanism in mechanisms.items():
        reached = tff_mf.epsilon(
            mechanism, rounds, tff_mf.SingleParticipation(), noise_multiplier=found[name][0], delta=1e-6
        )
        assert reached <= 4.0
    assert found["tree"][1] < found["identity"][1] / 2
    assert found["tree"][1] < found["tree"][3]
