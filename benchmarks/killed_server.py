"""Kills the coordinator at 50 random moments in a run of 30 rounds with 20 % hostile devices.

    python benchmarks/killed_server.py               # 50 kills: some minutes
    python benchmarks/killed_server.py --kills 5     # a sample

Of five kills, two come at a random time, two at a random call that writes, links or deletes a file, and one between
saving a state and recording it in the ledger. The model is small, so that the server spends most of its time in rounds.
The exit status is 0 if no round was released twice and nothing was lost.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np
import safetensors.numpy
import tensorflow as tf
from _common import small_run

from tff_mf.experiments import bundles, coordination, reports
from tff_mf.experiments.bundles import runner
from tff_mf.experiments.run_folder import ledger, names, participation_log

ROUNDS, COHORT, DEVICES, SHARE = 30, 8, 320, 0.2
KINDS = (*coordination.MALFORMED, *coordination.POISONING)
TEXTS = ("of the function", "a value is the array", "returns an array of values")
WAYS = ("a time", "a call", "a time", "a call", "between state and ledger")
CALLS, CALLS_OF_A_ROUND, SECONDS_OF_A_ROUND = ("fsync", "link", "unlink", "replace"), 16, 0.3


def in_child(work) -> int:
    """Runs a function in a forked process, and returns the process id."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return child


def export(root: pathlib.Path) -> None:
    """Writes the bundle; no other process imports TFF."""
    from tff_mf.experiments.bundles import building
    from tff_mf.experiments.datasets.pydoc import write_pydoc

    write_pydoc(root / "data.sqlite", ["scipy"], progress=False)
    (root / "settings.toml").write_text(
        small_run(rounds=ROUNDS, cohort=COHORT, min_sep=5, max_participations=6, data=root / "data.sqlite")
    )
    building.export(
        bundles.read_source(root / "settings.toml"), root / "bundle", round_minutes=15.0, population=DEVICES
    )


def end() -> None:
    """Ends this process as abruptly as a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Ends this process at a call that changes files, once the fuse is armed."""

    def __init__(self, way: str, moment: int) -> None:
        self.armed, self._left = False, moment
        if way == "a call":
            for name in CALLS:
                setattr(os, name, self._counted(getattr(os, name)))
        elif way == "between state and ledger":
            save = runner.StateStore.save

            def saved(*arguments) -> str:
                digest = save(*arguments)
                if self.armed:
                    end()
                return digest

            runner.StateStore.save = saved

    def _counted(self, call):
        def counted(*arguments, **named):
            # An even moment is before a call, an odd one after it.
            for done in (False, True):
                if self.armed and self._left == 0:
                    end()
                self._left -= self.armed
                if not done:
                    result = call(*arguments, **named)
            return result

        return counted


def serve(root: pathlib.Path, way: str, moment: int, after: int) -> None:
    """Resumes the server; the fuse is armed after `after` released rounds."""
    from tff_mf.experiments.bundles.stages import Stages
    from tff_mf.experiments.coordination import _coordinator

    # Optimizing such small graphs in each call takes longer than running them.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # The bundle was checked once, before the first server.
    _coordinator.checked_copy = lambda folder: contextlib.nullcontext((folder, []))
    stages = Stages(root / "bundle")
    names = [f"device{index}" for index in range(DEVICES)]
    kinds = [stages.tokenize(list(TEXTS[: 1 + index])) for index in range(len(TEXTS))]
    hostile = random.Random(0).sample(names, round(SHARE * DEVICES))
    fleet = coordination.HostileFleet(
        root / "devices.jsonl",
        examples={name: kinds[index % len(kinds)] for index, name in enumerate(names)},
        policy=bundles.read_policy(root / "bundle"),
        work=stages.lite_work,
        settings=coordination.DeviceSettings(at_night=1.0, by_day=1.0),
        hostile={name: KINDS[index % len(KINDS)] for index, name in enumerate(hostile)},
        files=root / "files",
    )
    coordinator = coordination.Coordinator(root / "bundle", root / "run", fleet)
    fuse = Fuse(way, moment)
    fuse.armed = released(root) >= after

    def shown(number: int) -> None:
        fuse.armed = number >= after

    coordinator.run(shown)


def lines(root: pathlib.Path) -> str:
    """Returns the ledger so far."""
    path = root / "run" / names.LEDGER
    return path.read_text(encoding="utf-8") if path.exists() else ""


def released(root: pathlib.Path) -> int:
    """Returns the number of released rounds."""
    return lines(root).count('"released"')


def state(root: pathlib.Path) -> int:
    """Returns the round of the newest state."""
    return max((int(path.stem) for path in (root / "run" / "state").glob("[0-9]*.safetensors")), default=0)


