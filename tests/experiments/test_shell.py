"""What every command has in common: help, the spelling of errors, suggestions, and completion by the shell."""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
from unittest import mock

import click
import pytest
from click.shell_completion import BashComplete

import tff_mf
from tff_mf.experiments import cli
from tff_mf.experiments.cli import _boundary
from tff_mf.experiments.runs import layers
from tff_mf.experiments.sampling import settings
from tff_mf.planning import mechanism_names

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")
SCHEMA = ["--min-sep", "4", "--max-participations", "2"]
RUN = ["--rounds", "8", "--clients-per-round", "2", "--delta", "1e-3", "--epsilon", "4", *SCHEMA]
VALID = {
    "account": ["identity", "--noise-multiplier", "1", "--rounds", "8", *SCHEMA, "--delta", "1e-3"],
    "calibrate": ["identity", "--epsilon", "1", "--rounds", "8", *SCHEMA, "--delta", "1e-3"],
    "train": RUN,
}


def leaves(command, path=()):
    """All commands that do something, by what is typed."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


LEAVES = dict(leaves(cli.cli))
GROUPS = {name: cli.cli.get_command(click.Context(cli.cli), name) for name in ("data",)}
FLAGS = {flag for leaf in LEAVES.values() for each in leaf.params for flag in (*each.opts, *each.secondary_opts)} | {
    "--help",
    "--help-all",
    "--version",
    "--no-deps",
    "--plugin",
}
# Numbers that must be above 0, and shares that must be below 1. tests/fuzz has other wrong values of all options.
BOUNDS = {
    "account": {"0": "rounds min-sep delta", "1": "delta"},
    "calibrate": {"0": "epsilon"},
    "train": {
        "0": "rounds clients-per-round clip-norm batch-size max-examples evaluate-every vocab-size units "
        "evaluation-examples buffers",
        "1": "server-momentum",
        "2": "delta",
    },
}
NUMBERS = [
    (name, f"--{flag}", value)
    for name, bounds in BOUNDS.items()
    for value, flags in bounds.items()
    for flag in flags.split()
]


@pytest.fixture
def typed(tmp_path, monkeypatch, capfd):
    """A function that runs a command line in this process, and returns its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    # `python -m pytest` is another program name than `pytest`.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tff-mf", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capfd.readouterr()

    # What the command sets for its own process must not reach the tests after it.
    with mock.patch.dict(os.environ):
        yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def with_value(arguments, flag, value):
    arguments = list(arguments)
    if flag in arguments:
        arguments[arguments.index(flag) + 1] = value
        return arguments
    return [*arguments, flag, value]


@pytest.mark.parametrize(("name", "flag", "value"), NUMBERS)
def test_a_wrong_number_is_refused_by_the_flag_that_was_typed(typed, tmp_path, name, flag, value):
    err = refused(typed, name, *with_value(VALID[name], flag, value))
    assert flag in err
    assert flag.removeprefix("--").replace("-", "_") + "=" not in err.replace(flag, "")
    assert not list(tmp_path.iterdir())


def refused(typed, *arguments):
    status, out, err = typed(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    return err


def test_values_of_a_file_keep_their_key_and_name_the_file(typed, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[run]\nrounds = 8\nclients_per_round = 2\ndelta = 1e-3\nclip_norm = -1.0\nmin_sep = 0\n")
    for arguments, named in (
        (["--epsilon", "4", *SCHEMA], "clip_norm=-1.0 must be greater than 0. (clip_norm: from run.toml)"),
        (["--epsilon", "4", "--clip-norm", "-2", *SCHEMA], "--clip-norm=-2.0 must be greater than 0."),
        (["--epsilon", "4", "--clip-norm", "2"], "--max-participations missing"),
        (["--clip-norm", "1", *SCHEMA], "Give either --epsilon=ε or --noise-multiplier=σ"),
    ):
        err = refused(typed, "train", "--config", "run.toml", *arguments)
        assert named in err
    file.write_text("[run]\nmin_sep = 'x'\n")
    for command in (["train", "--config"], ["export", "--out", "x"], ["compare"]):
        assert "run.toml [run]: min_sep='x' must be" in refused(typed, *command, "run.toml")
    file.write_text(
        "[run]\nrounds = 8\nclients_per_round = 2\ndelta = 1e-3\nclip_norm = -1.0\nepsilon = 2.0\nsampling = 'single'\n"
    )
    for command in (["export", "--out", "x"], ["compare"]):
        err = refused(typed, *command, "run.toml")
        assert "clip_norm=-1.0 must be greater than 0." in err
        assert "run.toml" in err


def test_values_of_a_preset_name_it(typed):
    err = refused(typed, "train", "--preset", "mcmahan2024-blt", "--rounds", "10", "--epsilon", "2")
    assert "but --rounds=10" in err
    assert "(max_participations: from preset mcmahan2024-blt, " in err


def test_values_are_never_rewritten(typed):
    err = refused(typed, "train", *RUN, "--dataset", "a min_sep=3, rounds=2")
    assert "--dataset='a min_sep=3, rounds=2' is neither" in err
    err = refused(typed, "optimize", "blt", "--rounds", "9", "--out", "/proc/rounds=9")
    assert "--out='/proc/rounds=9' cannot be written" in err


def test_a_python_caller_sees_the_names_of_python():
    with pytest.raises(tff_mf.InputError, match=r"^min_sep=0 must be") as raised:
        tff_mf.MinSep(min_sep=0, max_participations=2)
    assert _boundary.as_typed(raised.value, None) == str(raised.value)
    assert raised.value.sources == {}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["trian"], "train"),
        (["export-modle"], "export-model"),
        (["optimize", "bandd"], "banded"),
        (["data", "pydocs"], "pydoc"),
        (["train", "--round", "8"], "--rounds"),
        (["account", "production:b40", *VALID["account"][1:]], "production:b400"),
        (["account", *VALID["account"], "--adjacency", "zero_out"], "zero-out"),
        (["optimize", "blt", "--rounds", "8", "--out", "x", "--objective", "RMS"], "rms"),
        (["train", *RUN, "--mechanism", "bandd"], "banded"),
        (["train", *RUN, "--workload", "momentun"], "momentum"),
        (["train", *RUN, "--sampling", "min_sep"], "min-sep"),
        (["train", *RUN, "--dataset", "stackoverfow"], "stackoverflow"),
        (["train", *RUN, "--preset", "mcmahan-blt"], "mcmahan2024-blt"),
    ],
)
def test_a_wrong_word_gets_the_nearest(typed, arguments, meant):
    err = refused(typed, *arguments)
    assert re.search(f"id you mean [^?]*'{re.escape(meant)}'", err)


