"""The examples of pages run, commands and names exist, links lead to headings, the site loads nothing from outside."""

import doctest
import importlib
import json
import pathlib
import pydoc
import re
import runpy
import shlex
from collections.abc import Iterator

import pytest

pytest.importorskip("tensorflow_federated")

from click.testing import CliRunner

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.experiments.cli import cli
from tff_mf.frameworks import keras
from tff_mf.noise import numpy as streams
from tff_mf.numerics import normals

HERE = pathlib.Path(__file__).resolve().parent.parent
DOCS = HERE / "docs"
PAGES = sorted([HERE / "README.md", *DOCS.glob("*.md")])
# Programs that need the file that their page shows (tests/tff_mf/test_adding_a_mechanism.py runs them).
RUN_ELSEWHERE = {"adding-a-mechanism.md-0", "adding-a-mechanism.md-1", "adding-a-mechanism.md-2"}
# A calibration of ten seconds, of functions that other tests call.
LONG = {"amplification.md-0"}
# For a quick run in CI: what stands in a block, and what takes its place.
SHORTER = {
    "README.md-0": ("rounds=30", "rounds=3"),
    # A client's loop over its batches, which takes half of the time of the other.
    "swap-in-tff.md-0": (
        "withhold_metrics,",
        "withhold_metrics, loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,",
    ),
}


def python_blocks():
    """The blocks of all pages, but those that other tests run."""
    for page in PAGES:
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)):
            name = f"{page.name}-{number}"
            if name not in RUN_ELSEWHERE:
                yield pytest.param(name, block, id=name, marks=[pytest.mark.long] if name in LONG else [])


LIBRARIES = {
    "tff_mf": tff_mf,
    "normals": normals,
    "queries": queries,
    "keras": keras,
    "streams": streams,
    "aggregators": aggregators,
}


@pytest.mark.parametrize(("name", "block"), python_blocks())
def test_python_blocks_run(name, block, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if name in SHORTER and not request.config.getoption("--long"):
        assert SHORTER[name][0] in block
        block = block.replace(*SHORTER[name])
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})


def command_lines() -> Iterator[list[str]]:
    """Yields the words after `tff-mf` of all lines of pages and notebooks, and of the papers' tables and figures."""
    text = "".join("".join(re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.S | re.M)) for page in PAGES)
    for path in (DOCS / "tutorials").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            text += "".join(cell["source"]).replace("!tff-mf", "tff-mf") + "\n"
    for path in (DOCS / "papers.md", DOCS / "results" / "tables.csv"):
        for line in re.findall(r"`tff-mf ((?:show|optimize|account|plan|train) [^`]+)`", path.read_text()):
            text += f"tff-mf {' '.join(line.split())}\n"
    for line in re.findall(r"^tff-mf (.*)$", re.sub(r" *\\\n *", " ", text), re.M):
        yield shlex.split(re.split(r" [|>] ", line)[0], comments=True)


def test_commands_exist_with_their_flags():
    """The lines are only parsed, before help is shown, since a run takes minutes; `test_command_lines.py` runs them."""
    lines = list(command_lines())
    assert len(lines) > 60
    assert [line for line in lines if CliRunner().invoke(cli, [*line, "--help"]).exit_code] == []


# Of frameworks in other environments.
OF_FRAMEWORKS = ("frameworks.optax", "frameworks.torch", "noise.jax", "noise.torch")


