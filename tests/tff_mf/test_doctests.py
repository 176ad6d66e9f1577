"""Runs the examples in the docstrings of tff_mf. Modules that need TensorFlow have tests of their own."""

import doctest
import importlib
import pathlib

import pytest

import tff_mf

PACKAGE = pathlib.Path(tff_mf.__file__).parent
ELSEWHERE = ("noise/tensorflow", "queries", "frameworks/keras", "aggregators", "experiments")
MODULES = [
    ".".join(["tff_mf", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for file in sorted(PACKAGE.rglob("*.py"))
    if not file.relative_to(PACKAGE).as_posix().startswith(ELSEWHERE)
]


# In an environment of their own: the package and its oldest release.
FRAMEWORKS = {
    "tff_mf.noise.jax": ("jax", "0.10"),
    "tff_mf.noise._jax_normals": ("jax", "0.10"),
    "tff_mf.frameworks.optax": ("optax", None),
    "tff_mf.noise.torch": ("torch", None),
    "tff_mf.frameworks.torch": ("torch", None),
}


def needed(name):
    """The package of a framework that a module needs, with its oldest release, in a list; or none."""
    return [package for module, package in FRAMEWORKS.items() if f"{name}.".startswith(f"{module}.")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if needed(name) else [pytest.mark.once]) for name in MODULES]
)
def test_examples(name):
    for package, oldest in needed(name):
        pytest.importorskip(package, minversion=oldest)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_function_has_an_example():
    functions = [name for name, value in vars(tff_mf).items() if callable(value) and name[0].islower()]
    assert [name for name in functions if ">>>" not in getattr(tff_mf, name).__doc__] == []
