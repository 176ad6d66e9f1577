"""`tff-mf doctor`, which layers work in this environment, and `tff-mf check`, whether sums of others are private."""

import dataclasses
import importlib
import importlib.metadata
import os
import pathlib
import platform
import re
import sys
from collections.abc import Iterator

import rich_click as click

import tff_mf
from tff_mf.base import required_packages
from tff_mf.base.errors import InputValueError

from ..output import console
from ..output.console import Facts
from . import _options
from ._screens import Answer

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
_DEVELOPMENT = frozenset({"ruff", "pyrefly", "pytest", "hypothesis", "wheel", "setuptools"})
_FOR_TFF = ("tensorflow", "tensorflow_privacy", "tensorflow_federated")
# What each layer gives, what it needs, and what installs that.
_LAYERS = {
    "mechanisms": (
        "optimize, show, account, plan, report",
        ("click", "dp_accounting", "jinja2", "markdown", "numpy", "rich_click", "safetensors", "scipy"),
        required_packages.CORE_COMMAND,
    ),
    "pictures": ("--plot, report.html", ("matplotlib",), required_packages.PLOT_COMMAND),
    "noise": ("tff_mf.queries", _FOR_TFF[:2], required_packages.INSTALL_COMMAND),
    "training": ("tff_mf.aggregators, train, compare, demo, export", _FOR_TFF, required_packages.INSTALL_COMMAND),
}


@_options.command
@click.option("--requirements", is_flag=True, help="Print the pinned packages, for `pip install --no-deps -r`.")
def doctor(requirements: bool) -> Answer | None:
    """Check the environment: which layers work, and how to fix the others.

    Exit status 1 if an installed layer would not work. A layer that is not installed is no error: mechanisms and
    accounting do not need TensorFlow.
    """
    if requirements:
        click.echo(_requirements(), nl=False)
        return None
    layers, other = [], required_packages.other_python()
    for name, (gives, packages, command) in _LAYERS.items():
        missing = [package for package in packages if not required_packages.is_installed(package)]
        remedy = other if other and packages[0] == "tensorflow" else f"To have it, run: {command}"
        layers.append({"name": name, "gives": gives, "missing": missing, "installed": not missing, "remedy": remedy})
    findings: list[tuple[bool, str]] = [
        (not layers[0]["missing"], f"tff-mf {tff_mf.__version__} in Python {platform.python_version()}"),
        *_of_tff(),
        (os.access(".", os.W_OK), "files can be written in this folder"),
    ]
    sound = all(ok for ok, _ in findings)
    rows = [("ok" if ok else "FAIL", text) for ok, text in findings]
    for layer in layers:
        lacks = f": lacks {', '.join(layer['missing'])}. {layer['remedy']}" if layer["missing"] else ""
        rows.append(("–" if layer["missing"] else "ok", f"{layer['name']} ({layer['gives']}){lacks}"))
    facts = {
        "sound": sound,
        "version": tff_mf.__version__,
        "layers": layers,
        "findings": [{"ok": ok, "text": text} for ok, text in findings],
    }
    verdict = "everything that is installed works" if sound else "something does not work"
    return Answer(facts, [verdict, Facts(rows)], failed=not sound)


def _of_tff() -> Iterator[tuple[bool, str]]:
    """Yields whether what TensorFlow Federated needs is there, and what it is; nothing if nobody installed that."""
    missing = [package for package in _FOR_TFF if not required_packages.is_installed(package)]
    if len(missing) == len(_FOR_TFF):
        return
    if missing:
        yield False, f"not installed: {', '.join(missing)}. Run: {required_packages.INSTALL_COMMAND}"
    other = required_packages.other_python()
    system = f"{platform.system()} on {platform.machine()}"
    yield system == "Linux on x86_64", f"{system}; TensorFlow Federated is published for Linux on x86_64 only"
    if other:
        # There the pins cannot be installed, so that listing them would not help.
        yield False, other
        return
    pins = {name: pin for name, pin in _PIN.findall(_requirements()) if name not in _DEVELOPMENT}
    installed = {each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}
    versions = {name: installed.get(name.lower().replace("_", "-"), "missing") for name in pins}
    other_versions = [
        f"{name} {version} (pinned {pins[name]})" for name, version in versions.items() if version != pins[name]
    ]
    remedy = f": {', '.join(other_versions)}. Run: {required_packages.INSTALL_COMMAND}" if other_versions else ""
    yield not other_versions, f"{len(pins) - len(other_versions)} of {len(pins)} packages are the pinned ones{remedy}"
    files = importlib.metadata.files("tensorflow-federated") if "tensorflow-federated" in installed else []
    workers = [file.locate() for file in files or [] if file.name == "worker_binary"]
    yield any(os.access(worker, os.X_OK) for worker in workers), "TFF's worker can be run"


def _requirements() -> str:
    """Returns `requirements.txt`, from the wheel or from the checkout."""
    package = pathlib.Path(tff_mf.__file__).parent
    for path in (package / "requirements.txt", package.parent / "requirements.txt"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError("requirements.txt is neither in the package nor beside it: reinstall tff-mf.")


@_options.command
@click.argument("subject", metavar="MODULE:FUNCTION")
def check(subject: str) -> Answer:
    """Judge an implementation of private sums, anybody's, by what it releases.

    FUNCTION of a module, in this folder or installed, returns what is checked, its claim, and a tree of arrays like a
    client's update: see tff_mf.conformance. Exit status 1 if a law is broken.
    """
    from tff_mf import conformance

    sys.path.insert(0, os.getcwd())
    module, colon, name = subject.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)() if colon else None
    except (ImportError, AttributeError) as error:
        raise InputValueError(f"subject={subject!r} cannot be loaded: {error}.") from error
    if not (isinstance(made, tuple) and len(made) == 3):
        raise InputValueError(f"subject={subject!r} must be MODULE:FUNCTION that returns (subject, claim, like).")
    checked, claim, like = made
    with console.bar("check", len(conformance.LAWS)) as advance:
        verdict = conformance.check(checked, claim, like=like, elsewhere=subject, progress=lambda law: advance(1, law))
    laws = {outcome.law: dataclasses.asdict(outcome) for outcome in verdict.outcomes}
    rows = [(law, f"{one['status']}: {conformance.LAWS[law]}. {one['text']}") for law, one in laws.items()]
    blocks = [verdict.status.upper(), Facts(rows)]
    return Answer({"status": verdict.status, "laws": laws}, blocks, failed=verdict.status == "failed")
