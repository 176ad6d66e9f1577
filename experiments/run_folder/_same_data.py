"""Whether a model was trained on a data set, as far as the settings of its run, and of the runs before, tell."""

import filecmp
import os
import pathlib
import re
import tomllib

from .names import SETTINGS_TOML

FIELD = "initial_model"
# The data set of a run whose settings name none.
DEFAULT_DATASET = "pydoc"

_SQLITE = "sqlite:"
# Files of the cache, by which `tff-mf compare` names the data sets of its runs.
_CACHED = {
    "pydoc": re.compile(r"pydoc-[0-9a-f]{16}\.sqlite"),
    "stackoverflow": re.compile(r"stackoverflow\.sqlite"),
    "synthetic": re.compile(r"synthetic-stackoverflow\.json"),
}


def trained_on(model: pathlib.Path, dataset: str) -> bool:
    """Returns whether a model is from a run on a data set, or from one that started from the model of such a run.

    Formal guarantee: if the settings are beside the model, or beside the file that it is a link to, and can be read, a
    data set is known by its name, by the file of the cache, and by any path to its file or to a copy of it. What cannot
    be compared is taken to be the same: settings that cannot be read, an earlier model that is gone, and a file that is
    gone and has the same name. A model without settings is taken for one that is public.

    Args:
        model: The file of the model.
        dataset: The data set, as the settings of a run name it.
    """
    return any(_of_run(folder, dataset, frozenset()) for folder in _folders(model))


def _folders(model: pathlib.Path) -> set[pathlib.Path]:
    """Returns the folders of a model and of the file that it is a link to."""
    return {
        pathlib.Path(os.path.realpath(each)) for each in (model.parent, pathlib.Path(os.path.realpath(model)).parent)
    }


def _of_run(folder: pathlib.Path, dataset: str, seen: frozenset[pathlib.Path]) -> bool:
    settings = folder / SETTINGS_TOML
    if not settings.is_file() or folder in seen:
        return False
    try:
        run = tomllib.loads(settings.read_text(encoding="utf-8")).get("run", {})
        if _is_same(run.get("dataset", DEFAULT_DATASET), dataset):
            return True
        if run.get(FIELD) is None:
            return False
        before = pathlib.Path(run[FIELD])
        return not before.is_file() or any(_of_run(each, dataset, seen | {folder}) for each in _folders(before))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        # Nobody can tell what it was trained on: the worse case is supposed.
        return True


def _is_same(earlier: str, dataset: str) -> bool:
    names = _embedded(earlier), _embedded(dataset)
    if any(names):
        return names[0] == names[1]
    files = [pathlib.Path(each.removeprefix(_SQLITE)) for each in (earlier, dataset)]
    if os.path.realpath(files[0]) == os.path.realpath(files[1]):
        return True
    if not all(each.is_file() for each in files):
        return files[0].name == files[1].name
    return filecmp.cmp(*files, shallow=False)


def _embedded(dataset: str) -> str:
    """Returns the name of a data set that has one, also if it is given by its file in the cache; or an empty text."""
    name = os.path.basename(dataset.removeprefix(_SQLITE))
    return next((known for known, file in _CACHED.items() if dataset == known or file.fullmatch(name)), "")
