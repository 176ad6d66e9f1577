"""Changes the code in one place at a time, and counts which changes the tests find.

    python tests/mutants.py reach --out build/reach.json
    python tests/mutants.py try --reach build/reach.json --mutants 60 --out build/mutants.json

`reach` runs the tests of the core once, and notes which of them run each line; it needs the package `coverage`. `try`
draws mutants with a fixed seed, and runs the tests that run the changed line, shortest first, until one fails. Both
take a `--tree`, an older checkout for instance, and `--shares`, which says how the mutants are spread over it.
"""

import argparse
import ast
import collections
import contextlib
import copy
import importlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
LAYERS = "tff_mf", "aggregators", "experiments"
# What the tests import from others, once for all mutants, each of which is tried in a fork.
PRELOADED = (
    "pytest",
    "hypothesis.strategies",
    "numpy.testing",
    "scipy.optimize",
    "scipy.stats",
    "scipy.signal",
    "scipy.integrate",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "mpmath",
    "msgspec",
    "safetensors.numpy",
    "rich_click",
    "tensorflow_federated",
    "tensorflow_privacy",
)
# Of the tests that run a line, those that take this many seconds together, as they were measured; and at most so long.
BUDGET, LIMIT = 60, 240
MEMORY = 16 << 30
PASSED = "passed"
PYTEST = ["-q", "-p", "no:cacheprovider", "-c", "../pyproject.toml", "--rootdir=.."]

# Of each path: its share of all mutants.
SHARES = {
    "tff_mf/sensitivities": 4,
    "tff_mf/mechanisms": 6,
    "tff_mf/noise/numpy.py": 2,
    "tff_mf/noise/_keyed.py": 1,
    "tff_mf/accounting": 8,
    "tff_mf/optimize": 3,
    "tff_mf/problem": 3,
    "tff_mf/numerics": 3,
    "tff_mf/planning": 3,
    "tff_mf/base": 1,
    "tff_mf/artifacts.py": 2,
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


def draw(tree, shares, count, seed):
    """Mutants as (share's path, path, place), of each share as many as it says, in a random order."""
    generator = random.Random(seed)
    drawn = []
    for share, weight in shares.items():
        places = []
        for path in [tree / share] if share.endswith(".py") else sorted((tree / share).rglob("*.py")):
            counter = Mutator()
            counter.visit(ast.parse(path.read_text()))
            places += [(share, str(path.relative_to(tree)), place) for place in range(counter.places)]
        wanted = round(count * weight / sum(shares.values()))
        drawn += generator.sample(places, min(wanted, len(places)))
    generator.shuffle(drawn)
    return drawn


class Reach:
    """A pytest plugin: the tests that run each line, and the seconds that each test takes."""

    def __init__(self, tree):
        import coverage
        import pytest

        self.tree, self.seconds, self.times = tree, {}, collections.Counter()
        self.measured = coverage.Coverage(source=[str(tree / name) for name in LAYERS], branch=True, data_file=None)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(item):
            self.measured.switch_context(item.nodeid)
            start = time.perf_counter()
            result = yield
            self.seconds[item.nodeid] = time.perf_counter() - start
            self.measured.switch_context("")
            return result

        self.pytest_runtest_protocol = pytest_runtest_protocol

    def written(self, out):
        """The tables as JSON: a line that runs at import alone has no test."""
        data = self.measured.get_data()
        names = {name: number for number, name in enumerate(self.seconds)}
        lines = {}
        for path in data.measured_files():
            name = str(pathlib.Path(path).relative_to(self.tree))
            lines[name] = {
                line: sorted(names[each] for each in contexts if each in names)
                for line, contexts in data.contexts_by_lineno(path).items()
            }
        out.write_text(json.dumps({"tests": self.seconds, "lines": lines}))


def reach(options):
    os.chdir(options.tree / "tests")
    sys.path.insert(0, str(options.tree))
    import pytest

    plugin = Reach(options.tree)
    plugin.measured.start()
    status = pytest.main([*PYTEST, *options.tests], plugins=[plugin])
    plugin.measured.stop()
    plugin.written(options.out)
    plugin.measured.report(show_missing=False)
    return status


class Chosen:
    """A pytest plugin: runs the tests of these names in their order, and writes the names of those that fail."""

    def __init__(self, names, file):
        self.order, self.file = {name: place for place, name in enumerate(names)}, file

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (each for each in items if each.nodeid in self.order), key=lambda each: self.order[each.nodeid]
        )

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(report.nodeid, file=self.file, flush=True)

    pytest_collectreport = pytest_runtest_logreport


