"""The files and commands for several machines, in docs/tff-programs.md, restrict access as the page says."""

import json
import pathlib
import re
import shlex

import click
import pytest

import tff_mf
from tff_mf.experiments.cli import cli
from tff_mf.experiments.runs.folders import ExecutionSettings

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tff-programs.md"
LINES = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)).splitlines()
COMPOSE = (PAGE.parent / "workers" / "compose.yaml").read_text()


def parsed(words):
    """The options of one of our command lines."""
    command = cli.get_command(click.Context(cli), words[0])
    return command.make_context(words[0], list(words[1:])).params


def test_the_containers_are_only_on_an_internal_network():
    assert COMPOSE.endswith("\nnetworks:\n  workers:\n    internal: true\n")
    assert re.findall(r"^ +networks: (.+)", COMPOSE, re.M) == ['["workers"]'] * COMPOSE.count(" image:")
    assert not re.search(r"\b(ports|network_mode|privileged|cap_add|extra_hosts)\b", COMPOSE)


def test_the_containers_run_existing_commands():
    worker, train = (parsed(json.loads(words)) for words in re.findall(r"^ +command: (.+)", COMPOSE, re.M))
    # A container has a network of its own.
    assert (worker["port"], worker["public"], train["workers"]) == (7000, True, "one:7000,two:7000")
    assert re.findall(r"^  (\w+): \*worker$", COMPOSE, re.M) == ["one", "two"]
    assert 'depends_on: ["one", "two"]' in COMPOSE
    assert COMPOSE.count('volumes: ["./data:/data:ro"') == 2


def test_the_commands_of_the_page_exist():
    ours = [shlex.split(line, comments=True)[1:] for line in LINES if line.startswith("tff-mf")]
    assert len(ours) >= 3
    for words in ours:
        options = parsed(words)
        if words[0] == "train":
            addresses = tuple(options["workers"].split(","))
            assert ExecutionSettings(workers=addresses).workers == addresses


def test_socket_addresses_are_absolute_paths():
    assert ExecutionSettings(workers=("unix:/run/one.sock", "one.internal:7000")).workers
    for wrong in ("unix:", "unix:one.sock", "unix:/a path", "unix:/one,two", "localhost:0", "localhost"):
        with pytest.raises(tff_mf.InputError, match="is not an address"):
            ExecutionSettings(workers=(wrong,))
