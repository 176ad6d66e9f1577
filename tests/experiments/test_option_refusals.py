"""Options that mean nothing together are refused, and every option reads the same wherever it is."""

import pathlib
import re

import click
import msgspec
import pytest

import tff_mf
from tff_mf.experiments.cli import _options, cli
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling.settings import SAMPLINGS, parameters_of

from . import shared
from .shared import printed, result_of

DELTA = 1e-6


ACCOUNT = ["account", "identity", "--noise-multiplier", 1, "--rounds", 9, "--delta", DELTA]
COHORTS = ["--population", 90, "--clients-per-round", 3]
SAMPLED = ["--sampling", "cyclic-poisson", *COHORTS]
BINS = ["--sampling", "balls-in-bins", *COHORTS]
POISSON = ["--sampling", "poisson", *COHORTS]
LEVEL = ["--epsilon", 1, "--delta", DELTA]
OPTIMIZE = ["--rounds", 9, "--out", "new"]
ONCE = ["--sampling", "single"]
THREE = ["--groups", 3]
MOMENTUM = ["--workload", "momentum", "--server-momentum", 0.5]
REFUSED = [
    (ACCOUNT, "sampling='single' for at most once"),
    ([*ACCOUNT, "--min-sep", 2], "max_participations missing"),
    ([*ACCOUNT, "--max-participations", 2], "min_sep missing"),
    ([*ACCOUNT, "--sampling", "fixed-epochs"], "min_sep and max_participations missing"),
    ([*ACCOUNT, *ONCE, "--server-momentum", 0.9], "server_momentum=0.9 goes with workload 'momentum' or"),
    ([*ACCOUNT, *ONCE, "--workload", "momentum", "--server-momentum", 1], "server_momentum=1.0 must lie in [0, 1)"),
    ([*ACCOUNT, *ONCE, "--workload", "momentum", "--server-momentum", "nan"], "must be finite"),
    (
        [*ACCOUNT, *ONCE, "--workload", "learning-rates", "--set", "server_warmup=0.9", "--set", "server_cooldown=0.9"],
        "together exceed",
    ),
    ([*ACCOUNT, *ONCE, "--workload", "sums"], "'--workload': 'sums' is none of prefix-sum"),
    ([*ACCOUNT, *ONCE, "--objective", "rms"], "objective='rms' does not go with mechanism='identity'"),
    ([*ACCOUNT, *ONCE, "--bands", 2], "bands=2 does not go with mechanism='identity'"),
    ([*ACCOUNT, *ONCE, "--buffers", 2], "buffers=2 does not go with mechanism='identity', only with blt"),
    ([*ACCOUNT, *ONCE, "--restart-every", 0], "restart_every=0 must be at least 1"),
    ([*ACCOUNT, *ONCE, "--adjacency", "add-one"], "'--adjacency': 'add-one' is none of"),
    ([*ACCOUNT, *SAMPLED, *THREE, "--adjacency", "replace-one"], "leave one out"),
    ([*ACCOUNT, *SAMPLED, *THREE, "--restart-every", 3], "leave one out"),
    ([*ACCOUNT, *SAMPLED], "groups missing, which sampling='cyclic-poisson' needs"),
    ([*ACCOUNT, *SAMPLED, *THREE, "--max-participations", 3], "max_participations=3 does not go with"),
    ([*ACCOUNT, *SAMPLED, *THREE, "--min-sep", 3], "min_sep=3 does not go with sampling='cyclic-poisson'"),
    ([*ACCOUNT, *SAMPLED[:4], *THREE], "clients_per_round missing, which sampling='cyclic-poisson' needs"),
    ([*ACCOUNT, *SAMPLED[:2], *SAMPLED[4:], *THREE], "population missing"),
    ([*ACCOUNT, "--sampling", "cyclic_poisson"], "did you mean 'cyclic-poisson'?"),
    ([*ACCOUNT, *POISSON, "--groups", 3], "groups=3 does not go with sampling='poisson'"),
    (["account", "tree-full", *ACCOUNT[2:], *POISSON], "amplify at most 1"),
    (["account", "blt", *ACCOUNT[2:], *SAMPLED, *THREE], "amplify at most 3"),
    (["account", "blt", *ACCOUNT[2:], *ONCE, *MOMENTUM], "workload='momentum'"),
    (["account", "banded", *ACCOUNT[2:], *ONCE, "--objective", "max"], "banded minimizes RmsLoss"),
    (["show", "tree-full"], "--rounds is missing"),
    (["show", "identity", "--rounds", 9, *ONCE, "--restart-every", 3, "--plot", "x.png"], "--plot does not go with"),
    *(
        (["optimize", *search, *OPTIMIZE, *LEVEL], "min_sep and max_participations missing")
        for search in (["blt"], ["banded", "--bands", 4], ["dense"], ["structured", "--diagonals", 2, "--rank", 2])
    ),
    (["optimize", "banded", *OPTIMIZE], "--bands is missing"),
    (["optimize", "banded-toeplitz", *OPTIMIZE], "--bands is missing"),
    (["optimize", "dense", *OPTIMIZE, "--objective", "max"], "dense minimizes RmsLoss"),
    (["optimize", "dense", *OPTIMIZE, "--bands", 2], "bands=2 does not go with mechanism='dense'"),
    (["optimize", "blt", *OPTIMIZE, "--set", "unit_norms=false"], "unit_norms=False does not go with mechanism='blt'"),
    (["optimize", "structured", *OPTIMIZE], "--diagonals is missing"),
    (["optimize", "blt", *OPTIMIZE, "--rank", 2], "--rank goes with `optimize structured`"),
    (["optimize", "bandd", *OPTIMIZE], "did you mean 'banded'?"),
    ([*ACCOUNT, *ONCE, "--set", "hourz=2"], "did you mean 'hours'?"),
    ([*ACCOUNT, *ONCE, "--set", "hours"], "--set='hours' must be NAME=VALUE"),
    ([*ACCOUNT, *ONCE, "--set", "hours=2", "--set", "hours=3"], "given twice for hours"),
    ([*ACCOUNT, *ONCE, "--set", "hours=soon"], "hours='soon' must be a number"),
    (["train", "--rounds", 9, "--set", "rounds=9"], "--rounds and --set rounds do not go together"),
    (["optimize", "blt", *OPTIMIZE, *MOMENTUM], "workload='momentum'"),
    (
        [
            "optimize",
            "banded-inverse",
            *OPTIMIZE,
            "--bands",
            2,
            "--workload",
            "learning-rates",
            "--set",
            "server_warmup=0.5",
        ],
        "dense",
    ),
    (["optimize", "dense", *OPTIMIZE, "--epsilon", 1], "--epsilon and --delta go together"),
    (["optimize", "dense", *OPTIMIZE, "--population", 100], "--population goes with"),
    (["optimize", "dense", *OPTIMIZE, *SAMPLED], "groups missing"),
    (["optimize", "dense", *OPTIMIZE, *LEVEL, *SAMPLED, *THREE], "amplify at most 3"),
    (["optimize", "structured", *OPTIMIZE, "--diagonals", 2, "--rank", 8], "together exceed rounds=9"),
    (
        [
            "optimize",
            "structured",
            *OPTIMIZE,
            *["--diagonals", "2", "--rank", "2", "--workload", "momentum", "--server-momentum", "0.5"],
        ],
        "prefix sums",
    ),
    ([*ACCOUNT, *BINS, *THREE, "--adjacency", "replace-one"], "leave one out"),
    ([*ACCOUNT, *BINS], "groups missing, which sampling='balls-in-bins' needs"),
    (["optimize", "blt", *OPTIMIZE, *BINS], "--epsilon is missing"),
    (["optimize", "blt", *OPTIMIZE, *BINS, *LEVEL, "--groups", 0], "groups=0"),
    (["optimize", "blt", *OPTIMIZE, *BINS, *LEVEL, "--min-sep", 3], "min_sep=3 does not go with"),
    (
        ["optimize", "blt", *OPTIMIZE, *BINS, *LEVEL, *MOMENTUM],
        "--workload does not go with --sampling",
    ),
    (["optimize", "blt", *OPTIMIZE, *BINS, *LEVEL, "--adjacency", "replace-one"], "leave one out"),
    (["plan", "--rounds", 9, "--delta", DELTA, "--noise-multiplier", 1, *BINS], "--epsilon is missing"),
    (["plan", "--rounds", 9, "--delta", DELTA, "--epsilon", 1, *COHORTS, "--sampling", "timer"], "which takes min-sep"),
    (["plan", "--rounds", 9, "--delta", DELTA, "--epsilon", 1, *COHORTS, *THREE], "groups=3 does not go with"),
    (["optimize", "banded", *OPTIMIZE, *SAMPLED], "--epsilon is missing"),
    (["optimize", "banded", *OPTIMIZE, *POISSON, *LEVEL, "--bands", 2], "bands=2 exceeds min_sep=1"),
    (["optimize", "banded", *OPTIMIZE, *SAMPLED, *LEVEL, *THREE, "--bands", 2], "must be --groups 3"),
    (
        ["optimize", "banded", *OPTIMIZE, *SAMPLED, "--epsilon", 1, "--delta", 1e-6, "--set", "unit_norms=false"],
        "unit_norms=False does not go with",
    ),
    (
        [
            "optimize",
            "dense",
            *OPTIMIZE,
            "--restart-every",
            3,
            "--workload",
            "learning-rates",
            "--set",
            "server_warmup=0.5",
        ],
        "leave one of the two out",
    ),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_contradictory_options_are_refused_in_one_line(arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((click.UsageError, tff_mf.InputError)) as refused:
        printed(*arguments)
    message = refused.value.format_message() if isinstance(refused.value, click.UsageError) else str(refused.value)
    assert named in message
    assert "\n" not in message
    assert list(pathlib.Path().iterdir()) == []


def commands(group=cli, path=()):
    """Every command, by what is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_an_option_means_the_same_wherever_it_is():
    """One help, type and default for each name; of --set and --preset, which settings there are is the command's."""
    meanings = {}
    for _, command in commands():
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
    for _, command in commands():
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
    counted = {name: sum(isinstance(each, click.Option) for each in command.params) for name, command in commands()}
    assert sum(counted.values()) + len(cli.params) <= 220
    assert counted["train"] <= 45
    for name, command in commands():
        brief, full = (printed(*name.split(), flag) for flag in ("--help", "--help-all" if command.rare else "--help"))
        assert len(options_of(brief)) <= 15, name
        assert len(options_of(full)) == counted[name], name


def options_of(text):
    """The options in a help, but those of help."""
    found = re.findall(r"^  (?:-h)? +(--[a-z-]+)|^  (--[a-z-]+)", text, re.M)
    return {each for pair in found for each in pair if each} - {"--help", "--help-all"}


def _refused(call):
    with pytest.raises((click.UsageError, tff_mf.InputError)) as refused:
        call()
    return refused.value.format_message() if isinstance(refused.value, click.UsageError) else str(refused.value)


def typed_as(name, value):
    """A parameter of a sampling as an option, or by --set."""
    return ("--set", f"{name}={value}") if name in _options.MORE else (f"--{name.replace('_', '-')}", value)


@pytest.mark.parametrize("word", SAMPLINGS)
def test_every_command_and_file_reads_a_sampling_alike(word, tmp_path):
    """The same words and parameters, and the same refusal of a word, of a parameter too many, and of one that lacks."""
    given = shared.drawn(word).parameters
    flags = [each for name, value in given.items() for each in typed_as(name, value)]
    level = ["--rounds", 16, "--delta", 1e-4, *COHORTS]
    commands = {
        "account": ["account", "identity", "--noise-multiplier", 4, *level],
        "show": ["show", "identity", "--rounds", 16],
        "optimize": ["optimize", "dense", "--rounds", 16, "--out", tmp_path / "dense"],
    }

    def of_file(**changes):
        base = {"rounds": 16, "clients_per_round": 3, "delta": 1e-4, "noise_multiplier": 4.0, "sampling": word}
        return RunSettings(**{**base, **given, **changes}).participation()

    schema = of_file()
    for command in commands.values():
        found = result_of(*command, "--sampling", word, *flags)
        assert (found["participation"], found["min_sep"], found["max_participations"]) == (
            type(schema).__name__,
            schema.min_sep,
            schema.max_participations,
        )
    wrong = "groups" if "groups" not in parameters_of(word) else "hours"
    said = _refused(lambda: of_file(**{wrong: 3}))
    assert said.startswith(f"{wrong}=3 does not go with sampling={word!r}: leave it out")
    unknown = f"'{word.replace('-', '_')}s'"
    assert f"did you mean {word!r}" in _refused(lambda: of_file(sampling=unknown.strip("'")))
    lacking = next(iter(given), None) if word != "shuffled-epochs" else None
    for command in commands.values():
        line = [*command, "--sampling", word, *flags]
        assert _refused(lambda line=line: printed(*line, *typed_as(wrong, 3))).replace("=3.0", "=3") == said
        assert f"did you mean {word!r}" in _refused(
            lambda command=command: printed(*command, "--sampling", unknown.strip("'"), *flags)
        )
        if lacking:
            without = _refused(lambda: of_file(**{lacking: None}))
            assert without.startswith(f"{lacking} missing, which sampling={word!r} needs")
            assert _refused(lambda command=command: printed(*command, "--sampling", word, *flags[2:])) == without
