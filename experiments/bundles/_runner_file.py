"""Joins the modules of the runner to the one Python file that every bundle carries."""

import ast
import pathlib
import sys
from collections.abc import Iterable

from . import runner

# In the order of the file: each module uses names of those before it only.
_MODULES = (
    *("_errors", "_names", "_files", "_safetensors", "_updates", "_stages", "_states", "_journal", "_round_sum"),
    *("_participation", "_times", "_deployment", "_bundle_files", "_opening"),
)
_MAIN = "__main__"


def runner_file() -> str:
    """Returns the runner as one file, which needs the standard library, NumPy and TensorFlow alone.

    The file begins as `__main__` does, up to and including its check of Python's path: no other import may come before
    that check. Then come the imports of all modules, sorted; each module without its imports, under a comment with its
    name and docstring; and the rest of `__main__`. Equal sources give equal text.
    """
    modules = [_Module(name) for name in _MODULES]
    main = _Module(_MAIN)
    check = next(each for each in main.statements if isinstance(each, ast.If))
    head = main.text(0, check.end_lineno)
    imports = [each for each in main.imports if each.lineno > check.lineno]
    for module in modules:
        imports += module.imports
    parts = [
        f"# Part {number} of {len(modules)}: {module.title}\n\n\n{module.body}"
        for number, module in enumerate(modules, 1)
    ]
    return f"{head}\n\n{_merged(imports)}\n\n" + "\n\n\n".join([*parts, main.body]) + "\n"


class _Module:
    """The source of one module of the runner: a docstring, imports, and definitions."""

    def __init__(self, name: str) -> None:
        source = (pathlib.Path(runner.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
        self.name, self._lines, self.statements = name, source.splitlines(), tree.body
        self._docstring = ast.get_docstring(tree) or ""
        self.imports = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]

    @property
    def title(self) -> str:
        return "\n# ".join([f"{self.name.removeprefix('_')}.", *self._docstring.splitlines()])

    @property
    def body(self) -> str:
        return self.text((self.imports or self.statements)[-1 if self.imports else 0].end_lineno)

    def text(self, after: int | None, to: int | None = None) -> str:
        return "\n".join(self._lines[after:to]).strip()


def _merged(statements: Iterable[ast.Import | ast.ImportFrom]) -> str:
    """Returns the imports that are not of this package, sorted as ruff sorts them: each once, NumPy last."""
    modules: set[tuple[str, str | None]] = set()
    names: dict[str, set[str]] = {}
    for each in statements:
        if isinstance(each, ast.Import):
            modules |= {(alias.name, alias.asname) for alias in each.names}
        elif not each.level:
            names.setdefault(str(each.module), set()).update(alias.name for alias in each.names)
    plain = {name: f"import {name}" + (f" as {other}" if other else "") for name, other in modules}
    standard = [text for name, text in sorted(plain.items()) if name in sys.stdlib_module_names]
    standard += [f"from {name} import {', '.join(sorted(found))}" for name, found in sorted(names.items())]
    others = [text for name, text in sorted(plain.items()) if name not in sys.stdlib_module_names]
    return "\n".join([*standard, "", *others])
