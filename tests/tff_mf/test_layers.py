"""Arrows between the layers point down, and TensorFlow stays in its room."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LAYERS = {"tff_mf": "tff_mf", "aggregators": "tff_mf.aggregators", "experiments": "tff_mf.experiments"}
FILES = [file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))]


def package_of(file):
    layer, *inner = file.relative_to(ROOT).parent.parts
    return ".".join([LAYERS[layer], *inner])


def imported(file):
    """Yields the absolute name of everything that `file` imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package_of(file).split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def reaches(file, *packages):
    return sorted(
        name for name in imported(file) if any(name == each or name.startswith(f"{each}.") for each in packages)
    )


def layer_of(file):
    return file.relative_to(ROOT).parts[0]


def may_use_tensorflow(file):
    inner = file.relative_to(ROOT).parts[1]
    return layer_of(file) != "tff_mf" or inner == "noise" or inner.startswith("queries")


@pytest.mark.once
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_down(file):
    if layer_of(file) == "tff_mf":
        assert not reaches(file, "tff_mf.aggregators", "tff_mf.experiments", "aggregators", "experiments")
        assert not reaches(file, "tensorflow_federated", "jax", "matplotlib")
    if layer_of(file) == "aggregators":
        assert not reaches(file, "tff_mf.experiments", "experiments")
    if not may_use_tensorflow(file):
        assert not reaches(file, "tensorflow", "tensorflow_privacy", "tensorflow_probability")
        assert not reaches(file, "tff_mf.noise", "tff_mf.queries")


def test_the_walk_sees_every_form_of_import(tmp_path):
    assert len(FILES) > 10
    assert package_of(ROOT / "experiments" / "cli" / "train.py") == "tff_mf.experiments.cli"
    init = ROOT / "tff_mf" / "__init__.py"
    assert "tff_mf.mechanisms.BLT" in set(imported(init))