def kill(root: pathlib.Path, times: int) -> tuple[collections.Counter, int]:
    """Kills the server at random moments and lets the last one finish.

    Returns:
        Counts of the kills by what had been written, and the status of the last server.
    """
    generator, moments = random.Random(0), collections.Counter()
    for index in range(times):
        way, after = WAYS[index % len(WAYS)], index * (ROUNDS - 2) // times
        before, moment = lines(root), generator.randrange(2 * CALLS_OF_A_ROUND)
        child = in_child(lambda way=way, moment=moment, after=after: serve(root, way, moment, after))
        if way == "a time":
            while lines(root) == before or released(root) < after:
                time.sleep(0.001)
                if os.waitpid(child, os.WNOHANG)[0]:
                    sys.exit("a server ended before it was killed")
            time.sleep(generator.uniform(0, SECONDS_OF_A_ROUND))
            os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            sys.exit("a server ended by itself")
        ahead = state(root) > released(root)
        moments["state newer than the ledger" if ahead else "ledger's last line: " + _kind(lines(root))] += 1
        print(index + 1, way, f"round {released(root)}", file=sys.stderr, flush=True)
    return moments, os.waitpid(in_child(lambda: serve(root, "", 0, 0)), 0)[1]


def _kind(text: str) -> str:
    last = text.rsplit("\n", 2)[-2:]
    return "cut off" if last[-1] else json.loads(last[0])["kind"]


def participations(run: pathlib.Path) -> dict[tuple[int, int | None], list[str]]:
    """Returns the clients of each attempt of each round in the server's log, in its order."""
    found: dict[tuple[int, int | None], list[str]] = {}
    for entry in participation_log.read_entries(run / names.PARTICIPATION):
        found.setdefault((entry.round_number, entry.attempt), []).append(entry.client)
    return found


def verdict(root: pathlib.Path) -> dict:
    """Returns the facts about a run that its files contain."""
    run = root / "run"
    record = ledger.read_ledger(run / names.LEDGER)
    seen = [json.loads(line) for line in (root / "devices.jsonl").read_text().splitlines()]
    models: dict[int, set[str]] = {}
    for entry in seen:
        models.setdefault(entry["round"], set()).add(entry["model"])
    # Clients of every attempt in the server's log, and the cohort of each released attempt.
    logged = participations(run)
    pairs = collections.Counter((entry["device"], entry["round"]) for entry in seen)
    # An attempt that was logged but not started has the number of the next.
    last = {number: logged[number, record.attempts[number]][-record.sizes[number] :] for number in record.released}
    report = json.loads((run / "report.json").read_text())["device_reports"]
    weights = safetensors.numpy.load_file(run / "model.safetensors").values()
    checks = [each for each in reports.check(run) if each.severity == "critical"]
    return {
        "rounds released": len(record.released),
        "released twice": sum(times > 1 for times in record.released.values()),
        "attempts begun": sum(record.attempts.values()),
        "rounds of which devices saw two models": sum(len(each) > 1 for each in models.values()),
        "models that devices saw": len(set().union(*models.values())),
        "participations by the server's log": sum(map(len, logged.values())),
        "by the devices' records": len(seen),
        "of them twice, or unknown to the server": sum(
            times > 1 or not any(number == of and device in who for (of, _), who in logged.items())
            for (device, number), times in pairs.items()
        ),
        "devices of released rounds without a record": sum(
            (device, number) not in pairs for number, who in last.items() for device in who
        ),
        "rounds without counts": ROUNDS - len(record.reports),
        "device reports": {name: each for name, each in report.items() if name != "note"},
        "model is finite": all(bool(np.isfinite(value).all()) for value in weights),
        "problems of the ledger": [*record.problems, *record.impossible],
        "report --check": sorted({f"{each.field}: {each.text}" for each in checks}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        if os.waitpid(in_child(lambda: export(root)), 0)[1]:
            sys.exit("there is no bundle")
        sys.modules["tensorflow_federated"] = sys.modules["tensorflow_privacy"] = None  # type: ignore[assignment]
        if bundles.refusals(root / "bundle"):
            sys.exit("the bundle is refused")
        moments, status = kill(root, given.kills)
        found = verdict(root)
    print(json.dumps({"kills": moments, "status of the last server": status, **found}, indent=1, ensure_ascii=False))
    nothing = ("released twice", "rounds of which devices saw two models", "of them twice, or unknown to the server")
    nothing += ("devices of released rounds without a record", "rounds without counts", "problems of the ledger")
    whole = found["rounds released"] == found["models that devices saw"] == ROUNDS and found["model is finite"]
    sys.exit(bool(status or not whole or any(found[name] for name in (*nothing, "report --check"))))


if __name__ == "__main__":
    main()
