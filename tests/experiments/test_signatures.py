"""Signatures of bundles: they are OpenSSH's own, and nothing but the right one is believed."""

import dataclasses
import datetime
import json
import os
import pathlib
import shutil

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.experiments import bundles
from tff_mf.experiments.bundles import _manifest, signatures
from tff_mf.experiments.cli import cli

from .ssh_keys import NAME, certified, needed, new_key, public, ssh_keygen

pytestmark = needed

NAMESPACE = "tff-mf-bundle"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Files of keys that nothing is written to."""
    folder = tmp_path_factory.mktemp("keys")
    made = {name: new_key(folder / name) for name in ("own", "other", "authority")}
    return {**made, "certificate": certified(made["authority"], made["own"], NAME)}


class _Release:
    """A folder that is signed and looks like a bundle to all that reads no more than its manifest, and its signers."""

    def __init__(self, folder, keys):
        self.folder, self.keys = folder / "bundle", keys
        self.manifest, self.signature = self.folder / "manifest.json", self.folder / "manifest.json.sig"
        self.signers, self.revoked = folder / "allowed_signers", folder / "revoked_keys"
        self.folder.mkdir()
        self.manifest.write_text(json.dumps({"version": 1, "digest": 64 * "a", "files": {}}))
        self.sign()
        self.believe(f'{NAME} namespaces="{NAMESPACE}" {public(keys["own"])}')

    def sign(self, key="own", namespace=NAMESPACE):
        """Signs by hand, as somebody would who has OpenSSH and not tff-mf."""
        self.signature.unlink(missing_ok=True)
        ssh_keygen("-q", "-Y", "sign", "-f", self.keys[key], "-n", namespace, self.manifest)

    def believe(self, *lines):
        self.signers.write_text("".join(f"{line}\n" for line in lines))

    def revoke(self, text):
        self.revoked.write_text(text)

    def arguments(self):
        found = ["verify", self.folder, "--files-only", "--signers", self.signers, "--identity", NAME]
        return [*found, *(["--revoked", self.revoked] if self.revoked.exists() else [])]

    def check(self, **changes):
        revoked = self.revoked if self.revoked.exists() else None
        trust = {"signers": self.signers, "identity": NAME, "revoked": revoked, **changes}
        return signatures.check(self.folder, signatures.Trust(**trust))


@pytest.fixture
def release(tmp_path, keys):
    return _Release(tmp_path, keys)


def call(*arguments):
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def refused(*arguments):
    """Why a command line is refused, with exit status 2, before it has printed anything."""
    found = call(*arguments)
    assert isinstance(found.exception, tff_mf.InputError) or found.exit_code == 2
    assert found.stdout == ""
    return str(found.exception) + found.stderr


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_each_kind_sign_and_are_trusted(kind, release, tmp_path):
    release.keys = {**release.keys, kind: new_key(tmp_path / kind, kind=kind)}
    key = release.keys[kind]
    release.believe(f"{NAME} {public(key)}")
    release.signature.unlink()
    by = signatures.sign(release.folder, key, digest=64 * "a")
    found = release.check()
    assert found.key == by
    assert found.digest == 64 * "a"
    assert found.identity == NAME
    # The same fingerprint as OpenSSH's own.
    assert by.split()[1] == ssh_keygen("-l", "-f", f"{key}.pub").decode().split()[1]
    # What is in the file is what a stranger checks without tff-mf, and what a stranger signs we believe.
    plain = ["-Y", "verify", "-f", release.signers, "-I", NAME, "-n", NAMESPACE, "-s", release.signature]
    assert b"Good" in ssh_keygen(*plain, content=release.manifest.read_bytes())
    release.sign(kind)
    assert release.check().key == by


def another_manifest(release):
    release.manifest.write_text(release.manifest.read_text().replace("aaaa", "bbbb"))


def of_another_bundle(release):
    kept = release.manifest.read_bytes()
    another_manifest(release)
    release.sign()
    release.manifest.write_bytes(kept)


def damaged(release):
    lines = release.signature.read_text().splitlines()
    lines[3] = lines[3][:10] + ("A" if lines[3][10] != "A" else "B") + lines[3][11:]
    release.signature.write_text("\n".join(lines) + "\n")


def exchanged(release, make):
    release.signature.rename(release.folder.parent / "elsewhere.sig")
    make(release.signature)


def revoked_by_list(release):
    release.revoke(f"# stolen\n{public(release.keys['own'])}\n")


def revoked_by_krl(release):
    ssh_keygen("-q", "-k", "-f", release.revoked, f"{release.keys['own']}.pub")


def believed(line, key="own", namespace=NAMESPACE):
    """Returns what signs with a key and believes a line, in which {names of keys} stand for public keys."""

    def change(release):
        release.sign(key, namespace)
        release.believe(line.format(**{name: public(release.keys[name]) for name in ("own", "other", "authority")}))

    return change


def chosen(release):
    """The authority's certificate of the key that may sign, by a line for whatever it certifies."""
    believed(f"{NAME} cert-authority {{authority}}", "certificate")(release)


