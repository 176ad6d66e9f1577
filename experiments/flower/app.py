"""A Flower app to begin with: next-word prediction on docstrings, and the files of its deployment."""

import importlib.resources
import json
import pathlib
import re
from collections.abc import Mapping

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..output import files
from .settings import settings_of

# PyTorch's files replace NumPy's files of the same name.
_TEMPLATES = {"numpy": ("template",), "torch": ("template", "template_torch")}
_NEEDED = {"numpy": "", "torch": ', "torch>=2"'}
_PROJECT, _FLOWER = "pyproject.toml", '"flwr>=1.41,<1.43"'
# Nodes have no tff-mf: what they need of it is part of the app.
_FOR_NODES, _PACKAGE = ("clipping.py", "mods.py"), "next_word"


def write(
    folder: pathlib.Path | str, *, of: pathlib.Path | str | None = None, framework: str = "numpy"
) -> list[pathlib.Path]:
    """Writes the app to a folder, and returns its files.

    Args:
        folder: A folder that does not exist, or is empty.
        of: Folder of a run or of a bundle, whose deployment the app then has: see `settings_of`. Model and
            data stay the app's own.
        framework: "numpy" or "torch": what the model is written in.

    Raises:
        InputValueError: If it has files, the framework is another one, or the run has what is not supported on Flower.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     sorted(path.name for path in write(out) if path.suffix == ".toml")
        ['pyproject.toml']
    """
    validation.one_of("framework", framework, tuple(_TEMPLATES))
    folder = pathlib.Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputValueError(f"folder={str(folder)!r} is not empty: name another one.")
    settings = {} if of is None else settings_of(pathlib.Path(of))
    root = importlib.resources.files("tff_mf.experiments.flower")
    with importlib.resources.as_file(root) as package:
        targets = {}
        for template in (package / name for name in _TEMPLATES[framework]):
            found = [each for each in template.rglob("*") if each.is_file() and each.suffix != ".pyc"]
            targets |= {folder / each.relative_to(template): each for each in found}
        targets |= {folder / _PACKAGE / name: package / name for name in _FOR_NODES}
        for target, path in sorted(targets.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            files.write_atomically(target, _configured(text, settings, framework) if path.name == _PROJECT else text)
    return sorted(targets)


def _configured(project: str, settings: Mapping[str, str | int | float], framework: str) -> str:
    """Returns the text of an app's `pyproject.toml` with what it needs, and other values in its configuration."""
    project = project.replace(_FLOWER, _FLOWER + _NEEDED[framework])
    for name, value in settings.items():
        # JSON writes numbers and texts as TOML does, except for its surrogates, and DEL.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        line = f"{name} = {text}"
        project, found = re.subn(rf"(?m)^{name} = .*$", lambda match, line=line: line, project)
        assert found == 1, name
    return project
