"""The code is laid out as CONTRIBUTING.md says: layers, packages, levels, sizes, and who may import what."""

import ast
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
MOST = {"tff_mf": (15, 10), "aggregators": (8, 4), "experiments": (13, 7)}
LAYERS = {"tff_mf": "tff_mf", "aggregators": "tff_mf.aggregators", "experiments": "tff_mf.experiments"}
UPPER = ("tff_mf.aggregators", "tff_mf.experiments")
WITH_TENSORFLOW = ("tff_mf.noise.tensorflow", "tff_mf.queries", "tff_mf.frameworks.keras")
# Names, and the only modules that import them. The adapters are around the classes of others: they import what these
# come with when one is judged.
ONLY_BY = (
    (("tff_mf.experiments", "experiments"), ("tff_mf.experiments",)),
    (("tff_mf.aggregators", "aggregators", "tensorflow_federated"), UPPER),
    (("matplotlib",), UPPER),
    (
        ("tensorflow", "tensorflow_privacy", "tensorflow_probability", *WITH_TENSORFLOW),
        (*WITH_TENSORFLOW, "tff_mf.conformance.adapters", *UPPER),
    ),
    (
        ("jax", "optax", "tff_mf.noise.jax"),
        ("tff_mf.noise.jax", "tff_mf.noise._jax_normals", "tff_mf.frameworks.optax", *UPPER),
    ),
    (("torch", "tff_mf.noise.torch"), ("tff_mf.noise.torch", "tff_mf.frameworks.torch", *UPPER)),
)


def module_of(path: pathlib.Path) -> str:
    folder, *inside = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([LAYERS[folder], *inside]).removesuffix(".__init__")


def belongs(name: str, parts) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: pathlib.Path):
    """Yields the absolute names that a module imports, wherever in it; of TYPE_CHECKING, too."""
    package = [LAYERS[path.relative_to(ROOT).parts[0]], *path.relative_to(ROOT).parent.parts[1:]]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


FILES = {path: module_of(path) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))}


def test_names_are_imported_only_where_they_may_be():
    assert "tff_mf.mechanisms.BLT" in set(imported(ROOT / "tff_mf" / "__init__.py"))
    wrong = {
        (module, name)
        for path, module in FILES.items()
        for name in imported(path)
        for names, modules in ONLY_BY
        if belongs(name, names) and not belongs(module, modules)
    }
    assert wrong == set()


def layer_of(module: str) -> str:
    return max((layer for layer in LAYERS.values() if belongs(module, [layer])), key=len)


def test_what_is_private_is_imported_by_its_own_package_only():
    """And never by another layer."""
    wrong = set()
    for path, module in FILES.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in imported(path):
            private = re.match(r"(tff_mf.*?)\._[a-z]", name)
            if private and not (belongs(package, [private[1]]) and layer_of(package) == layer_of(private[1])):
                wrong.add((module, name))
    assert wrong == set()


def test_import_brings_in_no_framework():
    heavy = "tensorflow tensorflow_federated tensorflow_privacy jax matplotlib dp_accounting pandas"
    program = f"import sys, tff_mf; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


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
    section = PAGE.read_text(encoding="utf-8").split(f"## Packages of `{LAYERS[layer]}`")[1].split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)}
    units = {unit.lstrip("_") for unit in architecture.graph(layer)}
    assert units <= named
    assert {name.lstrip("_") for name in named} <= units


def test_every_file_of_the_page_exists():
    text = PAGE.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tff_mf|aggregators|experiments|tests|docs)/[\w./]*)`", text)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