TOMORROW = (datetime.datetime.now(tz=datetime.UTC) + datetime.timedelta(days=2)).strftime("%Y%m%d")
FOOLED = {
    "no signature": (lambda release: release.signature.unlink(), "is missing"),
    "an empty signature": (lambda release: release.signature.write_text(""), "not a signature of"),
    "a text for a signature": (lambda release: release.signature.write_text("Good signature\n"), "not a signature of"),
    "one letter of the signature": (damaged, "not a signature of"),
    "a signature of another bundle": (of_another_bundle, "incorrect signature"),
    "an edited manifest": (another_manifest, "incorrect signature"),
    "a longer manifest": (lambda release: release.manifest.open("a").write("\n"), "incorrect signature"),
    "a signature by another key": (lambda release: release.sign("other"), "no valid key of"),
    "another's signature before the right one": (
        lambda release: (
            (kept := release.signature.read_text())
            and (release.sign("other") or release.signature.write_text(release.signature.read_text() + kept))
        ),
        "not a signature of",
    ),
    "a signature for files in general": (lambda release: release.sign(namespace="file"), "namespace does not match"),
    "a signature that tries a key": (
        lambda release: release.sign(namespace=signatures._TRIED),
        "namespace does not match",
    ),
    "a key that may sign something else": (believed(f'{NAME} namespaces="git" {{own}}'), "not permitted"),
    "another identity's key": (believed("tests@example.org {own}"), "no valid key of"),
    "an identity that is excluded": (believed(f"*,!{NAME} {{own}}"), "no valid key of"),
    "a line that is a comment": (believed(f"# {NAME} {{own}}"), "no valid key of"),
    "no signers": (lambda release: release.believe(), "no valid key of"),
    "signers that are none": (lambda release: release.believe(f"{NAME} key"), "not a signature of"),
    "a key that has expired": (believed(f'{NAME} valid-before="20200101" {{own}}'), "expired"),
    "a key that is not valid yet": (believed(f'{NAME} valid-after="{TOMORROW}" {{own}}'), "not yet valid"),
    "an option that nobody knows": (believed(f"{NAME} only-on-sundays {{own}}"), "not a signature of"),
    "an authority that signs itself": (
        believed(f"{NAME} cert-authority {{authority}}", "authority"),
        "no valid key of",
    ),
    "a key that an authority vouches for": (chosen, "was made with a certificate"),
    "a certificate of a key that may sign": (believed(f"{NAME} {{own}}", "certificate"), ""),
    "a revoked key": (revoked_by_list, "not a signature of"),
    "a key in a revocation list of OpenSSH": (revoked_by_krl, "not a signature of"),
    "revocations that are none": (
        lambda release: release.revoke("SHA256:4lrHGCHFVl4EAF4aUrWXjL\n"),
        "not a signature of",
    ),
    "a link to a signature": (
        lambda release: exchanged(release, lambda path: path.symlink_to(path.parent.parent / "elsewhere.sig")),
        "not a file",
    ),
    "a pipe": (lambda release: exchanged(release, os.mkfifo), "not a file"),
    "a folder": (lambda release: exchanged(release, os.mkdir), "not a file"),
    "a link to what never ends": (
        lambda release: exchanged(release, lambda path: path.symlink_to("/dev/zero")),
        "not a file",
    ),
    "a large signature": (lambda release: release.signature.open("a").write(2**16 * "\n"), "at most 65536 are read"),
}
WRONG_MANIFESTS = {
    "a link for a manifest": (
        lambda release: release.manifest.rename(release.folder.parent / "m") and release.manifest.symlink_to("../m"),
        "not a file",
    ),
    "a pipe for a manifest": (
        lambda release: release.manifest.unlink() or os.mkfifo(release.manifest),
        "not a file",
    ),
    "something else that was signed": (
        lambda release: release.manifest.write_text('{"digest": "yes"}') and release.sign(),
        "not a manifest",
    ),
    "a list that was signed": (lambda release: release.manifest.write_text("[]") and release.sign(), "not a manifest"),
    "no text that was signed": (
        lambda release: release.manifest.write_bytes(b"\xff\x00") and release.sign(),
        "not a manifest",
    ),
    "brackets that were signed": (
        lambda release: release.manifest.write_text(10**5 * "[") and release.sign(),
        "not a manifest",
    ),
}


