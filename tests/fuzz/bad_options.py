"""Wrong values for every option and argument of every subcommand, each in a process of its own.

A wrong value must end in one line on stderr that names what was typed, exit status 2, nothing on stdout and nothing
written. Forks of a process that has loaded the commands: a case takes milliseconds. A case in which TensorFlow would be
loaded ends there: what is wrong has to be said before that, which takes ten seconds.

`python tests/fuzz options` tries all of them, with `--inputs N` as many at equal distances.
"""

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib import machinery

import accepted
from bad_values import Case, cases, leaves, prepare
from outcomes import CRASHED, Outcome

from tff_mf.experiments import cli

LONGEST_SECONDS = 20
LONGEST_LINE = 600
_LOADS_TENSORFLOW = 99


class _NoTensorFlow:
    """An import hook that ends the process when TensorFlow would be loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> machinery.ModuleSpec | None:
        del path, target
        heavy = name in ("tensorflow", "tensorflow_federated", "tensorflow_privacy")
        return machinery.ModuleSpec(name, self) if heavy else None  # type: ignore[arg-type]

    def create_module(self, spec: machinery.ModuleSpec) -> None:
        # Code asks whether a package exists without importing it.
        if sys._getframe(2).f_code.co_name != "find_spec":
            sys.stderr.flush()
            os._exit(_LOADS_TENSORFLOW)

    def exec_module(self, module: object) -> None:
        raise NotImplementedError


_UNNAMED = "does not name what is wrong"


def run(case: Case, template: pathlib.Path) -> Outcome:
    """Runs a case in a copy of the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch, "folder")
        shutil.copytree(template, folder, symlinks=True)
        if case.settings is not None:
            (folder / "settings.toml").write_text(case.settings)
        before = _listing(folder)
        out, err = pathlib.Path(scratch, "out"), pathlib.Path(scratch, "err")
        pid = os.fork()
        if pid == 0:
            _become(case, folder, out, err)
        _, status = os.waitpid(pid, 0)
        status, printed = os.waitstatus_to_exitcode(status), err.read_text(errors="replace")
        if status != 2 and accepted.why(case):
            fault = _fault_of_accepted(status, printed)
        else:
            fault = _fault(case, status, out.read_text(errors="replace"), printed)
            if fault == _UNNAMED and accepted.why(case):
                # The value is valid, and something else of the line is not, such as too few clients.
                fault = ""
            if not fault and _listing(folder) != before:
                fault = f"wrote {sorted(set(_listing(folder)) ^ set(before))}"
        kind = ", environment" if case.environment else ", file" if case.settings is not None else ""
        result = CRASHED if fault else "refused" if status == 2 else "valid"
        about = f"{case.parameter}={case.value[:60]!r}: {fault}: {printed.strip()[-300:]}"
        return Outcome(target=f"{case.command}{kind}", fault="a wrong value", result=result, about=about)


def _listing(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        for path in folder.rglob("*")
    }


def _become(case: Case, folder: pathlib.Path, out: pathlib.Path, err: pathlib.Path) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        # It comes before XDG_CACHE_HOME.
        os.environ.pop("TFF_MF_CACHE", None)
        cache = {} if "XDG_CACHE_HOME" in case.environment else {"TFF_MF_CACHE": str(folder.parent / "cache")}
        os.environ |= {"HOME": str(folder.parent), **cache, **case.environment}
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS))
        signal.alarm(15 * LONGEST_SECONDS)
        sys.meta_path.insert(0, _NoTensorFlow())
        subprocess.Popen = _no_process  # type: ignore[misc, assignment]
        sys.argv = ["tff-mf", *case.arguments]
        cli.main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _no_process(*arguments: object, **more: object) -> None:
    """Ends a comparison before it trains."""
    os._exit(_LOADS_TENSORFLOW)


def _fault_of_accepted(status: int, err: str) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return "a traceback" if "Traceback" in err else ""


def _fault(case: Case, status: int, out: str, err: str) -> str:
    if status == _LOADS_TENSORFLOW:
        return "loads TensorFlow"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if status != 2:
        return f"exit status {status}"
    if out:
        return "something on stdout"
    # Not `splitlines`, which also splits at other characters; none of them may occur.
    line = err.removesuffix("\n")
    if not line.startswith("tff-mf: ") or not err.endswith("\n") or "\n" in line:
        return f"{len(err.splitlines())} lines on stderr"
    if not line.isprintable():
        return "characters that a terminal acts on"
    if len(line) > LONGEST_LINE:
        return f"a line of {len(line)} characters"
    return "" if _names(case, line) else _UNNAMED


def _names(case: Case, line: str) -> bool:
    """Returns whether a line names the option or its field, or the text of an argument; a key and its file."""
    if case.settings is not None:
        return "settings.toml" in line and (case.parameter in ("tables", "grid") or case.parameter in line)
    if case.environment:
        return "TFF_MF_CACHE" in line
    if case.parameter == "--set":
        # The field, which some messages call by its option.
        field = case.value.partition("=")[0].replace("_", "-")
        return "--set" in line or field in line.replace("_", "-")
    if case.parameter.startswith("--"):
        field = case.parameter.removeprefix("--").replace("-", "_")
        return case.parameter in line or f"{field}=" in line or case.value[:40] in line
    return case.parameter in line or case.value[:40] in line


def chosen(inputs: int, only: str = "") -> list[Case]:
    """Returns the cases of the commands whose names have a text, or nearly `inputs` of them at equal distances."""
    found = [each for each in cases() if only in each.command]
    return found[:: max(1, len(found) // inputs)]


def outcomes(folder: pathlib.Path, *, inputs: int, seed: int, only: str) -> Iterator[Outcome]:
    """Yields what came of each case."""
    del seed
    for _, command in leaves():
        assert command.callback is not None
    # Loaded once, for all forks.
    import scipy.optimize  # noqa: F401

    # Matplotlib starts processes to find fonts, once.
    from tff_mf.experiments import plots  # noqa: F401

    prepare(folder)
    # A module that is loaded here would count as loaded in every fork.
    assert "tensorflow" not in sys.modules
    for case in chosen(inputs, only):
        yield run(case, folder)
