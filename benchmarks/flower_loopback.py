"""A SuperLink with TLS and node authentication and SuperNode processes on one machine, some of them hostile.

python benchmarks/flower_loopback.py FOLDER [--rounds 60] [--nodes 5] [--hostile 1] [--kills 0] [--seconds 3600]: trains
the app of `tff_mf.experiments.flower` and prints what came of it as JSON. With --kills, the SuperLink is killed
(SIGKILL) at as many random moments of the whole run, every second time with the processes that it started, started
again with its database, and the run is submitted again. After --seconds it stops, and says how far the run came. Run it
in `.venv-flower`, on a machine that does nothing else: SuperExec starts a ServerApp again if it needs long to begin.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

from tff_mf.experiments import reports
from tff_mf.experiments.flower import app
from tff_mf.experiments.runs import ledger, run_record
from tff_mf.experiments.runs.names import LEDGER, REPORT

BIN = pathlib.Path(sys.executable).parent
# Longer than a round waits for nodes, at most.
STALLED_SECONDS = 420
# What a hostile node does in a round, in turns; as the app is, it is asked for integers. Honest nodes run the app's
# mods.
HOSTILE = '''"""A node that may be hostile: then it drops out, or sends what it should not."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

from next_word import client_app, mods


def hostile_mod(message, context, call_next):
    if not context.node_config.get("hostile"):
        return call_next(message, context)
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    kind = int(message.content["config"]["server-round"]) % 5
    if kind == 0:
        raise RuntimeError("out of battery")
    changed = {
        1: lambda value: np.full_like(value, np.nan),
        2: lambda value: np.full(value.shape, -(2**31), np.int32),
        3: lambda value: np.zeros(1, np.int32),
        4: lambda value: np.full(value.shape, 2**40, np.int64),
    }[kind]
    arrays = ArrayRecord({name: Array(changed(value)) for name, value in model.items()})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