@pytest.mark.parametrize("case", [*FOOLED, *WRONG_MANIFESTS])
def test_other_signatures_are_refused(case, release):
    assert release.check().identity == NAME
    change, reason = {**FOOLED, **WRONG_MANIFESTS}[case]
    change(release)
    found = call(*release.arguments(), "--json")
    assert found.exit_code == 1, found.output
    shown = json.loads(found.stdout)
    assert shown["verified"] is False
    assert shown["protected_by"] == {"digest": False, "signature": None}
    (refusal,) = shown["refused"]
    assert refusal["file"] == ("manifest.json.sig" if case in FOOLED else "manifest.json")
    assert reason in refusal["reason"]
    first = call(*release.arguments()).stdout.splitlines()[0]
    assert first.startswith(f"refused: {refusal['file']}: ")


def test_unusable_trust_files_are_refused_first(release, tmp_path):
    """A key that may sign, in a file that the writer of the bundle has in hand, or everybody."""
    inside = release.folder / "allowed_signers"
    shutil.copyfile(release.signers, inside)
    (tmp_path / "link").symlink_to(inside)
    os.mkfifo(tmp_path / "pipe")
    writable = tmp_path / "writable"
    shutil.copyfile(release.signers, writable)
    writable.chmod(0o666)
    for file, why in (
        (inside, "is in the bundle itself"),
        (tmp_path / "link", "is in the bundle itself"),
        (release.folder / ".." / "bundle" / "allowed_signers", "is in the bundle itself"),
        (writable, "can be written by every user"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "pipe", "is not a file"),
        (tmp_path, "is not a file"),
    ):
        shown = ["verify", release.folder, "--identity", NAME]
        assert why in refused(*shown, "--signers", file)
        assert why in refused(*shown, "--signers", release.signers, "--revoked", file)
    found = refused("verify", release.folder, "--identity", NAME, "--signers", release.signers, "--signature", "none")
    assert "signature='none' does not exist" in found
    assert "manifest.json is missing" in refused("verify", tmp_path / "none", *release.arguments()[2:])
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "signers=" in refused("verify", release.folder, "--identity", NAME, "--signers", loop)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--signers", "x"], "--identity is missing"),
        (["--identity", NAME], "--identity goes with --signers"),
        (["--signature", "x"], "--signature goes with --signers"),
        (["--revoked", "x"], "--revoked goes with --signers"),
        (["--signers", "x", "--identity", NAME, "--digest", "0"], "is not a SHA-256 digest"),
        (["--signers", "x", "--identity", "a\u2028b"], "is not a name"),
    ],
)
def test_options_that_mean_nothing_alone_are_refused(arguments, why, release):
    assert why in refused("verify", release.folder, *arguments)


def test_types_and_values_of_trust():
    with pytest.raises(InputTypeError, match="signers="):
        signatures.Trust(signers="allowed_signers", identity=NAME)
    with pytest.raises(InputTypeError, match="identity="):
        signatures.Trust(signers=pathlib.Path("x"), identity=None)
    with pytest.raises(InputValueError, match="identity=' '"):
        signatures.Trust(signers=pathlib.Path("x"), identity=" ")


def test_a_signature_may_be_anywhere(release, tmp_path):
    elsewhere = tmp_path / "of the bundle.sig"
    release.signature.rename(elsewhere)
    assert release.check(signature=elsewhere).digest == 64 * "a"
    # The one that was named is checked, and no other one.
    release.sign()
    another_manifest(release)
    release.signature.rename(tmp_path / "old")
    release.sign()
    assert release.check().digest.startswith("bbbb")
    with pytest.raises(signatures.SignatureError, match=r"of the bundle\.sig: is not a signature"):
        release.check(signature=elsewhere)


def test_a_valid_signer_is_trusted_while_another_key_is_revoked(release):
    own = public(release.keys["own"])
    release.believe(f'*@example.org valid-after="20200101",valid-before="{TOMORROW}",namespaces="tff-*" {own}')
    release.revoke(f"{public(release.keys['other'])}\n")
    assert release.check().key.startswith("ED25519 SHA256:")
    release.revoke("")
    assert release.check().identity == NAME
    # Keys of others, certificates among them, may stand beside.
    release.believe(f"{NAME} cert-authority {public(release.keys['authority'])}", f"{NAME} {own}")
    assert release.check().identity == NAME


@pytest.fixture
def signed_bundle(bundle, tmp_path, keys):
    """A real bundle, and the arguments that check its signature."""
    folder = tmp_path / "signed"
    shutil.copytree(bundle.folder, folder)
    signatures.sign(folder, keys["own"], digest=bundle.digest)
    (tmp_path / "allowed_signers").write_text(f"{NAME} {public(keys['own'])}\n")
    return folder, ["--files-only", "--signers", tmp_path / "allowed_signers", "--identity", NAME]


