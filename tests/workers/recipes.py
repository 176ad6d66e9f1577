"""Runs the recipes of docs/workers.md for several machines, with network namespaces in place of machines.

python tests/workers/recipes.py [--only NAME]

Needs root, and of Debian's packages iproute2, socat, openssh-server, openssh-client, stunnel4, openssl and nftables.
Every recipe trains over two workers, compares the model with that of one local worker, and verifies the restrictions
that the recipe promises. Commands and files are those of the page; only names are replaced.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts as machines
import numpy as np
import safetensors.numpy

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "workers.md"
FILES = PAGE.with_suffix("")
TFF_MF = pathlib.Path(sys.executable).with_name("tff-mf")
FOLDER = "/run/tff-mf"
NEEDED = ("ip", "socat", "sshd", "ssh", "ssh-keygen", "stunnel", "openssl", "nft", "setpriv")
RUN = """--mechanism production:b100 --rounds 9 --min-sep 2 --max-participations 5 --clients-per-round 3
    --delta 1e-6 --noise-multiplier 0.01 --insecure-seed 7 --model conv --vocab-size 100 --embedding-size 4 --units 4
    --without-epsilon --max-examples 1 --batch-size 1 --evaluate-every 4 --evaluation-examples 20"""
WRITES_DATA = """
import sys
from tff_mf.experiments.training.datasets.pydoc import write_pydoc
write_pydoc(sys.argv[1], ["scipy"], progress=False)
"""
LISTENS = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as all_of_it, open(sys.argv[1], "wb", 0) as file:
    all_of_it.bind(("one", 0))
    print("listening", flush=True)
    while True:
        file.write(all_of_it.recv(2**16))
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
# A worker sends the first bytes; anything in between closes the connection or sends nothing.
PROBE = """
import socket, sys
*host, to = sys.argv[1:]
try:
    with socket.socket() if host else socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(3)
        probe.connect((*host, int(to)) if host else to)
        probe.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        print("answers" if probe.recv(100)[3:4] == b"\\x04" else "hung up on")
except ConnectionResetError:
    print("hung up on")
except OSError as error:
    print(type(error).__name__)
"""


class Recipes:
    """Everything that recipes share: hosts, a folder, data, and the expected model."""

    def __init__(self, hosts: machines.Hosts, folder: pathlib.Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._data = folder / "small.sqlite"
        subprocess.run([sys.executable, "-c", WRITES_DATA, self._data], check=True, capture_output=True)
        self._expected = self._model("alone", [])

    def command(self, begin: str) -> list[str]:
        """Returns the page's command with the given beginning, as one line."""
        text = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)).replace("\\\n", " ")
        (found,) = {line for line in text.splitlines() if line.startswith(begin)}
        return shlex.split(found.replace(FOLDER, str(self.folder)), comments=True)

    def socket(self, host: str) -> str:
        """Returns what stands for the path of a worker's own socket: all hosts have this machine's files."""
        return f"{self.folder}/own-{host}.sock"

    def file(self, name: str, host: str = "", **replaced: str) -> str:
        """Returns the path of a copy of a file beside the page, with names replaced."""
        text = (FILES / name).read_text().replace(f"{FOLDER}/own.sock", self.socket(host))
        text = text.replace(FOLDER, str(self.folder))
        for old, new in replaced.items():
            text, number = re.subn(rf"^(define {old} = ).*$", rf"\g<1>{new}", text, flags=re.M)
            assert number == 1, old
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def start(self, host: str, command: list[str], ready: str, name: str = "") -> subprocess.Popen:
        """Starts a command and waits until its log contains a word, or for a file if a path is given."""
        log = self.folder / f"{name or pathlib.Path(command[0]).name}-{host}.log"
        started = self.hosts.start(host, command, log)
        deadline = time.monotonic() + 180
        while not (pathlib.Path(ready).exists() if ready.startswith("/") else ready in log.read_text()):
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return started

    def worker(self, host: str, command: list[str]) -> subprocess.Popen:
        path = f"{TFF_MF.parent}{os.pathsep}{os.environ['PATH']}"
        return self.start(host, ["env", f"PATH={path}", *command], "worker at", "worker")

    def reaches(self, host: str, *to: str, by: tuple[str, ...] = ()) -> str:
        """Returns how a connection to a host and port, or to a socket, is answered, as TFF's client opens one."""
        return self.hosts.run(host, [*by, sys.executable, "-S", "-c", PROBE, *to]).stdout.strip()

    def trains(self, name: str, begin: str) -> str:
        """Trains with the page's addresses, and returns the difference of the model from that of a local worker."""
        command = self.command(begin)
        workers = command[command.index("--workers") :][:2]
        found = self._model(name, workers)
        largest = max(np.max(np.abs(found[key] - value)) for key, value in self._expected.items())
        assert largest < 1e-5
        return f"9 rounds over two workers; the model at most {largest:.0e} from that of a run on its own"

    def _model(self, name: str, workers: list[str]) -> dict[str, np.ndarray]:
        out = self.folder / "runs" / name
        command = [str(TFF_MF), "train", *shlex.split(RUN), "--dataset", f"sqlite:{self._data}", "--out", str(out)]
        done = self.hosts.run("train", [*command, *workers, "--json"])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
        return safetensors.numpy.load_file(out / "model.safetensors")