app = ClientApp(mods=[hostile_mod, mods.integers_mod, fixedclipping_mod])
app.train()(client_app.train)
'''


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Federation:
    """The processes of one test; all of them end with the block."""

    def __init__(self, folder: pathlib.Path, nodes: int, hostile: int) -> None:
        self.folder, self.nodes, self.hostile = folder, nodes, hostile
        self.port = port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.env = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }

    def prepare(self) -> None:
        app.write(self.folder / "app")
        package = self.folder / "app" / "next_word"
        (package / "hostile.py").write_text(HOSTILE)
        project = self.folder / "app" / "pyproject.toml"
        project.write_text(project.read_text().replace("next_word.client_app:app", "next_word.hostile:app"))
        keys = self.folder / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        certificate = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes")
        made = ("-subj", "/CN=localhost", "-addext", names, "-keyout", keys / "server.key", "-out", keys / "server.pem")
        subprocess.run([*certificate, *made], check=True)
        for number in range(self.nodes):
            key = ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", keys / f"node-{number}")
            subprocess.run(key, check=True)
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder}/keys/server.pem"\n'
        )

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def start_superlink(self) -> None:
        keys = self.folder / "keys"
        self.start(
            "superlink",
            *(f"{BIN}/flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", f"{keys}/server.pem", "--ssl-certfile", f"{keys}/server.pem"),
            *("--ssl-keyfile", f"{keys}/server.key", "--enable-supernode-auth"),
            *("--database", str(self.folder / "superlink.db")),
        )
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise SystemExit("the SuperLink did not start: see superlink.log")

    def start_nodes(self) -> None:
        for number in range(self.nodes):
            self.flwr("supernode", "register", f"{self.folder}/keys/node-{number}.pub", "loopback")
            about = f"partition-id={number} num-partitions={self.nodes}"
            about += " hostile=1" if number < self.hostile else ""
            self.start(
                f"node-{number}",
                *(f"{BIN}/flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(port())),
                *("--root-certificates", f"{self.folder}/keys/server.pem"),
                *("--auth-supernode-private-key", f"{self.folder}/keys/node-{number}"),
                *("--node-config", about),
            )

    def flwr(self, *arguments: str) -> str:
        for _ in range(20):
            done = subprocess.run(
                [f"{BIN}/flwr", *arguments], env=self.env, cwd=self.folder, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return done.stdout
            time.sleep(1)
        raise SystemExit(f"flwr {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def kill(self, name: str, *, whole: bool) -> None:
        """Kills a process, the whole of its group or it alone: the others end by themselves when it is gone."""
        process = self.processes.pop(name)
        (os.killpg if whole else os.kill)(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def released(run: pathlib.Path) -> collections.Counter[int]:
    """Returns how often each round of the run in a folder was released, by its ledger."""
    path = run / LEDGER
    lines = path.read_text().splitlines() if path.exists() else []
    # The last line may be half written.
    return collections.Counter(json.loads(line)["round"] for line in lines if '"released"' in line and line[-1] == "}")


def written(run: pathlib.Path) -> float:
    """Returns when something was last written to the ledger of the run in a folder, on the monotonic clock."""
    path = run / LEDGER
    age = time.time() - path.stat().st_mtime if path.exists() else float("inf")
    return time.monotonic() - age


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    for name, value in (("rounds", 60), ("nodes", 5), ("hostile", 1), ("kills", 0), ("seed", 0), ("seconds", 3600)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    folder = given.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run, chance, started = folder / "run", random.Random(given.seed), time.monotonic()
    # Rounds after which the SuperLink is killed, once some part of the next one has passed.
    moments = sorted(chance.randrange(given.rounds) for _ in range(given.kills))
    federation = Federation(folder, given.nodes, given.hostile)
    settings = (
        f"out='{run}' rounds={given.rounds} clients-per-round=2 min-sep=2 simulation=false population={given.nodes} "
        f"max-participations={given.rounds // 2} nodes-seconds=300.0 replies-seconds=120.0"
    )
    killed = 0
    try:
        federation.prepare()
        run.mkdir()
        federation.start_superlink()
        federation.start_nodes()
        federation.flwr("run", "app", "loopback", "--run-config", settings)
        submitted = time.monotonic()
        while not (run / REPORT).exists() and time.monotonic() - started < given.seconds:
            if killed < given.kills and len(released(run)) >= moments[killed]:
                time.sleep(chance.uniform(0, 15))
                federation.kill("superlink", whole=killed % 2 == 1)
                killed += 1
                federation.start_superlink()
                federation.flwr("run", "app", "loopback", "--run-config", settings)
                submitted = time.monotonic()
            elif time.monotonic() - max(submitted, written(run)) > STALLED_SECONDS:
                # The new ServerApp has ended, since that of a killed SuperLink still held the folder.
                federation.flwr("run", "app", "loopback", "--run-config", settings)
                submitted = time.monotonic()
            time.sleep(0.5)
    finally:
        federation.stop()
    print(json.dumps(found(run, killed, time.monotonic() - started), indent=1))


def found(run: pathlib.Path, killed: int, seconds: float) -> dict:
    record, schema = ledger.read_ledger(run / LEDGER), run_record.read_record(run).schema
    past = collections.defaultdict(set)
    for line in record.begun:
        for client in line.clients:
            past[client].add(line.round)
    releases = released(run)
    counts = list(record.reports.values())
    return {
        "killed": killed,
        "seconds": round(seconds),
        "rounds released": len(releases),
        "released twice": sum(times > 1 for times in releases.values()),
        "attempts": len(record.begun),
        "nodes": len(past),
        "schema kept": all(schema.allows(sorted(rounds)) for rounds in past.values()),
        "ended": record.ended,
        "problems": [*record.problems, *record.impossible],
        "findings": reports.check(run).problems if record.ended else None,
        "replies": sum(each.came for each in counts),
        "refused, scaled or zeroed": sum(each.bad for each in counts),
        "checkpoints left": len(list((run / "checkpoints").glob("*"))),
    }


if __name__ == "__main__":
    main()
