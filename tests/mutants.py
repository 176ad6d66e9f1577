"""Changes the trusted base in one place at a time, and counts which changes the tests find.

    .venv-core/bin/python -m pip install coverage
    .venv-core/bin/python tests/mutants.py --mutants 60 --out build/mutants.json

docs/trusted-base.md leads through the modules. Mutants are drawn with a fixed seed, all places of these modules alike:
in the environment with TensorFlow of those that need it, in the other of the others. All tests run once, unchanged, and
then, for each mutant, those that ran its line, quickest first. `--only` and `--tests` choose a module and tests, and
`--tree` another checkout.
"""

import argparse
import ast
import contextlib
import copy
import importlib.util
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NEED_TENSORFLOW = ("noise/tensorflow/", "queries/", "aggregators/")
# In an environment without TensorFlow, and in one with it.
TESTS = ("tff_mf",), ("tff_mf", "aggregators")
# These tests run commands in processes of their own, in the environment's installation, which has no change.
ELSEWHERE = "test_missing_packages"
# What the tests import from others, once for all mutants, each of which is tried in a fork.
PRELOADED = (
    *("hypothesis.strategies", "numpy.testing", "mpmath", "msgspec", "safetensors.numpy"),
    *("scipy.optimize", "scipy.stats", "scipy.signal", "scipy.integrate", "dp_accounting.rdp"),
    *("dp_accounting.pld.privacy_loss_distribution", "tensorflow_federated", "tensorflow_privacy"),
)
# Seconds of all tests, of the longest that tries a mutant, and of a mutant; its bytes. What hangs or eats all memory is
# found.
FIRST, LONGEST, LIMIT, MEMORY = 3600, 20, 600, 16 << 30
PASSED = "passed"
PYTEST = ["-q", "-n", "0", "-p", "no:cacheprovider", "-c", "../pyproject.toml", "--rootdir=.."]

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
            return ast.copy_location(
                ast.Constant(node.value * 2 if node.value and type(node.value) is float else node.value + 1), node
            )
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


def modules_of(page):
    """The modules that the page leads through."""
    return [
        name for name in dict.fromkeys(re.findall(r"`([a-z_]+/[\w/]+\.py)`", page)) if not name.startswith("tests/")
    ]


def path_of(name):
    return pathlib.Path(name) if name.startswith("aggregators/") else pathlib.Path("tff_mf", name)


def drawn(tree, names, count, seed):
    """Mutants as (module, file, place)."""
    places = []
    for name in names:
        counter = Mutator()
        counter.visit(ast.parse((tree / path_of(name)).read_text()))
        places += [(name, path_of(name), place) for place in range(counter.places)]
    return random.Random(seed).sample(places, min(count, len(places)))


class Failing:
    """A pytest plugin that writes the names of tests that fail."""

    def __init__(self, file):
        self.file = file

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(report.nodeid, file=self.file, flush=True)

    pytest_collectreport = pytest_runtest_logreport


class Lines:
    """A pytest plugin that writes, at the end, which tests ran each line of a file, quickest first.

    Without those that take too long, or fail without a change.
    """

    def __init__(self, file):
        import coverage

        self.file, self.seconds, self.failed = file, {}, set()
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=["*/tff_mf/*", "*/aggregators/*"])

    def pytest_sessionstart(self):
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.coverage.switch_context(item.nodeid)
        start = time.monotonic()
        result = yield
        self.seconds[item.nodeid] = time.monotonic() - start
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        self.coverage.stop()
        quickest = sorted(self.seconds, key=self.seconds.get)
        quickest = [test for test in quickest if self.seconds[test] < LONGEST and test not in self.failed]
        data, found = self.coverage.get_data(), {}
        for file in data.measured_files():
            ran = data.contexts_by_lineno(file)
            found[file] = {line: [test for test in quickest if test in tests] for line, tests in ran.items()}
        print(json.dumps({"lines": found, "failed": sorted(self.failed)}), file=self.file)


def tests_of(lines, source, line):
    """The tests that ran the innermost statement of a line; of one that only imports run, all tests of the module."""
    spans = [
        (node.lineno, node.body[0].lineno - 1 if getattr(node, "body", None) else node.end_lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
    ]
    first, last = min((span for span in spans if span[0] <= line <= span[1]), key=lambda span: span[1] - span[0])
    of_line = [test for number in range(first, last + 1) for test in lines.get(str(number), ())]
    found = dict.fromkeys(of_line or [test for tests in lines.values() for test in tests])
    return [test.removeprefix("tests/") for test in found]


def forked(tree, tests, plugin, *more, limit):
    """What a plugin writes while these tests run in a fork, and how pytest ended, if not by then."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            with os.fdopen(write, "w") as file:
                print(run(tree, tests, plugin(file), *more), file=file)
        os._exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(limit)
    with os.fdopen(read) as stream:
        written = stream.read().splitlines()
    signal.alarm(0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return written


def failures(tree, tests):
    """The first test that fails, of these; none if all pass."""
    *failing, end = forked(tree, tests, Failing, "-x", limit=LIMIT) or [""]
    return failing or ([] if end == PASSED else [end or "out of time, or died"])


def run(tree, tests, plugin, *more):
    """What pytest ended with, `PASSED` or a number."""
    os.chdir(tree / "tests")
    sys.path.insert(0, str(tree))
    # The packages of an editable installation lie beside each other.
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            module.MAPPING = {package: str(tree / pathlib.Path(path).name) for package, path in module.MAPPING.items()}
    status = pytest.main([*PYTEST, *more, *tests], plugins=[plugin])
    return f"pytest ended with {status}" if status else PASSED


def copied(tree, folder):
    """A copy of what git tracks, as it is on disk."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / name, folder / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=lambda text: pathlib.Path(text).resolve(), default=ROOT)
    parser.add_argument("--out", type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--only", default="", help="a part of the names of modules")
    parser.add_argument("--tests", nargs="+", help="files or folders in the folder of tests")
    options = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"):
        os.environ[name] = "1"
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    page = (options.tree / "docs" / "trusted-base.md").read_text(encoding="utf-8")
    names = [
        name for name in modules_of(page) if name.startswith(NEED_TENSORFLOW) == has_tensorflow and options.only in name
    ]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder).resolve()
        copied(options.tree, tree)
        tests = options.tests or TESTS[has_tensorflow]
        written = forked(tree, tests, Lines, "-k", f"not {ELSEWHERE}", limit=FIRST)
        if len(written) < 2:
            raise SystemExit(f"The tests {tests} did not run: is coverage installed?")
        ran = json.loads(written[0])
        print("Fail without a change:", *ran["failed"])
        for name, path, place in drawn(tree, names, options.mutants, options.seed):
            source = (tree / path).read_text()
            code, change = mutated(source, place)
            chosen = tests_of(ran["lines"].get(str(tree / path), {}), source, change["line"])
            (tree / path).write_text(code)
            start = time.monotonic()
            found_by = (failures(tree, chosen) or [None])[0] if chosen else None
            (tree / path).write_text(source)
            seconds = round(time.monotonic() - start, 1)
            results.append({"module": name, "place": place, **change, "seconds": seconds, "found_by": found_by})
            print(name, change, found_by or "SURVIVED", flush=True)
            options.out.write_text(json.dumps(results, indent=1))
    print(f"{sum(each['found_by'] is not None for each in results)} of {len(results)} mutants were found")


if __name__ == "__main__":
    main()
