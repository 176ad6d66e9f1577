"""The files and commands of docs/workers.md restrict access as the page says; recipes.py runs them, as root."""

import json
import pathlib
import re
import shlex
import shutil
import subprocess

import click
import pytest

import tff_mf
from tff_mf.experiments.cli import cli
from tff_mf.experiments.runs.execution import ExecutionSettings

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "workers.md"
FILES = PAGE.with_suffix("")
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


def sections(name):
    """Reads a stunnel file: the settings of each service; those before the first service apply to all."""
    common, *services = re.split(r"^\[(\w+)\]$", (FILES / name).read_text(), flags=re.M)
    options = {names: dict(re.findall(r"^(\w+) = (.*)$", common + text, re.M)) for names, text in pairs(services)}
    assert options
    return options


def pairs(items):
    return zip(items[::2], items[1::2], strict=True)


def test_tls_checks_the_certificates_of_both_sides():
    (worker,) = sections("stunnel-worker.conf").values()
    assert worker["connect"] == "/run/tff-mf/own.sock"
    assert "client" not in worker
    train = sections("stunnel-train.conf")
    assert list(train) == ["one", "two"]
    for name, service in train.items():
        assert service["client"] == "yes"
        assert service["accept"] == f"/run/tff-mf/{name}.sock"
        assert service["connect"] == f"{service['checkHost']}:7443"
    for service in (worker, *train.values()):
        assert service["verifyChain"] == "yes"
        assert service["CAfile"].endswith("ca.pem")
        assert service["sslVersionMin"] == "TLSv1.3"


def test_the_firewall_drops_everything_that_it_does_not_accept():
    text = (FILES / "firewall.nft").read_text()
    rules = [line.strip() for line in re.search(r"chain input \{(.*?)\}", text, re.S)[1].strip().splitlines()[1:]]
    assert [rule.split()[-1] for rule in rules] == ["accept", "accept", "drop"]
    assert rules[-1] == "tcp dport $port drop"
    assert "meta skuid != $user reject" in text


@pytest.mark.skipif(shutil.which("nft") is None, reason="nftables is not installed")
def test_nftables_reads_the_firewall():
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system allows no network namespace")
    done = subprocess.run([*namespace, "nft", "-c", "-f", FILES / "firewall.nft"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_socket_addresses_are_absolute_paths():
    assert ExecutionSettings(workers=("unix:/run/one.sock", "one.internal:7000")).workers
    for wrong in ("unix:", "unix:one.sock", "unix:/a path", "unix:/one,two", "localhost:0", "localhost"):
        with pytest.raises(tff_mf.InputError, match="is not an address"):
            ExecutionSettings(workers=(wrong,))
