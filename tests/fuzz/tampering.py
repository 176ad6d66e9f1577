"""Ways to tamper with a bundle that need no TensorFlow: files exchanged or edited, with a manifest that matches."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import zipfile
from collections.abc import Callable

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.bundles import _device_file, _manifest
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import folders

Change = Callable[[pathlib.Path, "Material"], None]
WEIGHTS = "server/initial.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """The material of a forger.

    Attributes:
        base: The bundle.
        other: A bundle of the same shapes, with less noise, a larger clip norm, and other words, divisor and seed.
        insecure: The bundle once more, with repeatable noise.
    """

    base: pathlib.Path
    other: pathlib.Path | None = None
    insecure: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to tamper with a bundle.

    Attributes:
        name: In words.
        change: Edits a copy of the bundle.
        digest_only: Why nothing but the digest finds it; empty if `verify` does.
        needs: What of the material it takes from.
        reported: Whether planned report and devices' policy are written anew, to fit what they follow from.
        listed: Whether the manifest is written anew, to fit the files.
    """

    name: str
    change: Change
    digest_only: str = ""
    needs: tuple[str, ...] = ()
    reported: bool = False
    listed: bool = True

    def apply(self, folder: pathlib.Path, material: Material) -> None:
        """Tampers with a copy of a bundle."""
        self.change(folder, material)
        if self.reported:
            reports.write(folder, realised=False)
            devices_told(folder, material)
        if self.listed:
            listed(folder)


def listed(folder: pathlib.Path, **changes: object) -> None:
    """Makes the manifest match the files and the changes, as an attacker would; `None` leaves a field out."""
    content = json.loads((folder / "manifest.json").read_text())
    content |= {"files": _manifest.file_entries(folder), **changes}
    signed(folder, {name: value for name, value in content.items() if value is not None})


def signed(folder: pathlib.Path, content: dict) -> None:
    """Writes a manifest with the digest of its content, whether or not it could be read again."""
    content = {name: value for name, value in content.items() if name != "digest"}
    (folder / "manifest.json").write_bytes(_manifest.manifest_text(content))


def edited(name: str, change: Callable[[dict], object]) -> Change:
    """Edits a JSON file."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    return edit


def manifested(change: Callable[[dict], object]) -> Change:
    """Edits the manifest, and updates its digest."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        signed(folder, content)

    return edit


def devices_told(folder: pathlib.Path, material: Material) -> None:
    """Rewrites the device policy to match its inputs; its task keeps its name."""
    name = _device_file.task_name_of(folder)
    # No policy may follow from a forgery: the present one is then as good as any.
    with contextlib.suppress(InputError):
        _device_file.write_device_policy(folder, task_name=name)


def renamed(name: str) -> Change:
    """Gives the task another name everywhere."""
    return lambda folder, material: _device_file.write_device_policy(folder, task_name=name)


def programmed(module: str, old: str, new: str) -> Change:
    """Replaces a part, which must occur once, of a module of the runner."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        with zipfile.ZipFile(folder / "runner.pyz") as program:
            texts = {entry: program.read(entry).decode() for entry in program.infolist()}
        assert f"runner/{module}.py" in {entry.filename for entry in texts}, module
        with zipfile.ZipFile(folder / "runner.pyz", "w") as program:
            for entry, text in texts.items():
                if entry.filename == f"runner/{module}.py":
                    assert text.count(old) == 1, old
                    text = text.replace(old, new)
                program.writestr(entry, text)

    return edit


def together(*changes: Change) -> Change:
    """Does several edits."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        for change in changes:
            change(folder, material)

    return edit


def taken(*names: str, of: str = "other") -> Change:
    """Takes files or folders from another bundle."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        for name in names:
            source, place = getattr(material, of) / name, folder / name
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            shutil.copytree(source, place) if source.is_dir() else shutil.copy2(source, place)

    return edit


def exchanged(one: str, other: str) -> Change:
    """Lets two files or folders change places."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return edit


def written(name: str, change: Callable[[bytes], bytes]) -> Change:
    """Edits a file as bytes."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return edit


def placed(make: Callable[[pathlib.Path], object]) -> Change:
    """Applies a function to the folder."""
    return lambda folder, material: make(folder)


def linked(name: str, to: str) -> Change:
    """Replaces a file or folder by a link to it, after moving it to `to` beside the bundle."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        target = folder.parent / to
        shutil.rmtree(target, ignore_errors=True)
        (folder / name).rename(target)
        (folder / name).symlink_to(target)

    return edit


def exchanged_mechanism(folder: pathlib.Path) -> None:
    (folder / "mechanism.safetensors").unlink()
    folders.keep_mechanism(folder, tff_mf.Tree(200, variant="online"))


def another_mechanism(folder: pathlib.Path, material: Material) -> None:
    exchanged_mechanism(folder)
    fitting_hash(folder, material)


def fitting_hash(folder: pathlib.Path, material: Material) -> None:
    digest = files.file_hash(folder / "mechanism.safetensors")
    edited("run.json", lambda run: run.update(mechanism_sha256=digest))(folder, material)


def annotated(content: bytes) -> bytes:
    """Adds a word to the metadata of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.setdefault("__metadata__", {})["audited"] = "yes"
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def socket_at(path: pathlib.Path) -> None:
    here = pathlib.Path.cwd()
    # Paths of sockets are short.
    os.chdir(path.parent)
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: pathlib.Path, size: int) -> None:
    with path.open("ab") as file:
        file.truncate(size)


def deep(folder: pathlib.Path) -> None:
    """Makes folders deeper than any path can name."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def resealed(change: Callable[[dict], object]) -> Callable[[dict], None]:
    """Returns what changes a report, and makes its digest fit."""

    def edit(report: dict) -> None:
        change(report)
        report.update(reports.sealed(report))

    return edit


def smaller_epsilon(by: float) -> Callable[[dict], None]:
    """Returns what makes the ε of a planned report smaller by a part of it, and the digest fit."""

    def edit(report: dict) -> None:
        report["accountant"]["planned"]["epsilon"] *= 1 - by
        report["claim"]["epsilon_as_run"] *= 1 - by

    return resealed(edit)


def smaller_claims(by: float) -> Callable[[dict], None]:
    """Returns what makes each ε of a device policy smaller by a part of it."""

    def edit(policy: dict) -> None:
        for each in filter(lambda claim: isinstance(claim, dict), policy["guarantee"].values()):
            each["epsilon"] *= 1 - by

    return edit


def with_page(folder: pathlib.Path, material: Material) -> None:
    report = json.loads((folder / "planned.json").read_text())
    (folder / "planned.md").write_text(reports.markdown(report))


def run_field(**changes: object) -> Change:
    return edited("run.json", lambda run: run.update(changes))


def settings_field(**changes: object) -> Change:
    return edited("run.json", lambda run: run["settings"].update(changes))


def refused(folder: pathlib.Path, check: Callable[[pathlib.Path], list]) -> str:
    """Returns the first reason of a check, or an empty text."""
    try:
        found = check(folder)
    except InputError as error:
        return str(error)
    return f"{found[0].file}: {found[0].reason}" if found else ""
