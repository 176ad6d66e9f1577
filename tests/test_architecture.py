"""The code is laid out as CONTRIBUTING.md says: layers, packages, levels, sizes."""

import functools
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
MOST = {"tff_mf": (15, 10), "aggregators": (8, 4), "experiments": (13, 7)}


@pytest.fixture(scope="module")
def architecture():
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.graph = functools.cache(module.graph)
    return module


def test_the_picture_is_drawn_from_this_code(architecture):
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.drawn(), "run: python docs/architecture.py"


@pytest.mark.parametrize("layer", MOST)
def test_packages_import_lower_packages_only(architecture, layer):
    found = architecture.graph(layer)
    rows = architecture.levels(found)
    packages, levels = MOST[layer]
    assert len(found) <= packages
    assert len(rows) <= levels
    height = {unit: len(rows) - index for index, row in enumerate(rows) for unit in row}
    assert all(height[other] < height[unit] for unit in found for other in found[unit])


@pytest.mark.parametrize("layer", MOST)
def test_every_package_is_on_the_page(architecture, layer):
    heading = {"tff_mf": "tff_mf", "aggregators": "tff_mf.aggregators", "experiments": "tff_mf.experiments"}[layer]
    section = PAGE.read_text(encoding="utf-8").split(f"## Packages of `{heading}`")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)}
    units = {unit.lstrip("_") for unit in architecture.graph(layer)}
    assert units <= named
    assert {name.lstrip("_") for name in named} <= units


def test_every_file_of_the_page_exists():
    text = PAGE.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tff_mf|aggregators|experiments|tests|docs)/[\w./]*)`", text)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
