"""Layers import only lower layers, a few packages import TensorFlow, and private modules stay private."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LAYERS = {"tff_mf": "tff_mf", "aggregators": "tff_mf.aggregators", "experiments": "tff_mf.experiments"}
TENSORFLOW = ("noise.tensorflow", "queries", "keras")
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
    name = package_of(file).removeprefix("tff_mf.")
    return layer_of(file) != "tff_mf" or any(f"{name}.".startswith(f"{each}.") for each in TENSORFLOW)


@pytest.mark.once
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_down(file):
    if layer_of(file) == "tff_mf":
        assert not reaches(file, "tff_mf.aggregators", "tff_mf.experiments", "aggregators", "experiments")
        assert not reaches(file, "tensorflow_federated", "matplotlib")
        if package_of(file) != "tff_mf.noise.jax" and file.name != "optax.py":
            assert not reaches(file, "jax", "optax", "tff_mf.noise.jax")
        if package_of(file) != "tff_mf.noise.torch" and file.name != "torch.py":
            assert not reaches(file, "torch", "tff_mf.noise.torch")
    if layer_of(file) == "aggregators":
        assert not reaches(file, "tff_mf.experiments", "experiments")
    if not may_use_tensorflow(file):
        assert not reaches(file, "tensorflow", "tensorflow_privacy", "tensorflow_probability")
        assert not reaches(file, *(f"tff_mf.{inner}" for inner in TENSORFLOW))


def test_the_walk_sees_every_form_of_import(tmp_path):
    assert len(FILES) > 10
    assert package_of(ROOT / "experiments" / "cli" / "train.py") == "tff_mf.experiments.cli"
    init = ROOT / "tff_mf" / "__init__.py"
    assert "tff_mf.mechanisms.BLT" in set(imported(init))


def private_imports(file):
    """Yields what `file` imports from a private module of a package that it is no part of, or of another layer."""
    package = package_of(file)
    layer = LAYERS[layer_of(file)]
    for name in imported(file):
        parts = name.split(".")
        private = next((index for index, part in enumerate(parts) if part.startswith("_") and part != "__init__"), None)
        if parts[0] != "tff_mf" or not private:
            continue
        owner = ".".join(parts[:private])
        of_layer = max((each for each in LAYERS.values() if f"{owner}.".startswith(f"{each}.")), key=len)
        if layer != of_layer or not f"{package}.".startswith(f"{owner}."):
            yield ".".join(parts[: private + 1])


def at_import(node):
    """Yields every node that runs when a module is imported: bodies of functions do not, their decorators do."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for decorator in getattr(child, "decorator_list", ()):
                yield from at_import(decorator)
        else:
            yield from at_import(child)


def is_attribute(node, module, name):
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def hidden_strings(tree):
    """Yields each `tempfile.tempdir = …`, and each `atexit.register` that runs when the module is imported."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(is_attribute(target, "tempfile", "tempdir") for target in targets):
            yield "tempfile.tempdir"
    if any(is_attribute(node, "atexit", "register") for node in at_import(tree)):
        yield "atexit"


@pytest.mark.once
def test_private_modules_are_imported_by_their_own_package_only():
    assert {(str(file), name) for file in FILES for name in private_imports(file)} == set()


@pytest.mark.once
def test_nothing_global_is_changed():
    assert {(str(file), each) for file in FILES for each in hidden_strings(ast.parse(file.read_text()))} == set()


def test_private_imports_are_seen(tmp_path, monkeypatch):
    file = tmp_path / "tff_mf" / "noise" / "example.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for text, expected in (
        ("from tff_mf.noise import _keyed", []),
        ("from tff_mf.noise._keyed import KeyedStream", []),
        ("from tff_mf import _builtin", []),
        ("from tff_mf.queries._base import QueryState", ["tff_mf.queries._base"]),
        ("import tff_mf.mechanisms._series", ["tff_mf.mechanisms._series"]),
        ("def f():\n    from ..mechanisms import _series", ["tff_mf.mechanisms._series"]),
        ("from __future__ import annotations", []),
    ):
        file.write_text(text)
        assert list(private_imports(file)) == expected, text
    layer = tmp_path / "aggregators" / "example.py"
    layer.parent.mkdir()
    layer.write_text("from tff_mf import _builtin\nfrom . import _datasets")
    assert list(private_imports(layer)) == ["tff_mf._builtin"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tempfile.tempdir = None", ["tempfile.tempdir"]),
        ("def f():\n    tempfile.tempdir: str = ''", ["tempfile.tempdir"]),
        ("print(tempfile.tempdir)", []),
        ("@atexit.register\ndef f(): ...", ["atexit"]),
        ("atexit.register(print)", ["atexit"]),
        ("class A:\n    atexit.register(print)", ["atexit"]),
        ("def f():\n    atexit.register(print)", []),
    ],
)
def test_hidden_strings_are_seen(text, expected):
    assert list(hidden_strings(ast.parse(text))) == expected
