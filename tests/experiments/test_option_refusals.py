"""Options that mean nothing together are refused, and every option reads the same wherever it is."""

import pathlib
import re
import shlex

import click
import msgspec
import pytest
from bad_values import leaves

from tff_mf.experiments.cli import _options, cli
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling.settings import SAMPLINGS

from . import shared
from .shared import printed, refused, result_of


def refused_lines():
    """The words of each line of the table, and what the message about it has."""
    begin = ""
    for line in pathlib.Path(__file__).with_name("refused_lines.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            begin = line.strip("[]")
        elif "=> " in line:
            words, _, named = line.partition("=> ")
            yield pytest.param(shlex.split(f"{begin} {words}"), named, id=f"{begin.split()[0]} {words.strip()}")


@pytest.mark.parametrize(("arguments", "named"), refused_lines())
def test_a_wrong_line_is_refused_in_one_line_with_nothing_written(typed, tmp_path, arguments, named):
    """By the flag that was typed, and not by the name of an argument in Python."""
    message = refused(typed, *arguments)
    assert named in message
    for flag in (each for each in arguments if each.startswith("--") and each in message):
        assert not re.search(rf"(?<![\w-]){flag.strip('-').replace('-', '_')}=", message)
    assert list(tmp_path.iterdir()) == []


COHORTS = ["--population", 90, "--clients-per-round", 3]


def test_an_option_means_the_same_wherever_it_is():
    """One help, type and default for each name; of --set and --preset, which settings there are is the command's."""
    meanings = {}
    for _, command in leaves():
        for each in command.params:
            if isinstance(each, click.Option):
                text = each.help.partition(":")[0] if each.name == "assigned" else each.help
                meaning = (tuple(each.opts), each.type.name, text, str(each.default), each.is_flag, each.multiple)
                meanings.setdefault(each.name, set()).add(meaning)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}
    # A flag that is spelled the same is the same option.
    flags = [flag for found in meanings.values() for flag in next(iter(found))[0]]
    assert len(flags) == len(set(flags))


def test_an_option_of_a_setting_has_the_name_and_the_default_of_the_runs_record():
    fields = {field.name: field for field in msgspec.structs.fields(RunSettings)}
    described = typed.described(RunSettings)
    found = 0
    for _, command in leaves():
        for each in command.params:
            name = max(each.opts, key=len).removeprefix("--").replace("-", "_")
            if isinstance(each, click.Option) and name in fields:
                default = fields[name].default
                shown = re.search(r"\[default: (.+)\]$", each.help)
                assert each.help.startswith(described[name])
                assert not isinstance(each.default, int | float | str)
                assert (shown and shown[1]) == (
                    None if default in (None, msgspec.NODEFAULT) or default is False else str(default)
                )
                found += 1
    assert found > 100


def test_the_command_line_is_small_enough_to_learn():
    counted = {name: sum(isinstance(each, click.Option) for each in command.params) for name, command in leaves()}
    assert sum(counted.values()) + len(cli.params) <= 220
    assert counted["train"] <= 45
    for name, command in leaves():
        brief, full = (printed(*name.split(), flag) for flag in ("--help", "--help-all" if command.rare else "--help"))
        assert len(options_of(brief)) <= 15, name
        assert len(options_of(full)) == counted[name], name


def options_of(text):
    """The options in a help, but those of help."""
    found = re.findall(r"^  (?:-h)? +(--[a-z-]+)|^  (--[a-z-]+)", text, re.M)
    return {each for pair in found for each in pair if each} - {"--help", "--help-all"}


def typed_as(name, value):
    """A parameter of a sampling as an option, or by --set."""
    return ("--set", f"{name}={value}") if name in _options.MORE else (f"--{name.replace('_', '-')}", value)


@pytest.mark.parametrize("word", SAMPLINGS)
def test_every_command_and_file_reads_a_sampling_alike(word, tmp_path):
    """What is refused of a sampling is a matter of its type: see test_sampling_kinds.py."""
    given = shared.drawn(word).parameters
    flags = [each for name, value in given.items() for each in typed_as(name, value)]
    level = {"rounds": 16, "clients_per_round": 3, "delta": 1e-4, "noise_multiplier": 4.0}
    schema = RunSettings(**level, sampling=word, **given).participation()
    for command in (
        ["account", "identity", "--noise-multiplier", 4, "--rounds", 16, "--delta", 1e-4, *COHORTS],
        ["show", "identity", "--rounds", 16],
        ["optimize", "dense", "--rounds", 16, "--out", tmp_path / "dense"],
    ):
        found = result_of(*command, "--sampling", word, *flags)
        kind = type(schema).__name__
        assert [found[name] for name in ("participation", "min_sep", "max_participations")] == [
            *(kind, schema.min_sep, schema.max_participations)
        ]