def expect(found: str, *wanted: str) -> str:
    assert found in wanted, (found, wanted)
    return found


def own_network(recipes: Recipes) -> list[str]:
    """The workers of the next two recipes, which cannot be reached without a tunnel."""
    for host in ("one", "two"):
        recipes.worker(host, [str(FILES / "worker.sh"), recipes.socket(host)])
    own, address = recipes.socket("one"), machines.ADDRESSES["one"]
    return [
        f"its user, on its machine: {expect(recipes.reaches('one', own), 'answers')}",
        "another user there: " + expect(recipes.reaches("one", own, by=tuple(NOBODY)), "PermissionError"),
        "its user, by the port: " + expect(recipes.reaches("one", "127.0.0.1", "7000"), "ConnectionRefusedError"),
        "another machine: " + expect(recipes.reaches("train", address, "7000"), "ConnectionRefusedError"),
    ]


def ssh(recipes: Recipes) -> list[str]:
    """An ssh tunnel, with a key that permits nothing else."""
    folder = recipes.folder
    for key in ("host_key", "key", "foreign_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (line,) = re.findall(r"^restrict,.*$", PAGE.read_text(), re.M)
    public = (folder / "key.pub").read_text()
    (folder / "authorized_keys").write_text(line[: line.index("ssh-ed25519")] + public)
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/key\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\nBatchMode yes\n"
    )
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"one.internal,two.internal {key}\n")
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    options = ["-F", str(folder / "ssh_config")]
    found, started = [], []
    for host in ("one", "two"):
        daemon = [shutil.which("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")]
        started.append(recipes.start(host, daemon, "Server listening"))
    for host in ("one", "two"):
        begin = f"ssh -N -o ExitOnForwardFailure=yes -L {FOLDER}/{host}.sock"
        program, *arguments = recipes.command(begin)
        arguments = [each.replace(f"{folder}/own.sock", recipes.socket(host)) for each in arguments]
        started.append(recipes.start("train", [program, *options, *arguments], f"{folder}/{host}.sock", f"ssh-{host}"))
    found.append(recipes.trains("ssh", "tff-mf train --preset pydoc-light --workers unix:"))
    mode = (folder / "one.sock").stat().st_mode & 0o777
    assert mode == 0o600, oct(mode)
    shell = recipes.hosts.run("train", ["ssh", *options, "one.internal", "echo", "came in"])
    assert "came in" not in shell.stdout, shell
    assert shell.returncode == 1, shell
    config = (folder / "ssh_config").read_text().replace(f"{folder}/key", f"{folder}/foreign_key")
    (folder / "foreign_config").write_text(config)
    foreign = recipes.hosts.run("train", ["ssh", "-F", str(folder / "foreign_config"), "-N", "one.internal"])
    assert "Permission denied" in foreign.stderr, foreign
    found.append("the socket has mode 0600; the same key for a shell: none; another key: denied")
    _end(started)
    return found


def tls(recipes: Recipes) -> list[str]:
    """TLS with certificates on both sides, with stunnel."""
    folder = recipes.folder
    making = [str(FILES / "certificates.sh"), "one.internal", "two.internal"]
    subprocess.run(making, cwd=folder, check=True, capture_output=True)
    started = []
    for host in ("one", "two"):
        shutil.copy(folder / f"{host}.internal.pem", folder / "worker.pem")
        for name in ("one.sock", "two.sock"):
            (folder / name).unlink(missing_ok=True)
        config = recipes.file("stunnel-worker.conf", host)
        started.append(recipes.start(host, ["stunnel", config], "Configuration successful"))
        time.sleep(1)  # it has read the certificate
    os.umask(0o077)
    config = recipes.file("stunnel-train.conf")
    started.append(recipes.start("train", ["stunnel", config], f"{folder}/two.sock"))
    with _Listening(recipes) as heard:
        found = [recipes.trains("tls", "tff-mf train --preset pydoc-light --workers unix:")]
    assert len(heard) > 100_000, len(heard)
    assert b"tensorflow_federated" not in heard
    found.append(f"{len(heard) / 1e6:.1f} MB to and from the first worker, and no name of TFF's in the clear")
    assert (folder / "one.sock").stat().st_mode & 0o777 == 0o700
    address = machines.ADDRESSES["one"]
    found.append("without TLS: " + expect(recipes.reaches("other", address, "7443"), "hung up on", "TimeoutError"))
    for certificate in ("none", "of another authority", "of a worker", "of the machine that trains"):
        found.append(f"certificate {certificate}: {_greets(recipes, certificate)}")
    _end(started)
    return found