def failures(tree, names, *, first=True, limit=LIMIT):
    """The tests that fail, or the first of them alone, run in a fork that ends after `limit` seconds."""
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
                print(run(tree, names, first, file), file=file)
        os._exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(limit)
    with os.fdopen(read) as stream:
        *failing, end = stream.read().splitlines() or [""]
    signal.alarm(0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return failing or ([] if end == PASSED else [end or "out of time, or died"])


def run(tree, names, first, file):
    """What pytest ended with, `PASSED` or a number."""
    import pytest

    os.chdir(tree / "tests")
    sys.path.insert(0, str(tree))
    # The packages of an editable installation lie beside each other.
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            module.MAPPING = {package: str(tree / pathlib.Path(path).name) for package, path in module.MAPPING.items()}
    files = dict.fromkeys(name.partition("::")[0].removeprefix("tests/") for name in names)
    status = pytest.main([*PYTEST, *["-x"] * first, *files], plugins=[Chosen(names, file)])
    return f"pytest ended with {status}" if status else PASSED


def tried(options):
    measured = json.loads(options.reach.read_text())
    names, seconds = list(measured["tests"]), list(measured["tests"].values())
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        files = subprocess.run(["git", "ls-files", "-z"], cwd=options.tree, capture_output=True, text=True, check=True)
        for name in filter(None, files.stdout.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(options.tree / name, tree / name)
        # A test that fails without a change finds none.
        failing = failures(tree, names, first=False, limit=3600)
        print("fail without a change:", failing, flush=True)
        for share, path, place in draw(options.tree, options.shares, options.mutants, options.seed):
            source = (tree / path).read_text()
            code, found = mutated(source, place)
            lines = measured["lines"].get(path, {})
            # A line that runs at import alone changes what every test of its module sees.
            reached = lines.get(str(found["line"])) or sorted(set().union(*lines.values()))
            chosen, total = [], 0
            for each in sorted(reached, key=seconds.__getitem__):
                if names[each] in failing:
                    continue
                total += seconds[each]
                if total < BUDGET or not chosen:
                    chosen.append(names[each])
            (tree / path).write_text(code)
            start = time.monotonic()
            found_by = (failures(tree, chosen)[:1] or [None])[0] if chosen else None
            (tree / path).write_text(source)
            took = round(time.monotonic() - start, 1)
            counts = {"reached": len(reached), "ran": len(chosen), "seconds": took}
            results.append({"share": share, "path": path, "place": place, **found, **counts, "found_by": found_by})
            print(path, found, counts, found_by or "SURVIVED", flush=True)
            options.out.write_text(json.dumps(results, indent=1))
    for share in options.shares:
        of_share = [each for each in results if each["share"] == share]
        print(share, sum(each["found_by"] is not None for each in of_share), "of", len(of_share))
    print(f"{sum(each['found_by'] is not None for each in results)} of {len(results)} mutants were found")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, function in (("reach", reach), ("try", tried)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--tree", type=lambda text: pathlib.Path(text).resolve(), default=ROOT)
        command.add_argument("--out", type=lambda text: pathlib.Path(text).resolve(), required=True)
    commands.choices["reach"].add_argument("--tests", nargs="+", default=["tff_mf"], help="in the folder of tests")
    command.add_argument("--reach", type=pathlib.Path, required=True)
    command.add_argument("--mutants", type=int, default=60)
    command.add_argument("--seed", type=int, default=46)
    command.add_argument("--shares", type=json.loads, default=SHARES, help="JSON: a share for each path")
    options = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"):
        os.environ[name] = "1"
    sys.exit(options.function(options))


if __name__ == "__main__":
    main()
