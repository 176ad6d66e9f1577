"""Finds the files that killed processes left unfinished in the folder of a run."""

import pathlib

from tff_mf import files

from ._findings import WARNING, Finding


def left_behind(folder: pathlib.Path) -> list[Finding]:
    """Returns a finding if a process was killed while it wrote a file: unfinished checkpoints have keys too."""
    found = sorted(str(path.relative_to(folder)) for path in files.unfinished(folder, subfolders=True))
    if not found:
        return []
    text = (
        f"a killed process left {', '.join(found)}, which may have keys of the noise: delete it, or resume the run, "
        "which deletes it"
    )
    return [Finding(severity=WARNING, field="files", text=text)]
