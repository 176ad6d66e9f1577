"""Ways to tamper with the folder of a bundle, and with its runner."""

import os
import pathlib

from tampering import Way, deep, linked, manifested, placed, programmed, socket_at, sparse, together, written

RUNNER = "runner.pyz"
_OWN, _SHARED = "experiments/bundles/runner", "experiments/runs"
_SAVE = "    def save(self, round_number: int, state: Tensors, about: Mapping[str, Any]) -> None:\n"
_DOC = '        """Saves a state of the stages; see `Checkpoints.save`."""\n'
_REMOVE = "    files.remove_unfinished(folder)\n"
_RULE = "        others = [number for number in past if number != round_number]\n"
RUNNERS = (
    *(
        Way(name, programmed(*change))
        for name, change in {
            "a runner that checks no file": (f"{_OWN}/_bundle", "    while waiting:\n", "    while False:\n"),
            "a runner that checks no hash": (
                f"{_OWN}/_bundle",
                'digest.hexdigest() == expected["sha256"]',
                'len(digest.hexdigest()) == len(expected["sha256"])',
            ),
            "a runner that checks no update": (
                f"{_OWN}/_files",
                "    if update.keys() != types.keys():",
                "    return dict(update)\n    if False:",
            ),
            "a runner that asks for no digest": (
                f"{_OWN}/_bundle",
                "if digest not in (None,",
                "if False and (None,",
            ),
            "a runner that chooses anybody": (f"{_SHARED}/rules", _RULE, '        return ""\n' + _RULE),
            "a runner that prints the keys": (
                f"{_OWN}/_deployment",
                _SAVE + _DOC,
                _SAVE + _DOC + '        print(_one(state, "noise__keys"))\n',
            ),
            "a runner that leaves all readable": (
                "base/checkpoint_files",
                "files.atomic_file(path, mode=0o600,",
                "files.atomic_file(path, mode=0o644,",
            ),
            "a runner that deletes no secrets": (f"{_SHARED}/checkpoints", _REMOVE, _REMOVE + "    return\n"),
            "a runner that fetches more": (
                f"{_OWN}/__init__",
                "from ._bundle import INITIAL",
                "import urllib.request\n\nfrom ._bundle import INITIAL",
            ),
            "a comment in the runner": (f"{_OWN}/commands", "def main(", "# audited\ndef main("),
            "a package that is empty no more": ("base/__init__", "", "import urllib.request\n"),
        }.items()
    ),
    Way("a program before the runner", written(RUNNER, lambda old: b"#!/bin/sh\n" + old)),
    Way("bytes behind the runner", written(RUNNER, lambda old: old + b"\0")),
    Way("a runner of other line ends", written(RUNNER, lambda old: old.replace(b"\n", b"\r\n"))),
    Way("a runner that is empty", written(RUNNER, lambda old: b"")),
    Way("a second runner beside it", placed(lambda f: (f / "tensorflow.py").write_text("print('mine')\n"))),
    Way("a graph in its place", written(RUNNER, lambda old: b"\0" * 100)),
)
FOLDERS = (
    Way("a fingerprint", placed(lambda f: (f / "server/update/fingerprint.pb").write_bytes(b"")), listed=False),
    Way(
        "a link to a file inside",
        placed(lambda f: ((f / "planned.md").unlink(), (f / "planned.md").symlink_to("run.json"))),
        listed=False,
    ),
    Way("a link to a file outside", linked("run.json", "outside.json"), listed=False),
    Way("a link to a folder outside", linked("server/update", "outside"), listed=False),
    Way("a manifest that is a link", linked("manifest.json", "outside.manifest"), listed=False),
    Way("a pipe", placed(lambda f: ((f / "run.json").unlink(), os.mkfifo(f / "run.json"))), listed=False),
    Way(
        "a manifest that is a pipe",
        placed(lambda f: ((f / "manifest.json").unlink(), os.mkfifo(f / "manifest.json"))),
        listed=False,
    ),
    Way("a socket", placed(lambda f: ((f / "run.json").unlink(), socket_at(f / "run.json"))), listed=False),
    Way(
        "a device",
        placed(lambda f: ((f / "run.json").unlink(), (f / "run.json").symlink_to("/dev/zero"))),
        listed=False,
    ),
    Way("a file that runs as its owner", placed(lambda f: (f / "run.json").chmod(0o4755))),
    Way("a file that all may write", placed(lambda f: (f / "run.json").chmod(0o666))),
    Way("a folder that its group may write", placed(lambda f: (f / "server").chmod(0o770))),
    Way("one file more", placed(lambda f: (f / "device/more").write_text("")), listed=False),
    Way("one file more, listed", placed(lambda f: (f / "device/more").write_text(""))),
    Way("an empty folder", placed(lambda f: (f / "device/work/assets").mkdir())),
    Way(
        "a folder in the place of a file",
        placed(lambda f: ((f / "run.json").unlink(), (f / "run.json").mkdir())),
        listed=False,
    ),
    Way("a name of two lines", placed(lambda f: (f / "a\nverified: its files").write_text("")), listed=False),
    Way("a name of two lines, listed", placed(lambda f: (f / "a\nverified: its files").write_text(""))),
    Way("a name that moves the cursor", placed(lambda f: (f / "\x1b[2Jverified").write_text("")), listed=False),
    Way("a name in capitals", placed(lambda f: (f / "Run.json").write_text(""))),
    Way(
        "a name that is no text",
        placed(lambda f: pathlib.Path(os.fsdecode(bytes(f) + b"/\xff")).write_text("")),
        listed=False,
    ),
    Way("folders 3,000 deep", placed(deep), listed=False),
    Way("a folder that holds itself", placed(lambda f: (f / "server/loop").symlink_to("..")), listed=False),
    Way("a file of ten gigabytes", placed(lambda f: sparse(f / "run.json", 10 * 10**9)), listed=False),
    Way(
        "a file of two gigabytes, listed",
        together(
            manifested(lambda m: m["files"]["server/initial.safetensors"].update(bytes=2 * 10**9)),
            placed(lambda f: sparse(f / "server/initial.safetensors", 2 * 10**9)),
        ),
        listed=False,
    ),
    Way("a signature in it", placed(lambda f: (f / "manifest.json.sig").write_text("")), listed=False),
)
