"""Writes a bundle: everything that a server and its devices need, and a manifest.

Two exports of one source are equal byte for byte, whenever, wherever and beside whichever other programs they run.
Therefore graphs are built in their own process, from the files that are already in the bundle: by this module as a
program.
"""

import contextlib
import importlib
import json
import logging
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any, TextIO

from tff_mf.base import validation
from tff_mf.base.errors import InputError, InputValueError

from .. import reports
from ..output import progress
from ..output.files import new_folder
from ..runs import folders as package_versions
from ..runs import statements
from ..runs.names import VOCABULARY
from . import runner
from ._device_file import write_device_policy
from ._manifest import RUNNER, file_entries, write_manifest
from ._policies import DevicePolicy, ParticipationPolicy, write_policy
from ._source import Source, deployed_again

SAMPLER = "devices with a timer and a count of rounds, checked by the server"
_LOG = logging.getLogger(__name__)
_MODULE = f"{__package__}.building"
# The order of Python's sets depends on hashes, and a GPU draws other normals than a processor.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "-1"}
_LAST_BYTES = 2000
# The modules of tff-mf that a bundle carries, each as it is, below a package of the name `runner`.
CARRIED = (
    *("base/errors.py", "base/validation.py", "base/strict_json.py"),
    *("base/files.py", "base/tensor_files.py", "base/checkpoint_files.py"),
    *("experiments/output/files.py", "experiments/runs/names.py", "experiments/runs/rules.py"),
    *("experiments/runs/_ledger_lines.py", "experiments/runs/ledger.py", "experiments/runs/participation_log.py"),
    *("experiments/runs/checkpoints.py", "experiments/runs/server_loop.py"),
)
_PACKAGE = "experiments/bundles/runner"
_TEXTS = {
    "__main__.py": "import sys\n\nimport runner\n\nsys.exit(runner.main())\n",
    "runner/__init__.py": "from .experiments.bundles.runner import *\n",
}
# The earliest that a ZIP file can hold.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def export(
    source: Source,
    out: pathlib.Path,
    *,
    round_minutes: float,
    population: int | None = None,
    task_name: str | None = None,
) -> str:
    """Writes the bundle of a deployment, or nothing if it fails, and returns its digest.

    Args:
        source: The settings of the deployment.
        out: Folder of the bundle: a new one, or an empty one.
        round_minutes: Planned duration of the longest round: the timer of a device runs for `min_sep` of them.
        population: Number of devices that can take part, if it is known, for the report.
        task_name: Name of the task in `device-policy.json`; derived from the settings if it is not given.

    Raises:
        InputValueError: If no ε can be stated for the deployment, except with an `insecure_seed`.
    """
    policy = ParticipationPolicy.of(source.privacy.participation, round_minutes=round_minutes)
    if population is not None:
        validation.whole("population", population)
    # A policy that no client can hold is refused before anything is built.
    DevicePolicy.of(policy, rounds=source.privacy.rounds, task_name="later" if task_name is None else task_name)
    with new_folder(out) as aside:
        return write(source, aside, policy, population, package_versions.versions(), task_name)


