"""Detached signatures of bundles, by OpenSSH's `ssh-keygen -Y`, which operators have.

The content of `manifest.json` is signed. It names every other file by its SHA-256, so that its signature covers the
whole bundle. `ssh-keygen` decides which signatures are valid; no cryptography is done here.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import stat
import tempfile

from tff_mf import validation
from tff_mf.errors import InputError, InputValueError

from ..output import files as output_files
from . import _entries, _ssh_keygen
from ._manifest import MOST_MANIFEST_BYTES
from .names import MANIFEST, SIGNATURE

NAMESPACE = "tff-mf-bundle"

# Namespace for trying a key: such a signature is not valid for a bundle.
_TRIED = "tff-mf-key-check"
_SIGNERS, _REVOKED = "allowed_signers", "revoked_keys"
_LARGEST = 2**24
_LARGEST_SIGNATURE = 2**16
_CERTIFICATE = "-CERT"
_PRIVATE = b"PRIVATE KEY-----"
_OTHERS = 0o077
_MODE = 0o644


class SignatureError(InputValueError):
    """The bundle is not signed by the required identity.

    Attributes:
        file: The file that is refused.
        reason: The reason.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file, self.reason = file, reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """Whose signature is trusted. None of these files may be in the bundle: its author could have written them.

    Attributes:
        signers: File of the keys that may sign, in OpenSSH's format of allowed signers.
        identity: The identity that must have signed, with one of its keys in `signers`.
        revoked: File of keys that are no longer trusted: public keys, one per line, or OpenSSH's key revocation list.
        signature: File of the signature; `manifest.json.sig` in the bundle if not given.

    Example:
        >>> Trust(signers=pathlib.Path("allowed_signers"), identity="release@example.org").revoked is None
        True
        >>> Trust(signers=pathlib.Path("allowed_signers"), identity="")
        Traceback (most recent call last):
        tff_mf.errors.InputValueError: identity='' is not a name: give one that is in the file of signers.
    """

    signers: pathlib.Path
    identity: str
    revoked: pathlib.Path | None = None
    signature: pathlib.Path | None = None

    def __post_init__(self) -> None:
        validation.instance("signers", self.signers, pathlib.Path, "name OpenSSH's file of allowed signers")
        validation.instance("identity", self.identity, str, "give a name that is in the file of signers")
        if not self.identity.strip() or not self.identity.isprintable():
            raise InputValueError(f"identity={self.identity!r} is not a name: give one that is in the file of signers.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signed:
    """The signature of a bundle.

    Attributes:
        identity: The identity that signed, by the file of signers.
        key: Type and SHA-256 fingerprint of the key, as `ssh-keygen -l` has it.
        digest: The digest in the signed manifest: a manifest that is read later must have the same.
    """

    identity: str
    key: str
    digest: str


def check_key(key: pathlib.Path) -> None:
    """Raises unless a key can sign now; asks for its passphrase if there is a terminal.

    Raises:
        InputError: If `ssh-keygen` is missing or too old, or the key cannot sign.
    """
    _sign(b"", key, _TRIED)


def sign(folder: pathlib.Path, key: pathlib.Path, *, digest: str) -> str:
    """Signs a bundle, and returns the type and fingerprint of the key.

    The signature becomes the file `manifest.json.sig` of the bundle, and does not change its digest.

    Args:
        folder: The bundle.
        key: File of a private key, or of a public key whose private key an agent has.
        digest: The bundle's digest from when it was written: a manifest with another one is not signed.

    Raises:
        SignatureError: If the manifest has another digest, or is malformed.
        InputError: If `ssh-keygen` is missing or too old, the key cannot sign, or the signature cannot be written; the
            bundle is then complete, and not signed.
    """
    manifest = _of_bundle(folder, MANIFEST, MOST_MANIFEST_BYTES)
    if _stated_digest(manifest) != digest:
        raise SignatureError(MANIFEST, "was changed since it was written, and is not signed")
    try:
        signature, by = _sign(manifest, key, NAMESPACE)
        output_files.write_atomically(folder / SIGNATURE, signature)
        # Like the other files of a bundle, only its owner may write it, whatever the umask is.
        (folder / SIGNATURE).chmod(_MODE)
    except (InputError, OSError) as error:
        by_hand = shlex.join(["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(folder / MANIFEST)])
        raise InputValueError(f"{error} The bundle is complete, and not signed; to sign it: {by_hand}") from error
    return by


def check(folder: pathlib.Path, trust: Trust) -> Signed:
    """Returns the signature of a bundle, of which only the manifest and the signature are read.

    Formal guarantee: `ssh-keygen` found, from one reading of `manifest.json`, that a key that the file of signers
    assigns to `trust.identity` for bundles, that is valid now and was not revoked, signed exactly the bytes that have
    the returned digest. A manifest that is read later and has the same digest is the one that was signed. Keys in
    certificates are not trusted.

    Args:
        folder: The bundle.
        trust: Whose signature is trusted.

    Raises:
        SignatureError: If the bundle is not signed by `trust.identity`.
        InputError: If `ssh-keygen` is missing or too old, a file of `trust` cannot be used, or the folder is not a
            bundle.
    """
    given = {"signers": trust.signers, "revoked": trust.revoked}
    files = {name: _of_operator(name, path, folder) for name, path in given.items() if path is not None}
    if not os.path.lexists(folder / MANIFEST):
        raise InputValueError(f"bundle={str(folder)!r} is not a bundle of tff-mf export: {MANIFEST} is missing.")
    manifest = _of_bundle(folder, MANIFEST, MOST_MANIFEST_BYTES)
    name = SIGNATURE if trust.signature is None else str(trust.signature)
    if trust.signature is None:
        signature = _of_bundle(folder, SIGNATURE, _LARGEST_SIGNATURE)
    else:
        signature = _read("signature", trust.signature, _LARGEST_SIGNATURE)
    with tempfile.TemporaryDirectory(prefix="tff-mf-") as scratch:
        place = pathlib.Path(scratch)
        (place / _SIGNERS).write_bytes(files["signers"])
        (place / SIGNATURE).write_bytes(signature)
        if "revoked" in files:
            (place / _REVOKED).write_bytes(files["revoked"])
        arguments = ["-Y", "verify", "-n", NAMESPACE, "-f", _SIGNERS, "-I", trust.identity, "-s", SIGNATURE]
        arguments += ["-r", _REVOKED] if "revoked" in files else []
        found = _ssh_keygen.run(arguments, place, content=manifest)
    key = _ssh_keygen.good_key(found, NAMESPACE, trust.identity)
    if key is None:
        why = _ssh_keygen.said(found) or f"no valid key of {trust.identity} in {trust.signers} made it"
        raise SignatureError(name, f"is not a signature of {MANIFEST} by {trust.identity}: {why}")
    if key.split()[0].endswith(_CERTIFICATE):
        raise SignatureError(
            name, f"was made with a certificate: only keys that {trust.signers} itself lists are trusted"
        )
    return Signed(identity=trust.identity, key=key, digest=_stated_digest(manifest))


def _sign(content: bytes, key: pathlib.Path, namespace: str) -> tuple[bytes, str]:
    _check_file(key)
    with tempfile.TemporaryDirectory(prefix="tff-mf-") as scratch:
        place = pathlib.Path(scratch)
        (place / MANIFEST).write_bytes(content)
        asked = ["-Y", "sign", "-f", str(key.absolute()), "-n", namespace, MANIFEST]
        made = _ssh_keygen.run(asked, place, asks=True)
        path = place / SIGNATURE
        # Some failures end with status 0, and without a signature.
        if made.returncode or not path.is_file():
            raise InputValueError(f"sign={str(key)!r} cannot sign: {_remedy(_ssh_keygen.said(made), key)}.")
        signature = path.read_bytes()
        again = ["-Y", "check-novalidate", "-n", namespace, "-s", SIGNATURE]
        found = _ssh_keygen.good_key(_ssh_keygen.run(again, place, content=content), namespace)
    if found is None:
        raise InputValueError(f"sign={str(key)!r} cannot sign: ssh-keygen does not accept its own signature.")
    if found.split()[0].endswith(_CERTIFICATE):
        raise InputValueError(f"sign={str(key)!r} is a certificate: name the key itself.")
    return signature, found


def _check_file(key: pathlib.Path) -> None:
    content = _read("sign", key, _LARGEST)
    if _PRIVATE in content and stat.S_IMODE(key.stat().st_mode) & _OTHERS:
        raise InputValueError(f"sign={str(key)!r} can be read by others than its owner: run chmod 600 on it.")


def _remedy(said: str, key: pathlib.Path) -> str:
    """Returns why a key did not sign, from the messages of `ssh-keygen`, and the remedy."""
    name = shlex.quote(str(key))
    if "incorrect passphrase" in said:
        return "its passphrase is missing or wrong; type it on a terminal, or add the key to an agent with ssh-add"
    if "load public key" in said and _PRIVATE in key.read_bytes():
        return f"its public key is not beside it; write it with ssh-keygen -y -f {name} > {name}.pub"
    if "load public key" in said:
        return "it is not a key that ssh-keygen can read"
    if "No private key found" in said:
        return "it is a public key, and no agent (SSH_AUTH_SOCK) has the private key; name that, or add it with ssh-add"
    return said or "ssh-keygen gives no reason"


def _of_operator(name: str, path: pathlib.Path, folder: pathlib.Path) -> bytes:
    """Returns the content of a file that decides whom to trust."""
    if pathlib.Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputValueError(
            f"{name}={str(path)!r} is in the bundle itself: use a file that the author of the bundle cannot write."
        )
    content = _read(name, path, _LARGEST)
    if path.stat().st_mode & stat.S_IWOTH:
        raise InputValueError(f"{name}={str(path)!r} can be written by every user: run chmod o-w on it.")
    return content


def _of_bundle(folder: pathlib.Path, name: str, at_most: int) -> bytes:
    if not os.path.lexists(folder / name):
        raise SignatureError(name, "is missing: the bundle is not signed")
    try:
        return _entries.read(folder, name, at_most)
    except InputValueError as error:
        raise SignatureError(name, str(error).removeprefix(f"{name} ")) from error


def _read(name: str, path: pathlib.Path, at_most: int) -> bytes:
    """Returns the content of a file that the user named; links are followed, since mounted secrets are links."""
    try:
        if not path.exists():
            raise InputValueError(f"{name}={str(path)!r} does not exist.")
        if not path.is_file():
            raise InputValueError(f"{name}={str(path)!r} is not a file.")
        with path.open("rb") as file:
            content = file.read(at_most + 1)
    except OSError as error:
        raise InputValueError(f"{name}={str(path)!r} cannot be read: {error.strerror or error}.") from error
    if len(content) > at_most:
        raise InputValueError(f"{name}={str(path)!r} has more than {at_most} bytes: name another file.")
    return content


def _stated_digest(manifest: bytes) -> str:
    try:
        return validation.digest("digest", json.loads(manifest)["digest"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SignatureError(MANIFEST, "is not a manifest of tff-mf export, even if it is signed") from error