def test_an_unrelated_word_gets_no_suggestion(typed):
    assert "mean" not in refused(typed, "xxxxxx")
    assert "is none of rms, max.\n" in refused(
        typed, "optimize", "blt", "--rounds", "8", "--out", "x", "--objective", "q"
    )


@pytest.mark.parametrize("group", [[], ["data"]])
def test_a_group_without_a_command_prints_its_help_and_status_2(typed, group):
    status, out, err = typed(*group)
    helped = typed(*group, "--help")
    assert (status, out) == (2, "")
    assert (0, err, "") == helped
    assert err.startswith(f"Usage: {' '.join(['tff-mf', *group])} [OPTIONS] COMMAND")
    assert "Commands:" in map(str.rstrip, err.splitlines())


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["", "data", *LEAVES])
def test_help_fits_and_breaks_no_flag(name, columns):
    command = {**LEAVES, "": cli.cli, **GROUPS}[name]
    width = min(columns - 2, cli._SETTINGS["max_content_width"])
    settings = {"terminal_width": width, "rich_help_config": cli._SETTINGS["rich_help_config"]}
    text = command.get_help(_boundary.Context(command, info_name=f"tff-mf {name}".strip(), **settings))
    assert max(map(len, text.splitlines())) <= columns
    assert "..." not in text.replace("[ARGS]...", "")
    words = text.split()
    assert [one for one, other in itertools.pairwise(words) if one == other and one.isalpha()] == []
    assert {word.strip(".,;:()`") for word in words if word.startswith("--")} <= FLAGS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "blt.safetensor"], "FILE='blt.safetensor' is not a file"),
        (["account", "structured", *VALID["account"][1:]], "FILE='structured' is not a file, and none of blt, "),
        (["show", "production:b40"], "FILE='production:b40' must be one of"),
        (["audit", "nowhere"], "RUN|ARTIFACT='nowhere' is not a file"),
        (["report", "."], "run='.' is not a run folder"),
        (["export-model", "nowhere", "--out", "x"], "run='nowhere' does not exist"),
    ],
)
def test_missing_arguments_are_named_as_in_the_usage(typed, arguments, message):
    status, _, errors = typed(*arguments)
    assert status == 2
    assert errors.startswith(f"tff-mf: {message}"), errors
    assert len(errors.splitlines()) == 1


def completed(words, *, at):
    complete = BashComplete(cli.cli, {}, "tff-mf", "_TFF_MF_COMPLETE")
    return [item.value for item in complete.get_completions(words, at)]


def test_the_shell_completes_commands_flags_and_words():
    assert completed([], at="exp") == ["export", "export-model"]
    assert completed(["optimize"], at="banded-") == ["banded-toeplitz", "banded-inverse"]
    assert completed(["train"], at="--pre") == ["--preset"]
    assert completed(["train", "--preset"], at="") == layers.PRESETS.names()
    assert completed(["train", "--sampling"], at="") == list(settings.SAMPLINGS)
    assert completed(["account"], at="production:b1")[:2] == ["production:b100", "production:b1000"]
    assert completed(["train", "--mechanism"], at="")[:-1] == [*mechanism_names.names(), *mechanism_names.production()]
    assert completed(["account", "x", "--adjacency"], at="r") == ["replace-one"]


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """What bash completes a line to, in a folder with files, by the script that the command prints."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("banded.safetensors", "two words.safetensors", "runs/train/run.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    source = subprocess.run(
        [COMMAND], env={**os.environ, "_TFF_MF_COMPLETE": "bash_source"}, capture_output=True, text=True, check=True
    ).stdout

    def completes(line):
        call = "_tff_mf_completion tff-mf; printf '%s\\n' \"${COMPREPLY[@]}\""
        script = f"{source}\nCOMP_LINE=$1; COMP_POINT=${{#1}}; {call}"
        environment = {**os.environ, "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script, "bash", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    return completes


def test_bash_itself_completes_words_beside_files(bash):
    """Each line is a process of the command; all other words are completed above."""
    # bash takes `production:b4` for three words, and puts what is completed in place of the last.
    assert bash("tff-mf show production:b4") == ["b400"]
    found = bash("tff-mf account ban")
    assert found == ["banded", "banded-toeplitz", "banded-inverse", "banded.safetensors"]
    assert bash("tff-mf show two") == [r"two\ words.safetensors"]
    assert bash("tff-mf train --dataset sqlite:ru") == ["runs/"]