def _greets(recipes: Recipes, certificate: str) -> str:
    """Returns whether a client with a given certificate can reach a worker."""
    folder = recipes.folder
    foreign = folder / "foreign"
    if not foreign.exists():
        foreign.mkdir()
        subprocess.run([str(FILES / "certificates.sh")], cwd=foreign, check=True, capture_output=True)
    files = {"of another authority": foreign / "train.pem", "of a worker": folder / "two.internal.pem"}
    command = ["openssl", "s_client", "-quiet", "-connect", "one.internal:7443", "-CAfile", str(folder / "ca.pem")]
    if certificate != "none":
        file = str(files.get(certificate, folder / "train.pem"))
        command += ["-cert", file, "-key", file]
    greeting = "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\000\\000\\000\\004\\000\\000\\000\\000\\000'; sleep 2"
    command = ["sh", "-c", f"({greeting}) | timeout 10 {shlex.join(command)} 2>/dev/null | wc -c"]
    length = int(recipes.hosts.run("other", command).stdout)
    assert (length > 0) == (certificate == "of the machine that trains"), (certificate, length)
    return "answers" if length else "turned away"


class _Listening:
    """Records the bytes that pass between the switch and the first worker during the block."""

    def __init__(self, recipes: Recipes) -> None:
        self._recipes = recipes
        self._heard = bytearray()
        self._file = recipes.folder / "heard"

    def __enter__(self) -> bytearray:
        command = [sys.executable, "-c", LISTENS, str(self._file)]
        self._process = self._recipes.start("switch", command, "listening")
        return self._heard

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._heard.extend(self._file.read_bytes())


def firewall(recipes: Recipes) -> list[str]:
    """Public workers behind nftables."""
    for host in ("one", "two"):
        recipes.worker(host, recipes.command("tff-mf worker --port 7000 --public"))
    address = machines.ADDRESSES["one"]
    before = expect(recipes.reaches("other", address, "7000"), "answers")
    rules = recipes.file("firewall.nft", user="0")
    for host in ("one", "two"):
        done = recipes.hosts.run(host, [*recipes.command("nft -f")[:2], rules])
        assert done.returncode == 0, done.stderr
    found = [f"another machine, without the rules: {before}"]
    with _Listening(recipes) as heard:
        found.append(recipes.trains("firewall", "tff-mf train --preset pydoc-light --workers one.internal:7000"))
    assert b"tensorflow_federated" in heard
    found.append(f"{len(heard) / 1e6:.1f} MB to and from the first worker, in the clear")
    for who, met in (
        ("the machine that trains", recipes.reaches("train", address, "7000")),
        ("another machine", recipes.reaches("other", address, "7000")),
        ("the worker's user there", recipes.reaches("one", "127.0.0.1", "7000")),
        ("another user there", recipes.reaches("one", "127.0.0.1", "7000", by=tuple(NOBODY))),
        ("another user there, by its address", recipes.reaches("one", address, "7000", by=tuple(NOBODY))),
    ):
        let_in = who in ("the machine that trains", "the worker's user there")
        found.append(f"{who}: {expect(met, *(['answers'] if let_in else ['TimeoutError', 'ConnectionRefusedError']))}")
    return found


def _end(started: list[subprocess.Popen]) -> None:
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


RECIPES = {"own": own_network, "ssh": ssh, "tls": tls, "firewall": firewall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RECIPES, help="and what it needs")
    only = parser.parse_args().only
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        sys.exit(f"needs root, and {', '.join(missing) or 'all that it needs is here'}")
    with tempfile.TemporaryDirectory() as folder, machines.Hosts() as hosts:
        recipes = Recipes(hosts, pathlib.Path(folder))
        for name, recipe in RECIPES.items():
            if only in (None, name) or (name == "own" and only in ("ssh", "tls")):
                if name == "firewall" and only is None:
                    hosts.stop()
                print(f"{name}:", *recipe(recipes), sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
