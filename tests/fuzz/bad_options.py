"""Wrong values for every option and argument of every subcommand, each in a process of its own.

A wrong value must end in one line on stderr that names what was typed, exit status 2, nothing on stdout and nothing
written. Forks of a process that has loaded the commands: a case takes milliseconds. A case in which TensorFlow would be
loaded ends there: what is wrong has to be said before that, which takes ten seconds.

python tests/fuzz/bad_options.py [COMMAND …]: prints what was not refused, and how many cases there were.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib import machinery

import click

import tff_mf
from tff_mf.experiments import cli

LONGEST_SECONDS = 20
_LOADS_TENSORFLOW = 99
_SCHEMA = ("--rounds", "20", "--min-sep", "5", "--max-participations", "2")
_NUMBERS = ("-1", "nan", "inf", "-inf", "abc", "", "1e400", "0x10", "99999999999999999999999", "1,5", "--json")
_WHOLE = (*_NUMBERS, "1.5", "²")
_WORDS = ("", "nonsense", "../../x", "a" * 5000, "naïve\u202e", "--help-me")
_INPUTS = ("", "missing", "missing/x", "folder", "empty", "garbage", "text.toml", "/dev/null", "x" * 5000, "empty/x")
_OUTPUTS = ("", "empty/x", "/proc/none/x", "x" * 5000, "/dev/full/x")

# A line that works, but for what each command would do: a base that one value at a time is changed of.
BASES: dict[str, list[str]] = {
    "account": ["blt.safetensors", "--noise-multiplier", "3", *_SCHEMA, "--delta", "1e-6"],
    "audit": ["blt.safetensors", *_SCHEMA],
    "calibrate": ["blt.safetensors", "--epsilon", "2", *_SCHEMA, "--delta", "1e-6"],
    "compare": ["spec.toml", "--out", "out"],
    "data pydoc": ["--packages", "click", "--out", "out.sqlite"],
    "demo": ["--out", "out"],
    "doctor": [],
    "export": ["run.toml", "--out", "out"],
    "export-model": ["run", "--out", "out"],
    "import-matrix": ["folder", "--min-sep", "5", "--max-participations", "2", "--out", "out.safetensors"],
    "optimize banded": [*_SCHEMA, "--bands", "4", "--out", "out.safetensors"],
    "optimize banded-inverse": [*_SCHEMA, "--bands", "4", "--out", "out.safetensors"],
    "optimize banded-toeplitz": [*_SCHEMA, "--bands", "4", "--out", "out.safetensors"],
    "optimize blt": [*_SCHEMA, "--buffers", "2", "--out", "out.safetensors"],
    "optimize dense": [*_SCHEMA, "--out", "out.safetensors"],
    "plan": [
        "--population",
        "1000",
        "--clients-per-round",
        "10",
        "--rounds",
        "20",
        "--delta",
        "1e-6",
        "--epsilon",
        "8",
    ],
    "report": ["run"],
    "show": ["blt.safetensors"],
    "train": [
        *("--dataset", "sqlite:data.sqlite", "--clients-per-round", "2", "--epsilon", "4", "--delta", "1e-6"),
        *(*_SCHEMA, "--out", "out"),
    ],
    "verify": ["bundle", "--files-only"],
    "worker": ["--port", "7000"],
}
_RUN = (
    '[run]\ndataset = "sqlite:data.sqlite"\nmechanism = "blt"\nrounds = 20\nclients_per_round = 2\ndelta = 1e-6\n'
    "min_sep = 5\nmax_participations = 2\nepsilon = 4.0\n"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A line with one wrong value.

    Attributes:
        command: The subcommand, with its own subcommand if it has one.
        parameter: The option, or the metavariable of the argument.
        value: What is wrong.
        arguments: All that follows `tff-mf`.
    """

    command: str
    parameter: str
    value: str
    arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case.

    Attributes:
        case: It.
        fault: What is not as it must be, in words; empty if the value was refused as it must be.
        printed: What stood on stderr.
    """

    case: Case
    fault: str
    printed: str


def leaves(group: click.Group | None = None, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields each subcommand that does something, with its name."""
    group = group or cli.cli
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def cases(commands: Sequence[str] = ()) -> Iterator[Case]:
    """Yields all cases, or those of some commands."""
    for name, command in leaves():
        if commands and name not in commands:
            continue
        base = BASES[name]
        words = name.split()
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.is_flag:
                flag = parameter.opts[0]
                yield _case(name, flag, "=x", [*words, *base, f"{flag}=x"])
                continue
            for value in _values(parameter):
                if isinstance(parameter, click.Argument):
                    metavar = parameter.make_metavar(click.Context(command))
                    yield _case(name, metavar, value, [*words, *base[1:], "--", value])
                else:
                    flag = parameter.opts[0]
                    yield _case(name, flag, value, [*words, *_without(base, flag), f"{flag}={value}"])
        yield _case(name, "--no-such-option", "", [*words, *base, "--no-such-option"])
        yield _case(name, "one argument more", "", [*words, *base, "surplus"])


