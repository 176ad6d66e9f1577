"""Lines of the command with one wrong value each, and files of settings with one; those that are valid after all."""

import dataclasses
import os
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import click
import run_folders

import tff_mf
from tff_mf.experiments import cli
from tff_mf.experiments.runs.settings import FIELDS

_SCHEMA = "--rounds 20 --min-sep 5 --max-participations 2"
BEYOND, LARGEST = "99999999999999999999999", str(2**63 - 1)
_NUMBERS = ("-1", "nan", "inf", "-inf", "abc", "", " ", "1e400", "0x10", BEYOND, "1,5", "--json", "1\n2")
_WHOLE = (*_NUMBERS, "1.5", "²", LARGEST)
_NO_TEXT = ("", "a\udcff", "a\u202eb", "a\x1b[2Jb")
_WORDS = (*_NO_TEXT, "nonsense", "../../x", "a" * 5000, "--help-me")
_INPUTS = (*_NO_TEXT, "missing", "missing/x", "folder", "empty", "garbage", "text.toml", "/dev/null", "x" * 300)
_INPUTS += ("x" * 5000, "empty/x", "loop")
_OUTPUTS = (*_NO_TEXT, "empty/x", "/proc/none/x", "x" * 300, "x" * 5000, "/dev/full/x", "loop/x")
_OPTIMIZED = f"{_SCHEMA} --out out.safetensors"
_COHORTS = "--population 1000 --clients-per-round 10 --rounds 20 --delta 1e-6"
_IN_BINS = f"{_COHORTS} --groups 5 --sampling balls-in-bins"
_DATA = "--dataset sqlite:data.sqlite"
# Valid lines; each case changes one value.
_LINES = {
    "account": f"blt.safetensors --noise-multiplier 3 {_SCHEMA} --delta 1e-6",
    "compare": "spec.toml --out out",
    "demo": "--out out",
    "doctor": "",
    "export": "run.toml --out out",
    "export-model": "run --out out",
    "optimize": f"structured {_OPTIMIZED} --diagonals 3 --rank 2 --of blt",
    "plan": f"{_COHORTS} --epsilon 8",
    "report": "run",
    "show": f"blt.safetensors {_SCHEMA}",
    "train": f"{_DATA} --clients-per-round 2 --epsilon 4 --delta 1e-6 {_SCHEMA} --out out",
    "train-central": "--preset digits --epochs 2 --set batch_size=256 --delta 1e-5 --epsilon 8 --out out",
}
# Other valid lines, in which further options have a meaning.
_OTHER_LINES = {
    "account": f"blt.safetensors --epsilon 2 {_IN_BINS}",
    "optimize": f"blt {_OPTIMIZED} --epsilon 2 --delta 1e-6",
}
BASES, _OTHER_BASES = ({name: line.split() for name, line in lines.items()} for lines in (_LINES, _OTHER_LINES))
# Options that have a meaning only together with others.
_BESIDE: Mapping[tuple[str, str], Sequence[str]] = {}
_SETTINGS: Mapping[str, str] = {
    "dataset": '"sqlite:data.sqlite"',
    "mechanism": '"blt"',
    "rounds": "20",
    "clients_per_round": "2",
    "delta": "1e-6",
    "min_sep": "5",
    "max_participations": "2",
    "epsilon": "4.0",
}
_NO_TOML_NUMBER = ('"abc"', '""', "true", "nan", "inf", "-inf", "-1", "[1]", "{a = 1}", "1979-05-27", "1" + 400 * "0")
_TOML: Mapping[type, Sequence[str]] = {
    int: (*_NO_TOML_NUMBER, "1.5", BEYOND),
    float: _NO_TOML_NUMBER,
    bool: (*(value for value in _NO_TOML_NUMBER if value != "true"), "1", '"true"'),
    str: (
        *('""', "1", "true", "nan", '["x"]', "{a = 1}", "1979-05-27", '"nonsense"', '"../../x"'),
        *('"a\\u0000b"', '"a\\u202Eb"', f'"{5000 * "x"}"'),
    ),
}
# As the values of --set, whose fields are of every type.
_NO_SETTING = ("", "[1]", "{a = 1}", "1979-05-27", "\u202e")
_OF_CACHE = ("TFF_MF_CACHE", "XDG_CACHE_HOME")
_VARIABLES: Mapping[str, Sequence[str]] = {
    "COLUMNS": ("abc", "0", "-1", "1", BEYOND),
    "TF_CPP_MIN_LOG_LEVEL": ("abc", "-1", BEYOND),
    "TERM": ("nonsense", ""),
    "TFF_MF_CACHE": ("/proc/none", "/dev/full/x", "x" * 5000, "folder/" + "x" * 300),
    "XDG_CACHE_HOME": ("/proc/none", "/dev/full/x"),
}
_TABLES = (
    "run = 1",
    'run = "x"',
    "[[run]]\nrounds = 20",
    "[run.rounds]\na = 1",
    "[run]\nnonsense = 1",
    "[nonsense]\nrounds = 20",
    "preset = 1",
    'preset = "nonsense"',
    'preset = "a\\u202Eb"',
    "[run]\nrounds = 1\nrounds = 2",
    "[run]\nrounds",
    "\x00",
    "a = " + 5000 * "[",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A line with one wrong value.

    Attributes:
        command: The subcommand, with its own subcommand if it has one.
        parameter: The option, or the metavariable of the argument, or the key of a file.
        value: What is wrong.
        arguments: All that follows `tff-mf`.
        settings: What is in `settings.toml`; `None` if there is none.
        environment: Variables of the environment.
    """

    command: str
    parameter: str
    value: str
    arguments: tuple[str, ...]
    settings: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def leaves(group: click.Group | None = None, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields each subcommand that is not a group, with its name."""
    group = group or cli.cli
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def cases() -> Iterator[Case]:
    """Yields all cases."""
    for name, command in leaves():
        for bases in (BASES, _OTHER_BASES):
            if name in bases:
                yield from _lines(name, command, bases[name])
    for name in ("compare", "export", "train"):
        yield from _files(name)
    for name in ("account", "train"):
        yield from _environments(name)


def _lines(name: str, command: click.Command, line: Sequence[str]) -> Iterator[Case]:
    base, words = list(line), name.split()
    for parameter in command.params:
        flag = max(parameter.opts, key=len)
        for field in getattr(parameter, "fields", ()):
            for value in _NO_SETTING:
                yield _case(name, "--set", f"{field}={value}", [*words, *base, "--set", f"{field}={value}"])
        for value in _values(parameter):
            if isinstance(parameter, click.Argument):
                metavar = parameter.make_metavar(click.Context(command)).strip("[]")
                yield _case(name, metavar, value, [*words, *base[1:], "--", value])
            else:
                changed = [*words, *_without(base, flag), *_BESIDE.get((name, flag), ()), f"{flag}={value}"]
                yield _case(name, flag, value, changed)
    yield _case(name, "--no-such-option", "", [*words, *base, "--no-such-option"])
    yield _case(name, "one argument more", "", [*words, *base, "surplus"])


def _files(name: str) -> Iterator[Case]:
    base = list(BASES[name])
    line = {
        "compare": [name, "settings.toml", *base[1:]],
        "export": [name, "settings.toml", *base[1:]],
        "train": [name, "--config", "settings.toml", "--out", "out"],
    }[name]

    def case(key: str, value: str, content: str) -> Case:
        return dataclasses.replace(_case(name, key, value, line), settings=content)

    for key, kinds in FIELDS.items():
        for value in _TOML[kinds[0]]:
            settings = {**_SETTINGS, key: value}
            if key == "noise_multiplier":
                del settings["epsilon"]
            yield case(key, value, _toml(settings))
            if name == "compare" and not value.startswith("["):
                rest = {each: settings[each] for each in settings if each != key}
                yield case(key, f"[{value}]", f"{_toml(rest)}[[grid]]\n{key} = [{value}]\n")
    for content in _TABLES:
        yield case("tables", content, content)
    if name == "compare":
        for content in ("grid = 1", "[grid]\nrounds = 20", "[[grid]]\nrounds = []", "[[grid]]\nnonsense = [1]"):
            yield case("grid", content, f"{content}\n" + ("" if "[[" in content else _toml(_SETTINGS)))


def _environments(name: str) -> Iterator[Case]:
    line = [name, *_without(BASES[name], "--dataset")]
    for variable, values in _VARIABLES.items():
        if (variable in _OF_CACHE) == (name == "train"):
            for value in values:
                yield dataclasses.replace(_case(name, variable, value, line), environment={variable: value})


def _toml(settings: Mapping[str, str]) -> str:
    return "[run]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


def _case(command: str, parameter: str, value: str, arguments: Sequence[str]) -> Case:
    return Case(command=command, parameter=parameter, value=value, arguments=tuple(arguments))


def _without(arguments: Sequence[str], flag: str) -> list[str]:
    if flag not in arguments:
        return list(arguments)
    place = arguments.index(flag)
    return [*arguments[:place], *arguments[place + 2 :]]


def _values(parameter: click.Parameter) -> Sequence[str]:
    if isinstance(parameter, click.Argument) or parameter.name == "config":
        return _INPUTS
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ("x", "")
    if parameter.name in ("html", "out", "plot"):
        return _OUTPUTS
    return {"integer": _WHOLE, "float": _NUMBERS}.get(parameter.type.name, _WORDS)


def prepare(folder: pathlib.Path) -> None:
    """Writes the files that lines name."""
    participation = tff_mf.MinSep(min_sep=5, max_participations=2)
    tff_mf.save(tff_mf.optimize_blt(rounds=20, participation=participation, buffers=2), folder / "blt.safetensors")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    os.symlink("loop", folder / "loop")
    (folder / "garbage").write_bytes(bytes(range(256)) * 40)
    (folder / "text.toml").write_text("[run\nno toml")
    (folder / "run.toml").write_text(_toml(_SETTINGS))
    (folder / "spec.toml").write_text(_toml(_SETTINGS) + "[[grid]]\nseed = [1, 2]\n")
    run_folders.whole(folder / "run")
    _write_data(folder / "data.sqlite")


def _write_data(path: pathlib.Path) -> None:
    """Writes a data set of a client a split, without TensorFlow."""
    names = (b"creation_date", b"score", b"tags", b"title", b"tokens", b"type")
    features = b"".join(_field(1, _field(1, name) + _field(2, _field(1, _field(1, b"a word")))) for name in names)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
        connection.execute("CREATE TABLE client_metadata (client_id, split_name, num_examples)")
        for split in ("train", "heldout", "test"):
            connection.execute("INSERT INTO examples VALUES (?, 'c', ?)", [split, _field(1, features)])
            connection.execute("INSERT INTO client_metadata VALUES ('c', ?, 1)", [split])
    connection.close()


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    varint = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + varint + content
