"""The folder of a run, the versions that wrote it, and whether a resumed run is the same."""

import filecmp
import importlib.metadata
import os
import pathlib
import platform
import re
import tomllib

import tff_mf
from tff_mf.base.errors import InputValueError

from ..output import files
from ._ledger_lines import read_ledger
from .names import (
    CHECKPOINTED_RUN,
    CHECKPOINTS,
    COHORTS,
    LEDGER,
    MECHANISM,
    PARTICIPATION,
    REPORT,
    REPORT_TEXT,
    RUN_JSON,
    SETTINGS_TOML,
    SUMMARY,
)

_PACKAGES = (
    "tensorflow",
    "tensorflow-federated",
    "tensorflow-privacy",
    "dp-accounting",
    "numpy",
    "scipy",
)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version(), "tff-mf": tff_mf.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


FIELD = "initial_model"
# The data set of a run whose settings name none.
DEFAULT_DATASET = "pydoc"

SQLITE = "sqlite:"
# Files of the cache, by which `tff-mf compare` names the data sets of its runs.
_CACHED = {
    "pydoc": re.compile(r"pydoc-[0-9a-f]{16}\.sqlite"),
    "stackoverflow": re.compile(r"stackoverflow\.sqlite"),
    "synthetic": re.compile(r"synthetic-stackoverflow\.json"),
}
EMBEDDED = tuple(_CACHED)


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
    files = [pathlib.Path(each.removeprefix(SQLITE)) for each in (earlier, dataset)]
    if os.path.realpath(files[0]) == os.path.realpath(files[1]):
        return True
    if not all(each.is_file() for each in files):
        return files[0].name == files[1].name
    return filecmp.cmp(*files, shallow=False)


def _embedded(dataset: str) -> str:
    """Returns the name of a data set that has one, also if it is given by its file in the cache; or an empty text."""
    name = os.path.basename(dataset.removeprefix(SQLITE))
    return next((known for known, file in _CACHED.items() if dataset == known or file.fullmatch(name)), "")


_WRITTEN_LAST = (SUMMARY, REPORT, REPORT_TEXT)
_COMPARISON = ".comparison"


def readable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns a path if it is a folder that can be read.

    Raises:
        InputValueError: If it is not.
    """
    try:
        if path.is_dir():
            _check_entries(path)
            return path
        there = os.path.lexists(path)
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    what = f"is a file: name the folder of the run, which holds {RUN_JSON}" if there else "does not exist"
    raise InputValueError(f"run={str(path)!r} {what}{'' if there else ': name the folder of a run'}.")


def _check_entries(path: pathlib.Path) -> None:
    """Raises if a folder holds a pipe or a device: to read one may never end."""
    for each in path.iterdir():
        if each.exists() and not each.is_file() and not each.is_dir():
            raise InputValueError(f"run={str(path)!r} holds {each.name!r}, which is no file and no folder: remove it.")


def check_new(path: pathlib.Path) -> pathlib.Path:
    """Returns a folder if it is empty: the files of an earlier run are never overwritten.

    Raises:
        InputValueError: If it is not empty.
    """
    if not all(map(files.is_lock, path.iterdir())):
        raise InputValueError(f"out={str(path)!r} is not empty: name another folder, or remove it.")
    return path


def resumable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run that was interrupted; of one that has ended, the secret of its cohorts is deleted.

    Raises:
        InputValueError: If the folder does not exist, or its run has ended or has no checkpoints.
    """
    if not path.is_dir():
        raise InputValueError(f"out={str(path)!r} has no run to resume: start the run without --resume.")
    # A run may have been stopped after its last round, before all files were written and its keys were deleted.
    if _has_ended(path) and not any(path.glob(f"{CHECKPOINTS}/checkpoint_*")):
        secret = path / CHECKPOINTS / COHORTS
        if secret.exists():
            # It is deleted after the checkpoints, which cannot be continued without it.
            with files.alone(path):
                secret.unlink(missing_ok=True)
        raise InputValueError(f"out={str(path)!r} holds a run that has ended: there is nothing to resume.")
    if (path / PARTICIPATION).is_file() and not (path / CHECKPOINTED_RUN).is_file():
        raise InputValueError(
            f"out={str(path)!r} holds a run without checkpoints, which cannot be resumed: start another run."
        )
    files.make_writable(path)
    return path


def _has_ended(path: pathlib.Path) -> bool:
    """Returns whether a run has ended, by its last files or, where one was removed since, by its ledger."""
    if all((path / name).is_file() for name in _WRITTEN_LAST):
        return True
    return (path / LEDGER).is_file() and read_ledger(path / LEDGER).ended


def keep_mechanism(folder: pathlib.Path, mechanism: tff_mf.Mechanism) -> None:
    """Saves the mechanism of a run in its folder."""
    tff_mf.save(mechanism, folder / MECHANISM)


def begun_mechanism(folder: pathlib.Path) -> tff_mf.Mechanism | None:
    """Returns the mechanism of the run in a folder, `None` if the run was stopped before it was saved."""
    path = folder / MECHANISM
    return tff_mf.load(path) if path.is_file() else None


def replaceable_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a demo and returns it; it may hold an earlier demo.

    Raises:
        InputValueError: If it cannot be made, or holds anything but a demo.
    """
    if path.is_dir() and any(path.iterdir()) and not (path / SUMMARY).is_file():
        raise InputValueError(f"out={str(path)!r} holds files of something else than a demo: name another folder.")
    files.make_writable(path)
    return path


def continued_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a comparison and returns it; it may hold a comparison that was begun.

    Raises:
        InputValueError: If it cannot be made, or holds anything but a comparison.
    """
    begun = path / _COMPARISON
    if path.is_dir() and any(path.iterdir()) and not begun.is_file():
        raise InputValueError(
            f"out={str(path)!r} holds files of something else than a comparison: name another folder."
        )
    files.make_writable(path)
    begun.touch()
    return path
