"""What every command has in common: help, the spelling of errors, suggestions, and completion by the shell."""

import os
import pathlib
import subprocess
import sys

import click
import pytest
from bad_values import leaves
from click.shell_completion import BashComplete

import tff_mf
from tff_mf.experiments import cli
from tff_mf.experiments.cli import _boundary
from tff_mf.experiments.runs import layers
from tff_mf.experiments.sampling import settings
from tff_mf.planning import mechanism_names

from .shared import refused

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")
SCHEMA = ["--min-sep", "4", "--max-participations", "2"]


LEAVES = dict(leaves())
GROUPS = {name: cli.cli.get_command(click.Context(cli.cli), name) for name in ("data",)}
FLAGS = {flag for leaf in LEAVES.values() for each in leaf.params for flag in (*each.opts, *each.secondary_opts)} | {
    "--help",
    "--help-all",
    "--version",
    "--no-deps",
    "--plugin",
}


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


def test_a_python_caller_sees_the_names_of_python():
    with pytest.raises(tff_mf.InputError, match=r"^min_sep=0 must be") as raised:
        tff_mf.MinSep(min_sep=0, max_participations=2)
    assert _boundary.as_typed(raised.value, None) == str(raised.value)
    assert raised.value.sources == {}


def test_an_unrelated_word_gets_no_suggestion(typed):
    assert "mean" not in refused(typed, "xxxxxx")


@pytest.mark.parametrize("group", [[], ["data"]])
def test_a_group_without_a_command_prints_its_help_and_status_2(typed, group):
    status, out, err = typed(*group)
    helped = typed(*group, "--help")
    assert (status, out) == (2, "")
    assert (0, err, "") == helped
    assert err.startswith(f"Usage: {' '.join(['tff-mf', *group])} [OPTIONS] COMMAND")
    assert "Commands:" in map(str.rstrip, err.splitlines())


@pytest.mark.parametrize("name", ["", "data", *LEAVES])
def test_help_breaks_no_flag_and_names_none_that_does_not_exist(name):
    command = {**LEAVES, "": cli.cli, **GROUPS}[name]
    settings = {"terminal_width": 78, "rich_help_config": cli._SETTINGS["rich_help_config"]}
    text = command.get_help(_boundary.Context(command, info_name=f"tff-mf {name}".strip(), **settings))
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("[ARGS]...", "")
    assert {word.strip(".,;:()`") for word in text.split() if word.startswith("--")} <= FLAGS


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
