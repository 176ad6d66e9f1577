"""The runner's modules are joined to one file that does the same, and that can be read."""

import ast
import collections
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tff_mf.experiments.bundles import _runner_file, runner

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(runner.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def _statements(name):
    return ast.parse((FOLDER / f"{name}.py").read_text()).body


def _is_import(statement):
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _defined(statement):
    """Names that a statement of a module defines, imports aside."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    stored = (each for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return [each.id for each in stored if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)]


@pytest.fixture(scope="module")
def joined():
    return _runner_file.runner_file()


def test_every_module_is_joined():
    assert sorted([*_runner_file._MODULES, _runner_file._MAIN]) == MODULES


def test_no_two_modules_define_one_name():
    homes = collections.defaultdict(set)
    for name in MODULES:
        for statement in _statements(name):
            for each in _defined(statement):
                homes[each].add(name)
            if _is_import(statement) and not getattr(statement, "level", 0):
                for alias in statement.names:
                    homes[alias.asname or alias.name].add("an import")
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_modules_import_each_other_by_name_from_those_before_them():
    order = [*_runner_file._MODULES, _runner_file._MAIN]
    for place, name in enumerate(order):
        for statement in _statements(name):
            if isinstance(statement, ast.ImportFrom) and statement.level:
                assert statement.level == 1
                assert statement.module in order[:place]
                assert all(alias.asname is None for alias in statement.names)


def test_nothing_but_the_standard_library_numpy_and_tensorflow_is_imported(joined):
    found = {each.module for each in ast.walk(ast.parse(joined)) if isinstance(each, ast.ImportFrom)}
    found |= {
        alias.name for each in ast.walk(ast.parse(joined)) if isinstance(each, ast.Import) for alias in each.names
    }
    assert {name.split(".")[0] for name in found} - sys.stdlib_module_names == {"numpy", "tensorflow"}


def test_the_file_has_every_statement_of_the_modules_once(joined):
    """Two ways to one list of statements: by the file, and by the modules."""
    expected = [
        ast.dump(each) for name in _runner_file._MODULES for each in _statements(name)[1:] if not _is_import(each)
    ]
    first, *main = [ast.dump(each) for each in _statements(_runner_file._MAIN) if not _is_import(each)]
    found = [ast.dump(each) for each in ast.parse(joined).body if not _is_import(each)]
    assert found == [first, main[0], *expected, *main[1:]]


def test_its_path_is_checked_before_anything_else_is_imported(joined):
    docstring, first, check, *_ = ast.parse(joined).body
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(first) == "import sys"
    assert ast.unparse(check) == "if __name__ == '__main__' and (not sys.flags.safe_path):\n    del sys.path[0]"


def test_the_file_has_the_names_of_the_package(joined):
    module = types.ModuleType("joined")
    exec(compile(joined, "joined", "exec"), module.__dict__)
    public = {name for name, value in vars(runner).items() if not name.startswith("_")}
    assert {name for name in public if not hasattr(module, name)} == set()
    assert callable(module.main)


def test_every_process_joins_the_same_bytes(joined):
    program = (
        "import sys; from tff_mf.experiments.bundles import _runner_file; sys.stdout.write(_runner_file.runner_file())"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == joined


def test_the_file_is_formatted(joined, tmp_path):
    pytest.importorskip("ruff")
    path = tmp_path / "runner.py"
    path.write_text(joined)
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
