"""Requirements of this project on the environment, and whether they are met."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import re

import tff_mf
from tff_mf.base import required_packages

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)
_TRAINING = ("tensorflow", "tensorflow-privacy", "tensorflow-federated")
_DEVELOPMENT = frozenset({"ruff", "pyrefly", "pytest", "hypothesis", "wheel", "setuptools"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of this project, which can be installed without the following ones.

    Attributes:
        name: Its name.
        gives: What it provides.
        missing: Required packages that are not installed.
        remedy: The command that installs them, or the reason why this Python cannot.
    """

    name: str
    gives: str
    missing: tuple[str, ...]
    remedy: str

    @property
    def installed(self) -> bool:
        """Whether all of it is installed."""
        return not self.missing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        ok: Whether the installed layers can work with it.
        text: The finding, with a remedy if it is not ok.
    """

    ok: bool
    text: str


_LAYERS = (
    (
        "mechanisms",
        "optimize, show, account, calibrate, plan, report",
        ("click", "dp_accounting", "numpy", "rich_click", "safetensors", "scipy"),
        "pip install tff-mf",
    ),
    ("pictures", "--plot, --html", ("jinja2", "matplotlib"), required_packages.PLOT_COMMAND),
    ("noise", "tff_mf.queries, audit", ("tensorflow", "tensorflow_privacy"), required_packages.INSTALL_COMMAND),
    (
        "training",
        "tff_mf.aggregators, train, compare, demo, export, verify",
        ("tensorflow", "tensorflow_privacy", "tensorflow_federated"),
        required_packages.INSTALL_COMMAND,
    ),
)


def layers() -> list[Layer]:
    """Returns every layer, installed or not, in the order in which they need each other."""
    return [
        Layer(
            name=name,
            gives=gives,
            missing=tuple(package for package in packages if not required_packages.is_installed(package)),
            remedy=_remedy(remedy),
        )
        for name, gives, packages, remedy in _LAYERS
    ]


def _remedy(command: str) -> str:
    if command == required_packages.INSTALL_COMMAND and required_packages.other_python():
        return f"{required_packages.other_python()}."
    return f"To have it, run: {command}"


def requirements_text() -> str:
    """Returns `requirements.txt`, from the wheel or from the checkout."""
    package = pathlib.Path(tff_mf.__file__).parent
    for path in (package / "requirements.txt", package.parent / "requirements.txt"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError("requirements.txt is neither in the package nor beside it: reinstall tff-mf.")


def examine() -> list[Finding]:
    """Returns the results of all checks, in the order in which problems should be fixed.

    Without TensorFlow, any Python, platform and versions are ok, even if TensorFlow Federated does not support them:
    the mechanisms do not need it.
    """
    found = {layer.name: layer for layer in layers()}
    mechanisms = found["mechanisms"]
    text = f"not installed: {', '.join(mechanisms.missing)}. {mechanisms.remedy}"
    first = [] if mechanisms.installed else [Finding(ok=False, text=text)]
    if not _any_of_tensorflow():
        return [*first, Finding(ok=True, text=f"Python {platform.python_version()}"), _working_folder()]
    # In another Python the pins cannot be installed, so that listing them would not help.
    pinned = [] if required_packages.other_python() else [*_packages(), _worker()]
    return [*first, _python(), _platform(), *pinned, _working_folder()]


def _any_of_tensorflow() -> bool:
    return any(required_packages.is_installed(name.replace("-", "_")) for name in _TRAINING)


def _python() -> Finding:
    other = required_packages.other_python()
    return Finding(ok=not other, text=other or f"Python {platform.python_version()}")


def _platform() -> Finding:
    system, machine = platform.system(), platform.machine()
    ok = (system, machine) == ("Linux", "x86_64")
    remedy = (
        "" if ok else ": TensorFlow Federated is published for Linux on x86-64 only; optimizing and accounting work"
    )
    return Finding(ok=ok, text=f"{system} on {machine}{remedy}")


def _packages() -> list[Finding]:
    pins = dict(_PIN.findall(requirements_text()))
    missing, differing = [], []
    for name, pinned in pins.items():
        if name in _DEVELOPMENT:
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if found != pinned:
            differing.append(f"{name} {found} (pinned {pinned})")
    findings = []
    if missing:
        training = " (training will not work)" if set(missing) & set(_TRAINING) else ""
        findings.append(
            Finding(
                ok=False,
                text=f"not installed{training}: {', '.join(sorted(missing))}. Run: {required_packages.INSTALL_COMMAND}",
            )
        )
    if differing:
        findings.append(
            Finding(
                ok=False,
                text=f"not the pinned version: {', '.join(sorted(differing))}. "
                f"Run: {required_packages.INSTALL_COMMAND}",
            )
        )
    if not findings:
        findings.append(Finding(ok=True, text=f"{len(pins)} pinned packages are installed in the pinned versions"))
    return findings


def _worker() -> Finding:
    try:
        files = importlib.metadata.files("tensorflow-federated") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(ok=False, text=f"TFF's worker is missing. Run: {required_packages.INSTALL_COMMAND}")
    workers = [pathlib.Path(str(file.locate())) for file in files if file.name == "worker_binary"]
    ok = any(os.access(worker, os.X_OK) for worker in workers)
    remedy = "" if ok else f" cannot be run: {required_packages.INSTALL_COMMAND}"
    return Finding(ok=ok, text=f"TFF's worker{remedy or ' can be run'}")


def _working_folder() -> Finding:
    ok = os.access(pathlib.Path.cwd(), os.W_OK)
    return Finding(
        ok=ok, text="this folder can be written" if ok else "this folder cannot be written: change to another"
    )
