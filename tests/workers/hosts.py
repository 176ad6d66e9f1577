"""Several hosts on one machine: network namespaces connected by a switch in another namespace."""

import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

# Addresses reserved for documentation, used only inside these namespaces.
ADDRESSES = {"one": "192.0.2.11", "two": "192.0.2.12", "train": "192.0.2.10", "other": "192.0.2.20"}
_NAMES = pathlib.Path("/etc/netns")


class Hosts:
    """Hosts named `one.internal` and so on, which are removed at the end of a `with` block."""

    def __init__(self) -> None:
        self._mark = f"tff-mf-{os.getpid()}"
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Hosts":
        switch = self._namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host, address in ADDRESSES.items():
            name = self._namespace(host)
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", host, "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _ip("-n", name, "link", "set", interface, "up")
            # `ip netns exec` shows them as /etc.
            (_NAMES / name).mkdir(parents=True)
            lines = ["127.0.0.1 localhost", *(f"{each} {other}.internal" for other, each in ADDRESSES.items())]
            (_NAMES / name / "hosts").write_text("\n".join(lines) + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for host in ("switch", *ADDRESSES):
            subprocess.run(["ip", "netns", "delete", self._namespace(host)], stderr=subprocess.DEVNULL)
            shutil.rmtree(_NAMES / self._namespace(host), ignore_errors=True)

    def stop(self) -> None:
        """Ends everything that was started on the hosts."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)
        self._processes = []

    def start(self, host: str, command: Sequence[str], log: pathlib.Path) -> subprocess.Popen:
        """Starts a command on a host, which ends with the hosts at the latest."""
        with log.open("w") as out:
            started = subprocess.Popen(self._on(host, command), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._processes.append(started)
        return started

    def run(self, host: str, command: Sequence[str], *, said: str | None = None) -> subprocess.CompletedProcess:
        """Runs a command on a host, for ten minutes at most, with `said` as its input."""
        return subprocess.run(self._on(host, command), input=said, capture_output=True, text=True, timeout=600)

    def _on(self, host: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._namespace(host), *command]

    def _namespace(self, host: str) -> str:
        return f"{self._mark}-{host}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
