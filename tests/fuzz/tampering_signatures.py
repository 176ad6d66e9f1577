"""Signatures that must not be trusted, by OpenSSH's `ssh-keygen`."""

import pathlib
import shutil
import subprocess
from collections.abc import Callable

from tampering import Change, Material, Way, taken, written

from tff_mf.experiments.bundles import signatures

NAME = "release@example.org"
_MANIFEST, _SIGNATURE = "manifest.json", "manifest.json.sig"


def made_key(path: pathlib.Path) -> pathlib.Path:
    """Makes a key without a passphrase."""
    _run("-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", path)
    return path


def sign(folder: pathlib.Path, key: pathlib.Path, namespace: str = signatures.NAMESPACE) -> None:
    """Signs the manifest of a bundle, replacing an existing signature."""
    (folder / _SIGNATURE).unlink(missing_ok=True)
    _run("-q", "-Y", "sign", "-f", key, "-n", namespace, folder / _MANIFEST)


def trust(key: pathlib.Path) -> signatures.Trust:
    """Returns the trust in one key, with its file of signers beside it."""
    signers = key.with_name("allowed_signers")
    signers.write_text(f'{NAME} namespaces="{signatures.NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    return signatures.Trust(signers=signers, identity=NAME)


def _run(*arguments: object) -> None:
    subprocess.run(["ssh-keygen", *map(str, arguments)], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _by(who: str, namespace: str = signatures.NAMESPACE) -> Change:
    return lambda folder, material: sign(folder, getattr(material, who), namespace)


def _stripped(folder: pathlib.Path, material: Material) -> None:
    (folder / _SIGNATURE).unlink()


def _behind_a_stranger(folder: pathlib.Path, material: Material) -> None:
    right = (folder / _SIGNATURE).read_bytes()
    _by("stranger")(folder, material)
    written(_SIGNATURE, lambda wrong: wrong + right)(folder, material)


def _copied(name: str) -> Change:
    return lambda folder, material: shutil.copy2(folder / name, folder / _SIGNATURE) and None


def _way(name: str, change: Change, *needs: str) -> Way:
    return Way(name=f"signature: {name}", change=change, needs=needs, signature_only=True, listed=False)


def _edited(change: Callable[[bytes], bytes]) -> Change:
    return written(_SIGNATURE, change)


def _with_another_letter(content: bytes) -> bytes:
    middle = len(content) // 2
    other = b"B" if content[middle : middle + 1] == b"A" else b"A"
    return content[:middle] + other + content[middle + 1 :]


WAYS = (
    _way("none", _stripped),
    _way("that of another bundle", taken(_SIGNATURE), "other"),
    _way("by another key, of the same name", _by("stranger"), "stranger"),
    _way("by the right key, for files", _by("signer", "file"), "signer"),
    _way("by the right key, for a trial of keys", _by("signer", "tff-mf-key-check"), "signer"),
    _way("empty", _edited(lambda old: b"")),
    _way("cut off", _edited(lambda old: old[: len(old) // 2])),
    _way("one letter changed", _edited(_with_another_letter)),
    _way("the manifest in its place", _copied(_MANIFEST)),
    _way("two, of which another key made the first", _behind_a_stranger, "stranger"),
)
