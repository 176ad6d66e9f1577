"""The trusted base: an ε is wrong only if a module of this list is wrong. It imports nothing else of this package.

C as it runs, its sensitivity, accounting, clipping, grids, keys and streams of noise, and who takes part. The ledger of
a run belongs to it too, and will when it writes its file without the rest of `experiments`. NumPy's, JAX's and
PyTorch's streams give the integers of TensorFlow's, as `tests/tff_mf/test_same_integers.py` checks.
"""

import ast
import pathlib
import re
import sys

import pytest

from .test_architecture import FILES, ROOT, belongs, imported

BASE = (
    *("tff_mf.mechanisms", "tff_mf.problem", "tff_mf.accounting"),
    *(f"tff_mf.sensitivities.{name}" for name in ("_api", "general", "restarts", "scaled_columns", "sums", "toeplitz")),
    "tff_mf.sensitivities.tree_nodes",
    *("tff_mf.numerics.gaussian", "tff_mf.numerics.composed_losses", "tff_mf.numerics.normals"),
    *("tff_mf.noise._keyed", "tff_mf.noise.tensorflow", "tff_mf.queries"),
    *("tff_mf.aggregators.record_sums", "tff_mf.aggregators.resident.tff_insides"),
    *(f"tff_mf.base.{name}" for name in ("errors", "files", "in_order", "matrices", "required_packages", "validation")),
)
# What a run with a BLT, min-sep, a grid and TensorFlow does not need: other mechanisms, restarts, searches, and random
# cohorts.
OTHERS = (
    *(f"tff_mf.accounting.{name}" for name in ("_bins_moments", "b_min_sep", "balls_in_bins", "betting")),
    *(f"tff_mf.accounting.{name}" for name in ("entries", "poisson", "search", "secret")),
    *("tff_mf.numerics.composed_losses", "tff_mf.problem.draws", "tff_mf.problem.cohort_secret"),
    *("tff_mf.queries.adaptive_clipping",),
    *(f"tff_mf.mechanisms.{name}" for name in ("banded", "dense", "identity", "low_rank", "tree")),
    *(f"tff_mf.sensitivities.{name}" for name in ("general", "restarts", "scaled_columns", "tree_nodes")),
)
ALLOWED = {"numpy", "scipy", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "dp_accounting", "msgspec"}
# Code lines, without docstrings, comments and blank lines; the goals are 6,000 and 3,500.
MOST, MOST_OF_DEFAULT = 6_300, 3_850


def modules():
    """Yields the name and the file of every module of the base."""
    yield from ((name, path) for path, name in FILES.items() if belongs(name, BASE))


def code_lines(path: pathlib.Path) -> int:
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
    skipped = {line for node in nodes for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in skipped for number, line in lines)


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_base_imports_nothing_outside_of_itself(name, path):
    for other in imported(path):
        top = other.split(".")[0]
        known = belongs(other, BASE) or top in ALLOWED or top in sys.stdlib_module_names
        assert known, f"{name} imports {other}"


def test_the_base_can_be_read():
    sizes = {name: code_lines(path) for name, path in modules()}
    assert set(OTHERS) <= set(sizes)
    default = {name: size for name, size in sizes.items() if not belongs(name, OTHERS)}
    assert sum(sizes.values()) <= MOST
    assert sum(default.values()) <= MOST_OF_DEFAULT


def test_the_page_leads_through_every_file_of_the_base():
    page = (ROOT / "docs" / "trusted-base.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([a-z_/]+\.py)`", page) if "/" in name and not name.startswith("tests/")}
    of_base = {str(path.relative_to(ROOT)).removeprefix("tff_mf/") for _, path in modules() if code_lines(path)}
    assert named == {name for name in of_base if not name.endswith("__init__.py")}
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"`(test_[a-z_]+\.py)`", page)) <= tests
