"""Finds files in the folder of a run that something else than the run has left or changed."""

import pathlib

from tff_mf import files

from ..run_folder.names import ANSWERS, METRICS, PARTICIPATION
from ._findings import WARNING, Finding

# The csv module ends lines with \r\n, all other writers of a run with \n.
_TABLES = (METRICS, PARTICIPATION)
_TEXTS = (".json", ".jsonl", ".md", ".toml")


def on_folder(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on files that a killed process left unfinished, and on line ends that a copy has changed.

    An unfinished checkpoint has keys too.
    """
    found = []
    unfinished = sorted(str(path.relative_to(folder)) for path in files.unfinished(folder, subfolders=True))
    if unfinished:
        found.append(
            f"a killed process left {', '.join(unfinished)}, which may have keys of the noise: delete it, or resume "
            "the run, which deletes it"
        )
    changed = sorted(path.name for path in folder.iterdir() if path.is_file() and _has_other_ends(path))
    if changed:
        found.append(
            f"{', '.join(changed)}: not the line ends that tff-mf writes, as after git with core.autocrlf: "
            "copy the run as it was written (git: `* -text` in .gitattributes)"
        )
    return [Finding(severity=WARNING, field="files", text=text) for text in found]


def _has_other_ends(path: pathlib.Path) -> bool:
    if path.name in _TABLES:
        return b"\n" in path.read_bytes().replace(b"\r\n", b"")
    # People write their answers with any editor.
    return path.suffix in _TEXTS and path.name != ANSWERS and b"\r\n" in path.read_bytes()