def names_in_text() -> Iterator[tuple[str, str]]:
    """Yields a page, and a dotted name in its text that begins with a package of ours."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for code in re.findall(r"`([^`]+)`", text):
            for name in re.findall(r"(?<![\w./-])[a-z]\w*(?:\.\w+)+", code):
                if name.split(".")[0] in LIBRARIES and not name.endswith((".py", ".json", ".html", ".safetensors")):
                    yield page.name, name


def exists(name: str) -> bool:
    """Returns whether a name is one of its module."""
    first, _, rest = name.partition(".")
    if first == "tff_mf" and name.removeprefix("tff_mf.").startswith((*OF_FRAMEWORKS, "experiments.flower")):
        return True
    return pydoc.locate(f"{LIBRARIES[first].__name__}.{rest}") is not None


def test_names_in_the_text_of_pages_exist():
    found = set(names_in_text())
    assert len(found) > 30
    assert not exists("tff_mf.dataset")
    assert {(page, name) for page, name in found if not exists(name)} == set()


# tests/tff_mf/test_doctests.py runs the other modules of that layer; Flower is in another environment.
WITH_EXAMPLES = [
    ".".join(path.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__")
    for pattern in (
        "tff_mf/noise/tensorflow",
        "tff_mf/queries",
        "tff_mf/frameworks/keras",
        "aggregators",
        "experiments",
    )
    for path in sorted((HERE / pattern).rglob("*.py"))
    if ">>>" in path.read_text() and "flower" not in path.parts
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name if name.startswith("tff_mf") else f"tff_mf.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


# Long: tests/aggregators/test_factory.py runs each mechanism in TFF, and the page swap-in-tff.md such a process.
@pytest.mark.long
def test_the_script_that_swaps_each_mechanism_runs(capfd):
    runpy.run_path(str(DOCS / "swap.py"), run_name="__main__")
    assert capfd.readouterr().out.count("sigma") == 9


def headings(page):
    """Returns the anchors of a page's headings, as they are made of the text on the page."""
    text = re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.S | re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)
    }


LINKING = [HERE / "CONTRIBUTING.md", HERE / "SECURITY.md", HERE / "README.md", *(DOCS).rglob("*.md")]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(HERE)))
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_preset_and_kind_of_sampling_is_in_the_docs():
    from tff_mf.experiments import sampling
    from tff_mf.experiments.runs.settings import PRESETS

    text = (DOCS / "experiments.md").read_text()
    for name in (*PRESETS.names(), *sampling.SAMPLINGS):
        assert f"`{name}`" in text, f"{name} is missing in docs/experiments.md"


def test_the_specifications_of_the_page_are_what_it_says(tmp_path):
    from tff_mf.experiments import compare
    from tff_mf.experiments.compare import search

    grids, searched = re.findall(r"^```toml\n(.*?)^```", (DOCS / "experiments.md").read_text(), re.S | re.M)
    path = tmp_path / "spec.toml"
    path.write_text(grids)
    assert len(compare.read(path)) == 3 * 3 + 2 * 3 * 3
    for text in (searched, (DOCS / "results" / "pydoc-search.toml").read_text()):
        path.write_text(text)
        (run,) = compare.read(path)
        assert run.settings.search == 4
        assert "server_learning_rate" in search.distributions(path, run.settings)


NAVIGATION = (HERE / "mkdocs.yml").read_text().split("\nnav:\n")[1]
# Made by docs/site/hooks.py when the site is built.
GENERATED = {
    "index.md": "README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    named = set(re.findall(r": (\S+\.md)$", NAVIGATION, re.M))
    pages = {path.relative_to(DOCS).as_posix() for path in (DOCS).rglob("*.md")}
    pages |= {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in (DOCS).rglob("*.ipynb")}
    generated = {name for name in named if name.startswith("reference/")} | set(GENERATED)
    assert named - generated == pages
    assert all((HERE / source).is_file() for source in GENERATED.values())


def test_the_sources_have_no_markdown_that_the_site_reads_otherwise():
    """Python-Markdown needs an empty line before a list, and takes _ and * after some signs for emphasis."""
    for path in [*(DOCS).rglob("*.md"), *(HERE / name for name in GENERATED.values())]:
        text = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(), flags=re.M | re.S)
        assert not re.findall(r"^[^\s|>*\d-][^\n]*\n- .*", text, re.M), path
        assert not re.findall(r"[\u0300-\u036f]_(?=\w)(?:(?!\n\n|\n- | \| ).)+?(?<!\\)_(?!\w)", text, re.S), path
        assert not re.findall(r"\w\*(?=[_)])[^*]*\w\*(?=[_)])", text), path