def test_the_first_line_says_what_protects_the_bundle(bundle, signed_bundle, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    folder, trusted = signed_bundle
    digest = ["--digest", bundle.digest]

    def shown(*arguments, status=0):
        found = call("verify", *arguments)
        assert found.exit_code == status, found.output
        return found.stdout.splitlines()

    nothing = "nothing protects against someone who rewrites the whole bundle: give --digest"
    first, second, *rest = shown(bundle.folder, "--files-only")
    assert first.startswith(nothing)
    assert "--signers" in first + second
    assert any(line.startswith("verified") for line in (second, *rest))
    # A signature that nobody checks is none.
    lines = shown(folder, "--files-only")
    assert lines[0].startswith(nothing)
    assert "signature in it was not checked" in " ".join(lines[:2])
    assert shown(bundle.folder, "--files-only", *digest)[0] == "protected by the digest that was given"
    assert shown(folder, *trusted)[0].startswith(f"protected by a signature of {NAME}, ED25519 SHA256:")
    both = shown(folder, *trusted, *digest)[0]
    assert both.startswith(f"protected by the digest that was given and by a signature of {NAME}")
    assert shown(folder, *trusted)[-1] == f"digest: {bundle.digest}"
    # A refused bundle gets neither line.
    assert shown(bundle.folder, "--files-only", "--digest", 64 * "0", status=1)[0].startswith(
        "refused: manifest.json: "
    )
    other = shown(folder, *trusted, "--digest", 64 * "0", status=1)
    assert other[0].startswith(f"protected by a signature of {NAME}")
    assert other[1].startswith("refused: manifest.json: ")


def test_json_has_the_same_content(bundle, signed_bundle):
    folder, trusted = signed_bundle
    found = json.loads(call("verify", folder, *trusted, "--digest", bundle.digest, "--json").stdout)
    assert found["verified"] is True
    assert found["digest"] == bundle.digest
    assert found["protected_by"]["digest"] is True
    assert found["protected_by"]["signature"]["identity"] == NAME
    assert found["protected_by"]["signature"]["key"].startswith("ED25519 SHA256:")
    found = json.loads(call("verify", folder, "--files-only", "--json").stdout)
    assert found["protected_by"] == {"digest": False, "signature": None}


def test_the_digest_does_not_depend_on_the_signature(bundle, signed_bundle):
    folder, _ = signed_bundle
    assert bundles.read_manifest(folder)[1] == bundle.digest
    assert bundles.refusals(folder, digest=bundle.digest) == []
    assert (folder / "manifest.json.sig").stat().st_mode & 0o777 == 0o644


def test_the_signed_manifest_detects_a_replaced_file(signed_bundle):
    folder, trusted = signed_bundle
    (folder / "server" / "update" / "saved_model.pb").write_bytes(b"another graph")
    found = call("verify", folder, *trusted, "--json")
    assert found.exit_code == 1
    assert [each["file"] for each in json.loads(found.stdout)["refused"]] == ["server/update/saved_model.pb"]


def test_no_file_but_one_of_its_name_may_be_beside_the_manifest(signed_bundle):
    folder, trusted = signed_bundle
    (folder / "manifest.json.sig.old").write_bytes((folder / "manifest.json.sig").read_bytes())
    found = call("verify", folder, *trusted)
    assert found.exit_code == 1
    assert "refused: manifest.json.sig.old: " in found.stdout


def test_a_manifest_replaced_after_the_signature_check_is_refused(signed_bundle, monkeypatch):
    """Somebody waits for the check, and then writes a whole bundle of their own, hashes included."""
    folder, trusted = signed_bundle
    checked = signatures.check

    def check_and_wait(*arguments):
        found = checked(*arguments)
        (folder / "planned.md").write_text("ε = 0")
        _manifest.write_manifest(folder, _anew(folder))
        return found

    monkeypatch.setattr(signatures, "check", check_and_wait)
    found = call("verify", folder, *trusted, "--json")
    assert found.exit_code == 1
    assert [each["file"] for each in json.loads(found.stdout)["refused"]] == ["manifest.json"]


def _anew(folder):
    manifest, _ = bundles.read_manifest(folder)
    return dataclasses.replace(manifest, files=_manifest.file_entries(folder))


def test_an_older_bundle_that_was_signed_is_still_signed(bundle, signed_bundle):
    """As docs/deployment.md says of what a signature does not say: which bundle is the newest, the digest tells."""
    folder, trusted = signed_bundle
    assert call("verify", folder, *trusted).exit_code == 0
    assert call("verify", folder, *trusted, "--digest", 64 * "0").exit_code == 1
