"""Where a comparison keeps its runs and its results."""

import dataclasses
import pathlib

from ..run_folder.names import METRICS, SUMMARY

RESULT, TABLE = "comparison.json", "comparison.md"
_FOLDERS = ("runs", "configurations", "mechanisms", "logs")


@dataclasses.dataclass(frozen=True)
class Places:
    """Paths in the folder of a comparison.

    Attributes:
        out: The folder.
    """

    out: pathlib.Path

    def make(self) -> None:
        """Makes the folders that are missing."""
        for name in _FOLDERS:
            (self.out / name).mkdir(exist_ok=True)

    @property
    def lock(self) -> pathlib.Path:
        """Held while a comparison works in the folder."""
        return self.out / ".lock"

    @property
    def mechanisms(self) -> pathlib.Path:
        """Folder of the artifacts."""
        return self.out / "mechanisms"

    def run(self, name: str) -> pathlib.Path:
        """Returns the folder of a run."""
        return self.out / "runs" / name

    def run_lock(self, name: str) -> pathlib.Path:
        """Returns the lock that the process of a run holds."""
        return self.out / "runs" / f".{name}.lock"

    def summary(self, name: str) -> pathlib.Path:
        """Returns the summary of a run, which is there once the run is done."""
        return self.run(name) / SUMMARY

    def metrics(self, name: str) -> pathlib.Path:
        """Returns the metrics of a run."""
        return self.run(name) / METRICS

    def configuration(self, name: str) -> pathlib.Path:
        """Returns the settings of a run."""
        return self.out / "configurations" / f"{name}.toml"

    def log(self, name: str) -> pathlib.Path:
        """Returns the file of what a run prints."""
        return self.out / "logs" / f"{name}.txt"
