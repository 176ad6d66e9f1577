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
FILES = PAGE.with_name("workers")
LINES = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)).splitlines()
COMPOSE = (FILES / "compose.yaml").read_text()


def parsed(words):
    """The options of one of our command lines."""
    command = cli.get_command(click.Context(cli), words[0])
    return command.make_context(words[0], list(words[1:])).params


def read(text):
    """Reads a compose file: nested mappings of words and one-line lists, with anchors at the top level."""
    anchors, top = {}, {}
    stack = [(-1, top)]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        key, value = line.strip().split(":", 1)
        value = value.strip()
        while stack[-1][0] >= indent:
            stack.pop()
        if value.startswith("*"):
            stack[-1][1][key] = anchors[value[1:]]
        elif not value or value.startswith("&"):
            anchors[value[1:]] = stack[-1][1][key] = {}
            stack.append((indent, stack[-1][1][key]))
        else:
            stack[-1][1][key] = json.loads(value) if value[0] in '["' or value in ("true", "false") else value
    return top


def reachable(text):
    """The services of a compose file that can be reached from outside its networks."""
    file = read(text)
    found = [name for name, network in file["networks"].items() if network.get("internal") is not True]
    for name, service in file["services"].items():
        if {"ports", "network_mode", "privileged", "cap_add", "extra_hosts"} & set(service):
            found.append(name)
        if not service["networks"] or not set(service["networks"]) <= set(file["networks"]):
            found.append(name)
    return found


def test_the_containers_are_only_on_an_internal_network():
    assert reachable(COMPOSE) == []
    for old, new, found in (
        ("internal: true", "internal: false", ["workers"]),
        ("internal: true", "driver: bridge", ["workers"]),
        ("  init: true\n\nservices", '  ports: ["7000:7000"]\n\nservices', ["one", "two"]),
        ('    networks: ["workers"]', '    networks: ["default"]', ["train"]),
        ('    networks: ["workers"]', '    networks: ["workers"]\n    network_mode: host', ["train"]),
    ):
        assert COMPOSE.count(old) == 1, old
        assert reachable(COMPOSE.replace(old, new)) == found


def test_the_containers_run_existing_commands():
    services = read(COMPOSE)["services"]
    train = parsed(services["train"]["command"])
    assert services["train"]["depends_on"] == ["one", "two"]
    assert train["workers"] == "one:7000,two:7000"
    for name in ("one", "two"):
        worker = parsed(services[name]["command"])
        # The container has a network of its own.
        assert (worker["port"], worker["public"]) == (7000, True)
        assert services[name]["volumes"] == services["train"]["volumes"][:1]


def test_the_commands_of_the_page_exist():
    ours = [shlex.split(line, comments=True)[1:] for line in LINES if line.startswith("tff-mf")]
    assert len(ours) >= 3
    for words in ours:
        options = parsed(words)
        if words[0] == "train":
            addresses = tuple(options["workers"].split(","))
            assert ExecutionSettings(workers=addresses).workers == addresses
    for name in re.findall(r"\(workers/([^)]+)\)", PAGE.read_text()):
        assert (FILES / name).is_file(), name


def test_socket_addresses_are_absolute_paths():
    assert ExecutionSettings(workers=("unix:/run/one.sock", "one.internal:7000")).workers
    for wrong in ("unix:", "unix:one.sock", "unix:/a path", "unix:/one,two", "localhost:0", "localhost"):
        with pytest.raises(tff_mf.InputError, match="is not an address"):
            ExecutionSettings(workers=(wrong,))