def _case(command: str, parameter: str, value: str, arguments: Sequence[str]) -> Case:
    return Case(command=command, parameter=parameter, value=value, arguments=tuple(arguments))


def _without(arguments: Sequence[str], flag: str) -> list[str]:
    if flag not in arguments:
        return list(arguments)
    place = arguments.index(flag)
    return [*arguments[:place], *arguments[place + 2 :]]


def _values(parameter: click.Parameter) -> Sequence[str]:
    if isinstance(parameter, click.Argument):
        return _INPUTS
    if parameter.name in ("out", "plot"):
        return _OUTPUTS
    if parameter.name in ("config",):
        return _INPUTS
    return {"integer": _WHOLE, "float": _NUMBERS}.get(parameter.type.name, _WORDS)


class _NoTensorFlow:
    """Finds TensorFlow, and ends the process where it would be loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> machinery.ModuleSpec | None:
        del path, target
        heavy = name in ("tensorflow", "tensorflow_federated", "tensorflow_privacy")
        return machinery.ModuleSpec(name, self) if heavy else None  # type: ignore[arg-type]

    def create_module(self, spec: machinery.ModuleSpec) -> None:
        sys.stderr.flush()
        os._exit(_LOADS_TENSORFLOW)

    def exec_module(self, module: object) -> None:
        raise NotImplementedError


def prepare(folder: pathlib.Path) -> None:
    """Writes the files that lines name."""
    participation = tff_mf.MinSep(min_sep=5, max_participations=2)
    tff_mf.save(tff_mf.optimize_blt(rounds=20, participation=participation, buffers=2), folder / "blt.safetensors")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "garbage").write_bytes(bytes(range(256)) * 40)
    (folder / "text.toml").write_text("[run\nno toml")
    (folder / "run.toml").write_text(_RUN)
    (folder / "spec.toml").write_text(_RUN.replace("rounds = 20\n", "") + "[[grid]]\nrounds = [20, 30]\n")


def run(case: Case, template: pathlib.Path) -> Outcome:
    """Runs a case in a copy of the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch, "folder")
        shutil.copytree(template, folder)
        before = _listing(folder)
        out, err = pathlib.Path(scratch, "out"), pathlib.Path(scratch, "err")
        pid = os.fork()
        if pid == 0:
            _become(case, folder, out, err)
        _, status = os.waitpid(pid, 0)
        printed = err.read_text(errors="replace")
        fault = _fault(case, os.waitstatus_to_exitcode(status), out.read_text(errors="replace"), printed)
        if not fault and _listing(folder) != before:
            fault = f"wrote {sorted(set(_listing(folder)) ^ set(before))}"
        return Outcome(case=case, fault=fault, printed=printed)


def _listing(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def _become(case: Case, folder: pathlib.Path, out: pathlib.Path, err: pathlib.Path) -> None:
    try:
        os.setsid()
        os.chdir(folder)
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.environ |= {"TFF_MF_CACHE": str(folder.parent / "cache"), "HOME": str(folder.parent)}
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS))
        signal.alarm(3 * LONGEST_SECONDS)
        sys.meta_path.insert(0, _NoTensorFlow())
        sys.argv = ["tff-mf", *case.arguments]
        cli.main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _fault(case: Case, status: int, out: str, err: str) -> str:
    if status == _LOADS_TENSORFLOW:
        return "loads TensorFlow"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if status != 2:
        return f"exit status {status}"
    if out:
        return "something on stdout"
    lines = err.splitlines()
    if len(lines) != 1 or not lines[0].startswith("tff-mf: "):
        return f"{len(lines)} lines on stderr"
    if case.parameter.startswith("--") and case.parameter not in lines[0]:
        return "does not name the option"
    if len(lines[0]) > 1000:
        return f"a line of {len(lines[0])} characters"
    return ""


def main(commands: Sequence[str]) -> int:
    """Runs all cases, prints those that were not refused as they must be, and returns how many those are."""
    for _, command in leaves():
        assert command.callback is not None
    # Loaded once, for all forks.
    import scipy.optimize  # noqa: F401

    tally: collections.Counter[str] = collections.Counter()
    faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        template = pathlib.Path(scratch)
        prepare(template)
        for case in cases(commands):
            outcome = run(case, template)
            tally[case.command] += 1
            if outcome.fault:
                faults += 1
                value = case.value if len(case.value) < 60 else f"{case.value[:20]}…"
                last = outcome.printed.strip().splitlines()[-1:] or [""]
                print(f"{case.command} {case.parameter}={value!r}: {outcome.fault}: {last[0][:200]}", flush=True)
    for command, number in tally.items():
        print(f"{number:5} {command}")
    print(f"{tally.total()} wrong values, {faults} not refused as they must be")
    return faults


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
