"""`tff-mf doctor`: which layers work in this environment, and how to fix the others."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import re
from collections.abc import Mapping
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.base import required_packages

from ..output.console import Block, Facts
from . import _options
from ._screens import Answer

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
_TRAINING = ("tensorflow", "tensorflow-privacy", "tensorflow-federated")
_DEVELOPMENT = frozenset({"ruff", "pyrefly", "pytest", "hypothesis", "wheel", "setuptools"})
_FOR_TFF = ("tensorflow", "tensorflow_privacy", "tensorflow_federated")
# What each layer gives, what it needs, and what installs that, in the order in which layers need each other.
_LAYERS = {
    "mechanisms": (
        "optimize, show, account, plan, report",
        ("click", "dp_accounting", "jinja2", "markdown", "numpy", "rich_click", "safetensors", "scipy"),
        required_packages.CORE_COMMAND,
    ),
    "pictures": ("--plot, report.html", ("matplotlib",), required_packages.PLOT_COMMAND),
    "noise": ("tff_mf.queries", _FOR_TFF[:2], required_packages.INSTALL_COMMAND),
    "training": (
        "tff_mf.aggregators, train, compare, demo, export",
        _FOR_TFF,
        required_packages.INSTALL_COMMAND,
    ),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        ok: Whether the installed layers can work with it.
        text: The finding, with a remedy if it is not ok.
    """

    ok: bool
    text: str


@_options.command()
@click.option("--requirements", is_flag=True, help="Print the pinned packages, for `pip install --no-deps -r`.")
def doctor(requirements: bool) -> Answer | None:
    """Check the environment: which layers work, and how to fix the others.

    Exit status 1 if an installed layer would not work. A layer that is not installed is no error: mechanisms and
    accounting do not need TensorFlow.
    """
    if requirements:
        click.echo(_requirements(), nl=False)
        return None
    layers = [
        {"name": name, "gives": gives, "missing": _missing(packages), "remedy": _remedy(command)}
        for name, (gives, packages, command) in _LAYERS.items()
    ]
    findings = _findings(layers[0]["missing"])
    sound = all(each.ok for each in findings)
    facts = {
        "sound": sound,
        "version": tff_mf.__version__,
        "layers": [{**layer, "installed": not layer["missing"]} for layer in layers],
        "findings": [vars(each) for each in findings],
    }
    return Answer(facts, words(facts), failed=not sound)


def words(facts: Mapping[str, Any]) -> list[Block]:
    """Returns the verdict, and a line for each check and each layer."""
    failed = sum(not each["ok"] for each in facts["findings"])
    rows = [("ok  " if each["ok"] else "FAIL", each["text"]) for each in facts["findings"]]
    for layer in facts["layers"]:
        lacks = f": lacks {', '.join(layer['missing'])}. {layer['remedy']}" if layer["missing"] else ""
        rows.append(("–   " if layer["missing"] else "ok  ", f"{layer['name']} ({layer['gives']}){lacks}"))
    verdict = f"{failed} of {len(facts['findings'])} checks failed" if failed else "everything that is installed works"
    return [verdict, Facts(rows)]


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [package for package in packages if not required_packages.is_installed(package)]


def _remedy(command: str) -> str:
    if command == required_packages.INSTALL_COMMAND and required_packages.other_python():
        return f"{required_packages.other_python()}."
    return f"To have it, run: {command}"


def _requirements() -> str:
    """Returns `requirements.txt`, from the wheel or from the checkout."""
    package = pathlib.Path(tff_mf.__file__).parent
    for path in (package / "requirements.txt", package.parent / "requirements.txt"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError("requirements.txt is neither in the package nor beside it: reinstall tff-mf.")


def _findings(missing: list[str]) -> list[Finding]:
    """Returns the results of all checks, in the order in which problems should be fixed.

    Without TensorFlow, any Python, platform and versions are ok, even if TensorFlow Federated does not support them:
    the mechanisms do not need it.

    Args:
        missing: What the mechanisms lack.
    """
    lacks = f"not installed: {', '.join(missing)}. {_remedy(required_packages.CORE_COMMAND)}"
    first = [Finding(False, lacks)] if missing else []
    if len(_missing(_FOR_TFF)) == len(_FOR_TFF):
        return [*first, Finding(True, f"Python {platform.python_version()}"), _working_folder()]
    other = required_packages.other_python()
    # In another Python the pins cannot be installed, so that listing them would not help.
    pinned = [] if other else [*_packages(), _worker()]
    return [
        *first,
        Finding(not other, other or f"Python {platform.python_version()}"),
        _platform(),
        *pinned,
        _working_folder(),
    ]


def _platform() -> Finding:
    system, machine = platform.system(), platform.machine()
    ok = (system, machine) == ("Linux", "x86_64")
    only = ": TensorFlow Federated is published for Linux on x86-64 only; optimizing and accounting work"
    return Finding(ok, f"{system} on {machine}{'' if ok else only}")


def _packages() -> list[Finding]:
    pins = {name: pin for name, pin in _PIN.findall(_requirements()) if name not in _DEVELOPMENT}
    installed = {each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}
    found = {name: installed.get(name.lower().replace("_", "-")) for name in sorted(pins)}
    missing = [name for name, version in found.items() if version is None]
    differing = [
        f"{name} {version} (pinned {pins[name]})"
        for name, version in found.items()
        if version is not None and version != pins[name]
    ]
    training = " (training will not work)" if set(missing) & set(_TRAINING) else ""
    problems = {f"not installed{training}": missing, "not the pinned version": differing}
    return [
        Finding(False, f"{what}: {', '.join(names)}. Run: {required_packages.INSTALL_COMMAND}")
        for what, names in problems.items()
        if names
    ] or [Finding(True, f"{len(pins)} pinned packages are installed in the pinned versions")]


def _worker() -> Finding:
    try:
        files = importlib.metadata.files("tensorflow-federated") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(False, f"TFF's worker is missing. Run: {required_packages.INSTALL_COMMAND}")
    workers = [pathlib.Path(str(file.locate())) for file in files if file.name == "worker_binary"]
    ok = any(os.access(worker, os.X_OK) for worker in workers)
    return Finding(
        ok, f"TFF's worker can{'' if ok else 'not'} be run{'' if ok else f': {required_packages.INSTALL_COMMAND}'}"
    )


def _working_folder() -> Finding:
    ok = os.access(pathlib.Path.cwd(), os.W_OK)
    return Finding(ok, f"this folder can{'' if ok else 'not'} be written{'' if ok else ': change to another'}")
