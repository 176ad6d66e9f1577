"""Runs the server of a deployment from the files of its bundle, with Python 3.11 and TensorFlow alone.

    python bundle/runner.pyz start deployment                         state of round 0, in a new folder
    python bundle/runner.pyz prepare deployment --devices chosen.txt  round 1 begins: deployment/sent.safetensors
    ...                                                               devices train; each file: deployment/updates/
    python bundle/runner.pyz accumulate deployment                    as often as you like: checks, clips, adds, deletes
    python bundle/runner.pyz update deployment                        deployment/models/round-000001.safetensors
    python bundle/runner.pyz resume deployment                        after a crash: finishes what was left half done
    python bundle/runner.pyz stop deployment                          deletes every secret file; no round follows

Each command prints one line of JSON. Exit status: 0 done, 2 refused with one line on stderr, 1 anything else.

A device is sent `sent.safetensors`. It answers with a safetensors file of the tensors that `device/work` returns, with
the metadata of `sent.safetensors` copied. The program that receives this file must authenticate the device, write the
file under a name that begins with a dot, and rename it to `updates/DEVICE.safetensors`.

Whether a report is late is decided by the file's modification time here: do not preserve a time set by the device.

Refused reports are counted by reason ("damaged", "shape", "duplicate", "late" and so on); none of them makes a command
fail. The bundle's graphs scale updates that are longer than the clip norm and replace updates that are not finite with
zero; both are counted. The counts depend on what devices sent and have no noise: they are for the operator only.

Formal guarantee: the state of a round is on disk before its model is written, and each state is stepped once, by one
process; a round whose model was written is never run again, however often a process is killed. A state that is older
than the ledger or the models beside it is refused; that the whole folder was replaced by an older copy cannot be
noticed. Each device is counted at most once in a round, and is refused if it was chosen sooner or more often than
`run.json` accounts for.

These files are secret, with modes 0700 and 0600: `checkpoints/`, `updates/`, `taken/`, `sum.safetensors`, and files
named `.….tff-mf.tmp`, which a killed process leaves and the next one deletes. A line of `ledger.jsonl` that was changed
or removed is noticed, and so is a line of `participation.csv`; that both were rewritten cannot be noticed.
"""

import argparse
import json
import math
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from ....base.errors import InputError, InputValueError
from ._deployment import opened, start


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("start", "prepare", "accumulate", "update", "stop", "resume", "status"))
    parser.add_argument("deployment", type=pathlib.Path, help="the deployment's folder")
    parser.add_argument("--devices", type=pathlib.Path, help="prepare: file that names the chosen devices, one a line")
    parser.add_argument("--minutes", type=float, help="prepare: time for reports")
    parser.add_argument(
        "--again", action="store_true", help="prepare: give up the round that was begun, and its reports"
    )
    parser.add_argument("--digest", help="start: the bundle's digest, as tff-mf export printed it")
    parser.add_argument("--test-only", action="store_true", help="start: accept a bundle whose noise protects nobody")
    return parser


def _run(given: argparse.Namespace, bundle: pathlib.Path) -> dict[str, Any]:
    """Runs the command that was given, and returns what it prints."""
    if given.command == "start":
        return start(given.deployment, bundle, digest=given.digest, test_only=given.test_only)
    with opened(given.deployment, bundle) as deployment:
        if given.command != "prepare":
            return getattr(deployment, "status" if given.command == "resume" else given.command)()
        if given.devices is None:
            raise InputValueError("--devices is missing: name the file of the chosen devices.")
        if given.minutes is not None and not 0 < given.minutes < math.inf:
            raise InputValueError(f"--minutes={given.minutes} must be more than 0.")
        try:
            lines = given.devices.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputValueError(f"devices={str(given.devices)!r} cannot be read: {error}.") from error
        devices = [line.strip() for line in lines if line.strip()]
        return deployment.prepare(devices, minutes=given.minutes, again=given.again)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and returns its exit status."""
    given = _arguments().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # This file is in a program, which is in a bundle.
    bundle = next(each.parent for each in pathlib.Path(__file__).resolve().parents if each.suffix == ".pyz")
    try:
        found = _run(given, bundle)
    except (InputError, OSError) as error:
        print(f"runner: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps(found))
    return 0
