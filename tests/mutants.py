"""Changes the code in one place at a time, and counts which changes the tests find.

    python tests/mutants.py --mutants 60 --out build/mutants.json

Each mutant is drawn with a fixed seed, and runs the tests of PACKAGES until one fails. A file of `--before` spares
time: the test that found a mutant then runs first.
"""

import argparse
import ast
import copy
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
LAYERS = "tff_mf", "aggregators", "experiments"
SECONDS = 600

# Of each package: which share of all mutants, and the tests that reach it, most telling first.
PACKAGES = {
    "tff_mf/sensitivities": (
        4,
        "test_sensitivity test_tree test_registry test_dense",
    ),
    "tff_mf/mechanisms": (
        6,
        "test_noise_laws test_blt test_banded_inverse test_tree test_dense test_grid_charges "
        "test_registry test_adding_a_mechanism test_artifacts",
    ),
    "tff_mf/noise/numpy": (2, "test_noise_in_numpy test_noise_laws test_same_integers"),
    "tff_mf/noise/_keyed.py": (1, "test_noise_laws test_noise_in_numpy test_registry"),
    "tff_mf/accounting": (
        8,
        "test_b_min_sep test_balls_in_bins "
        "test_amplification test_grid_amplification test_guarantees test_one_question "
        "test_grid_charges",
    ),
    "tff_mf/optimize": (3, "test_optimize_blt test_optimize_banded test_optimize_dense test_optimize_amplified"),
    "tff_mf/problem": (
        3,
        "test_participation test_cohorts test_losses test_sensitivity test_grid_charges",
    ),
    "tff_mf/numerics": (3, "test_guarantees test_normals test_composed_losses"),
    "tff_mf/planning": (3, "test_planning test_one_question"),
    "tff_mf/base": (1, "test_files test_artifacts test_participation"),
    "tff_mf/artifacts.py": (2, "test_artifacts test_registry"),
}

FLIPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor"}


class Mutator(ast.NodeTransformer):
    """Numbers the places of a module that can change, and changes the one of number `place`."""

    def __init__(self, place=None):
        self.place, self.places, self.found = place, 0, None

    def changes(self, node, words):
        self.places += 1
        if self.places - 1 != self.place:
            return False
        self.found = {"line": node.lineno, "change": words, "code": ast.unparse(node).splitlines()[0][:100]}
        return True

    def generic_visit(self, node):
        # Words of errors, and types, change nothing that is computed.
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arg | ast.Import | ast.ImportFrom):
            return node
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise) and self.changes(node, "no refusal"):
            return ast.copy_location(ast.If(test=node.test, body=[ast.Pass()], orelse=node.orelse), node)
        if isinstance(node, ast.UnaryOp) and self.changes(node, "without its sign"):
            return node.operand
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and self.changes(node, "constant"):
            return ast.copy_location(ast.Constant(node.value + 1 if type(node.value) is int else node.value * 2), node)
        operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
        if type(operator) in FLIPPED and self.changes(node, f"{type(operator).__name__} is another operator"):
            operator = FLIPPED[type(operator)]()
            node.__dict__.update({"ops": [operator]} if isinstance(node, ast.Compare) else {"op": operator})
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            field = "id" if isinstance(node, ast.Name) else "attr"
            if (name := getattr(node, field)) in SWAPPED and self.changes(node, "the other bound"):
                setattr(node, field, SWAPPED[name])
        return super().generic_visit(node)


def mutated(source, place):
    """The source with one change, and what it is."""
    mutator = Mutator(place)
    tree = mutator.visit(copy.deepcopy(ast.parse(source)))
    return ast.unparse(ast.fix_missing_locations(tree)), mutator.found


def draw(count, seed, packages):
    """Mutants as (package, path, place), of each package as many as its share."""
    generator = random.Random(seed)
    shares = sum(PACKAGES[each][0] for each in packages)
    for package in packages:
        top = ROOT / package
        places = []
        for path in [top] if top.is_file() else sorted(top.rglob("*.py")):
            counter = Mutator()
            counter.visit(ast.parse(path.read_text()))
            places += [(package, str(path.relative_to(ROOT)), place) for place in range(counter.places)]
        wanted = round(count * PACKAGES[package][0] / shares)
        yield from generator.sample(places, min(wanted, len(places)))


def failed(tree, tests):
    """The first of the tests that fails in a copy of the tree, or `None`."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-c", "../pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command += ["--rootdir=..", "-rfE", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree / "tests", env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return None
    lines = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if lines else f"pytest ended with {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--package", choices=PACKAGES, action="append")
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    before = {}
    if options.before:
        before = {(each["path"], each["place"]): each["found_by"] for each in json.loads(options.before.read_text())}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        for name in (*LAYERS, "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, tree)
        for package, path, place in draw(options.mutants, options.seed, options.package or list(PACKAGES)):
            source = (ROOT / path).read_text()
            code, found = mutated(source, place)
            (tree / path).write_text(code)
            tests = [f"tff_mf/{name}.py" for name in PACKAGES[package][1].split()]
            known = before.get((path, place))
            found_by = (known and "::" in known and failed(tree, [known.removeprefix("tests/")])) or failed(tree, tests)
            (tree / path).write_text(source)
            results.append({"path": path, "place": place, **found, "found_by": found_by})
            print(path, found, found_by or "SURVIVED", flush=True)
            options.out.write_text(json.dumps(results, indent=1))
    print(f"{sum(each['found_by'] is not None for each in results)} of {len(results)} mutants were found")


if __name__ == "__main__":
    main()