def write(
    source: Source,
    folder: pathlib.Path,
    policy: ParticipationPolicy,
    population: int | None,
    versions: Mapping[str, str],
    task_name: str | None = None,
) -> str:
    """Writes the files of a bundle to an empty folder, and returns its digest."""
    # First those that graphs are built from, and those that need no graph.
    reports.write_record(
        folder,
        source.privacy,
        sampler=SAMPLER,
        population=population,
        settings=source.asked,
        server_learning_rate=source.settings.chosen_rate(source.privacy),
        # It would name the folder that is written to.
        command=(),
        versions=dict(versions),
    )
    planned = reports.write(folder, realised=False)
    # An `insecure_seed` was asked for, and stands in every file.
    if planned["claim"]["state"] == statements.REFUSED and not source.privacy.insecure:
        raise InputValueError(f"nothing is exported: {reports.headline(planned).rstrip('.')}. Take settings with an ε.")
    write_policy(folder, policy)
    write_device_policy(folder, task_name=task_name)
    # Python runs it as one file. It is not compressed, so that its text can be read. Equal sources give equal bytes.
    with zipfile.ZipFile(folder / RUNNER, "w") as program:
        for name, text in runner_sources().items():
            program.writestr(zipfile.ZipInfo(name, _ZIP_TIME), text)
    words = json.dumps(list(source.vocabulary), ensure_ascii=False)
    (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")
    exported = graphs(folder)
    progress.step("manifest")
    content = {name: exported[name] for name in ("process", "stages", "forms", "lite", "grid")}
    content |= {
        "local_data": {name: exported[name] for name in ("batch_size", "client_epochs", "max_examples")},
        "test_only": source.privacy.insecure,
        "versions": dict(versions),
        "files": file_entries(folder),
    }
    digest = write_manifest(folder, content)
    # Only their owner may write files, whatever the umask is.
    for path in (*folder.rglob("*"), folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    progress.step()
    return digest


def runner_sources() -> dict[str, str]:
    """Returns the files of a bundle's program: modules of tff-mf, and packages that are empty but for them."""
    package = pathlib.Path(runner.__file__).parent
    found = {f"runner/{_PACKAGE}/{each.name}": each for each in package.glob("*.py")}
    for name in CARRIED:
        module = importlib.import_module(f"tff_mf.{name.removesuffix('.py').replace('/', '.')}")
        found[f"runner/{name}"] = pathlib.Path(str(module.__file__))
    texts = {name: each.read_text("utf-8") for name, each in found.items()}
    folders = {str(each) for name in texts for each in pathlib.PurePosixPath(name).parents} - {"."}
    return dict(sorted({**{f"{each}/__init__.py": "" for each in folders}, **texts, **_TEXTS}.items()))


def graphs(folder: pathlib.Path) -> dict[str, Any]:
    """Adds the graphs to a folder that has the other files of a bundle; returns the result of `export_process`."""
    with tempfile.TemporaryFile() as log:
        reader, writer = os.pipe()
        with open(reader, encoding="utf-8") as lines:
            try:
                process = _started(folder, writer, log)
            finally:
                os.close(writer)
            try:
                for kind, value in map(json.loads, lines):
                    if kind == "exported":
                        return value
                    if kind == "refused":
                        raise InputValueError(value)
                    if kind == "warning":
                        _LOG.warning("%s", value)
                    else:
                        progress.step(value)
            finally:
                # Before waiting for it: then its number is free, and another group may get it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        text = log.read()[-_LAST_BYTES:].decode(errors="replace").strip()
    raise RuntimeError(f"Graphs could not be built; the process that builds them ended with: {text}")


def _started(folder: pathlib.Path, writer: int, log: Any) -> subprocess.Popen:
    # It imports modules from the same places as this process, in the same order.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(folder.absolute()), str(writer)],
        env={**os.environ, **found, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[writer],
        # So that processes that it starts can be ended with it.
        start_new_session=True,
    )


class _Warnings(logging.Handler):
    """Sends warnings of this package to the process that waits."""

    def __init__(self, to: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        _say(self._to, "warning", record.getMessage())


def _main() -> None:
    from tff_mf.mechanisms import registry

    folder, writer = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    # TFF's worker must not keep it open.
    os.set_inheritable(writer, False)
    with open(writer, "w", encoding="utf-8") as to:
        logging.getLogger("tff_mf").addHandler(_Warnings(to))
        try:
            registry.import_plugins()
            _say(to, "exported", _built(folder, to))
        except InputError as error:
            _say(to, "refused", str(error))


def _say(to: TextIO, kind: str, value: Any) -> None:
    to.write(json.dumps([kind, value]) + "\n")
    to.flush()


def _built(folder: pathlib.Path, to: TextIO) -> dict[str, Any]:
    from ... import aggregators
    from ..training import learning_process, task

    settings, privacy, vocabulary = deployed_again(folder)
    _say(to, "step", "process")
    with aggregators.tff_session():
        language_task = task.build_task(settings, vocabulary)
        process, mean = learning_process.build_process(
            settings, privacy, language_task, loop=learning_process.DEVICE_LOOP
        )
        _say(to, "step", "graphs")
        exported = aggregators.export_process(
            process,
            folder,
            initial_weights=language_task.initial_weights,
            batch_size=settings.batch_size,
            client_epochs=settings.client_epochs,
            max_examples=settings.max_examples,
            aggregator=mean,
        )
        aggregators.export_computation(
            task.build_tokenizer(vocabulary), folder / runner.TOKENIZE, inputs="sentences", outputs="examples"
        )
    return exported


if __name__ == "__main__":
    _main()
