"""The help of every command: as wide as the terminal, and one option reads the same wherever it is."""

import collections

import click
import pytest
from click.testing import CliRunner

from tff_mf.experiments.cli import cli

from .test_screens import columns


def commands(command=cli, path=()):
    """Every command and group, by the words that it is called with."""
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found |= commands(command.get_command(context, name), (*path, name))
    return found


ALL = commands()
# What these are called is the same, and what they are is not: a file, a folder, a rate of the run or of the workload.
OF_THEIR_OWN = {
    "out": "an artifact, a data set, a folder, or the answers of a report",
    "rounds": "audit and verify take those of the artifact, or a few",
    "digest": "that of a report or of a bundle",
    "grid": "export takes that of the run or configuration by default",
    "dimension": "for the memory too in plan",
    "show": "a flag of train and train-central",
    "plot": "the pictures are different ones",
    "html": "the pages are different ones",
    "noise_multiplier": "of a cohort in train, with a default in audit",
    "epsilon": "in place of a noise multiplier in plan and train, and beside a mechanism in optimize",
    "delta": "with a default in audit",
    "adjacency": "with a default in audit that a run does not have",
    "population": "of devices in export",
    "clients_per_round": "those that train",
    "workload": "what a run is optimized for",
    "sampling": "how a run draws its cohorts, which amplifies nothing",
    "buffers": "of a run",
    "bands": "of a run",
    "round_minutes": "on average in train, and at most in export",
    "insecure_seed": "of a run or of a deployment",
    "preset": "of federated or of central training",
    "dataset": "of text or of images, or in place of that of every run in compare",
    "batch_size": "of a client, or of the whole data set",
    "clip_norm": "of updates or of gradients",
    "momentum": "of a workload, or of SGD",
    "warmup": "of a workload, or of SGD",
    "cooldown": "of a workload, or of SGD",
    "seed": "of cohorts, or of an order of examples",
}


def options():
    """For each name of an option its texts of help, and the commands that have it."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for path, command in ALL.items():
        for each in command.params:
            if isinstance(each, click.Option):
                found[each.name][each.help].append(" ".join(path))
    return found


@pytest.mark.parametrize("width", [1, 40, 80, 120])
def test_help_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert len(ALL) >= 25
    for path in ALL:
        found = CliRunner().invoke(cli, [*path, "--help"])
        assert found.exit_code == 0, path
        assert width < 80 or max(map(columns, found.stdout.splitlines())) <= min(width, 100), path


def test_every_option_and_command_says_what_it_is():
    for path, command in ALL.items():
        assert (command.help or "").split("\n\n")[0].rstrip().endswith("."), path
        for each in command.params:
            if isinstance(each, click.Option):
                text = (each.help or "").split("  [")[0]
                assert text.endswith("."), (path, each.name)
                assert len(text) < 170, (path, each.name)
            assert "TEXT" not in each.make_metavar(click.Context(command)), (path, each.name)


def test_one_option_has_the_same_help_everywhere():
    found = options()
    for name, texts in found.items():
        if name not in OF_THEIR_OWN:
            assert len(texts) == 1, (name, dict(texts))
    assert OF_THEIR_OWN.keys() <= found.keys()
    assert len(found["as_json"]) == 1
