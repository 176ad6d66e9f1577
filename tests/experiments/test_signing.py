"""Signing a bundle: by keys in files and in agents, with passphrases and without, and how it fails."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import termios
import time

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.errors import InputValueError, MissingDependencyError
from tff_mf.experiments import bundles
from tff_mf.experiments.bundles import _ssh_keygen, signatures
from tff_mf.experiments.cli import cli

from .ssh_keys import NAME, certified, needed, new_key, public, ssh_keygen

pytestmark = needed

PASSPHRASE = "open sesame"
DIGEST = 64 * "a"
# One process for all, since it is the import that takes long.
CHECK_KEYS = """
import pathlib, sys
from tff_mf.errors import InputError
from tff_mf.experiments.bundles import signatures
for key in sys.argv[1:]:
    try:
        signatures.check_key(pathlib.Path(key))
        print("signs", flush=True)
    except InputError as error:
        print("refused:", error, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    """All that signing reads of a bundle."""
    made = tmp_path / "bundle"
    made.mkdir()
    (made / "manifest.json").write_text(json.dumps({"digest": DIGEST}))
    return made


@pytest.fixture
def no_agent(monkeypatch):
    for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def agent(tmp_path, monkeypatch, no_agent):
    """An agent of this test's own, without keys."""
    socket = tmp_path / "agent"
    serving = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 100
    while not socket.exists():
        assert serving.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield
    serving.terminate()
    serving.wait()


def program(folder, text, monkeypatch):
    """Puts another program in the place of ssh-keygen."""
    folder.mkdir()
    (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def is_signed_by(folder, key):
    signers = folder.parent / "allowed_signers"
    signers.write_text(f"{NAME} {public(key)}\n")
    return signatures.check(folder, signatures.Trust(signers=signers, identity=NAME)).digest == DIGEST


def typed(keyboard, screen, text):
    """Types a line where one is asked for."""
    shown = b""
    while b"passphrase" not in shown:
        shown += os.read(keyboard, 1000)
    # Echo is off before the prompt is written: what was typed earlier would be thrown away.
    assert not termios.tcgetattr(screen)[3] & termios.ECHO
    os.write(keyboard, f"{text}\n".encode())


def test_a_passphrase_is_asked_for_at_the_terminal_if_there_is_one(tmp_path, no_agent):
    locked, own = new_key(tmp_path / "locked", passphrase=PASSPHRASE), new_key(tmp_path / "own")
    keyboard, screen = os.openpty()

    def started(*keys, **more):
        words = [sys.executable, "-c", CHECK_KEYS, *map(str, keys)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, text=True, start_new_session=True, **pipes, **more)

    asking = started(locked, locked, preexec_fn=lambda: fcntl.ioctl(screen, termios.TIOCSCTTY, 0))
    alone = started(locked, own)
    missing = "its passphrase is missing or wrong; type it on a terminal, or add the key to an agent with ssh-add."
    typed(keyboard, screen, "wrong")
    typed(keyboard, screen, PASSPHRASE)
    said, _ = asking.communicate(timeout=60)
    assert said.splitlines() == [f"refused: sign={str(locked)!r} cannot sign: {missing}", "signs"]
    # Without one that is said at once, and no key without a passphrase needs it.
    said, _ = alone.communicate(timeout=60)
    assert said.splitlines() == [f"refused: sign={str(locked)!r} cannot sign: {missing}", "signs"]
    os.close(keyboard)
    os.close(screen)


def test_a_program_that_asks_may_be_named_as_for_ssh(tmp_path, folder, no_agent, monkeypatch):
    key = new_key(tmp_path / "locked", passphrase=PASSPHRASE)
    asking = tmp_path / "ask"
    asking.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    asking.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(asking))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    signatures.sign(folder, key, digest=DIGEST)
    assert is_signed_by(folder, key)


def test_an_agent_signs_for_a_public_key(tmp_path, folder, agent):
    key = new_key(tmp_path / "own")
    subprocess.run(["ssh-add", "-q", key], check=True, timeout=60)
    key.unlink()
    by = signatures.sign(folder, key.with_name("own.pub"), digest=DIGEST)
    assert is_signed_by(folder, key)
    assert by.split()[1] in ssh_keygen("-l", "-f", f"{key}.pub").decode()


def test_a_key_that_cannot_sign_is_refused_with_a_remedy(tmp_path, no_agent):
    own = new_key(tmp_path / "own")
    readable, lone, text = tmp_path / "readable", tmp_path / "lone.pub", tmp_path / "text"
    shutil.copyfile(own, readable)
    readable.chmod(0o640)
    lone.write_text(public(own))
    text.write_text("no key\n")
    pem = new_key(tmp_path / "pem", kind="rsa")
    ssh_keygen("-q", "-p", "-m", "PEM", "-N", "", "-f", pem)
    pem.with_name("pem.pub").unlink()
    os.mkfifo(tmp_path / "pipe")
    certificate = certified(new_key(tmp_path / "authority"), own, NAME)
    for path, why in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "is not a file"),
        (text, "it is not a key that ssh-keygen can read"),
        (readable, "can be read by others than its owner: run chmod 600"),
        (lone, "no agent (SSH_AUTH_SOCK) has the private key"),
        (pem, f"write it with ssh-keygen -y -f {pem} > {pem}.pub"),
        (certificate, "is a certificate: name the key itself"),
    ):
        with pytest.raises(InputValueError, match="sign=") as refused:
            signatures.check_key(path)
        assert why in str(refused.value)
        assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.glob("*.sig")) == []


def test_an_old_or_missing_program_is_named(tmp_path, monkeypatch):
    key = new_key(tmp_path / "own")
    program(tmp_path / "old", "echo 'ssh-keygen: unknown option -- Y' >&2; exit 1", monkeypatch)
    with pytest.raises(MissingDependencyError, match=r"too old for signatures: they need OpenSSH 8\.2"):
        signatures.check_key(key)
    for path in ("", str(tmp_path), ".", "old"):
        # What lies where somebody happens to be, a bundle say, is no program of the system.
        monkeypatch.chdir(tmp_path / "old")
        monkeypatch.setenv("PATH", path)
        with pytest.raises(MissingDependencyError, match="which is not in PATH"):
            signatures.check_key(key)


def test_a_program_that_hangs_is_ended(tmp_path, monkeypatch):
    key = new_key(tmp_path / "own")
    program(tmp_path / "slow", f"echo $$ > {tmp_path}/pid; exec sleep 600", monkeypatch)
    monkeypatch.setattr(_ssh_keygen, "_SECONDS_TO_ANSWER", 0.5)
    with pytest.raises(InputValueError, match=r"did not end within 0\.5 s: add the key to an agent"):
        signatures.check_key(key)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "text",
    ["true", "echo yes", "exit 1", "echo 'Good \"tff-mf-bundle\" signature for x with ED25519 key SHA256:a'"],
)
def test_other_output_of_the_program_is_not_trusted(text, tmp_path, folder, monkeypatch):
    key = new_key(tmp_path / "own")
    signatures.sign(folder, key, digest=DIGEST)
    assert is_signed_by(folder, key)
    program(tmp_path / "other", text, monkeypatch)
    with pytest.raises(signatures.SignatureError, match=r"manifest.json.sig: is not a signature"):
        is_signed_by(folder, key)
    with pytest.raises(InputValueError, match="cannot sign"):
        signatures.check_key(key)


def test_the_program_gets_what_it_needs_of_the_environment_and_no_more(tmp_path, folder, monkeypatch):
    key = new_key(tmp_path / "own")
    signatures.sign(folder, key, digest=DIGEST)
    program(tmp_path / "telling", f"env > {tmp_path}/env; cat > {tmp_path}/in", monkeypatch)
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    with contextlib.suppress(tff_mf.InputError):
        is_signed_by(folder, key)
    found = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    # The shell of the stand-in adds some of its own.
    assert found <= {"TZ", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"}
    # What was checked is what was read.
    assert (tmp_path / "in").read_bytes() == (folder / "manifest.json").read_bytes()
    with contextlib.suppress(tff_mf.InputError):
        signatures.check_key(key)
    found = (tmp_path / "env").read_text()
    assert "SSH_AUTH_SOCK=/nowhere" in found
    assert "TOKEN" not in found


def test_only_the_written_manifest_is_signed(tmp_path, folder):
    key = new_key(tmp_path / "own")
    with pytest.raises(signatures.SignatureError, match=r"manifest\.json: was changed since it was written"):
        signatures.sign(folder, key, digest=64 * "b")
    assert not (folder / "manifest.json.sig").exists()
    signatures.sign(folder, key, digest=DIGEST)
    assert is_signed_by(folder, key)


@pytest.fixture
def exported(bundle, monkeypatch):
    """`tff-mf export`, whose graphs are there already: they take ten seconds, and their own tests make them."""
    from tff_mf.experiments.bundles import building

    made = []

    def copied(source, out, **settings):
        shutil.copytree(bundle.folder, out, dirs_exist_ok=True)
        made.append(out)
        return bundle.digest

    monkeypatch.setattr(building, "export", copied)

    def export(out, key, *more):
        return CliRunner().invoke(cli, ["export", str(bundle.config), "--out", str(out), "--sign", str(key), *more])

    export.made = made
    return export


def test_export_signs_by_command(exported, bundle, tmp_path):
    key = new_key(tmp_path / "own")
    found = exported(tmp_path / "new", key)
    assert found.exit_code == 0, found.output
    fingerprint = ssh_keygen("-l", "-f", f"{key}.pub").decode().split()[1]
    assert found.stdout.splitlines()[-1] == f"signature: manifest.json.sig, ED25519 {fingerprint}"
    (tmp_path / "allowed_signers").write_text(f"{NAME} {public(key)}\n")
    trusted = ["--signers", str(tmp_path / "allowed_signers"), "--identity", NAME, "--files-only"]
    assert CliRunner().invoke(cli, ["verify", str(tmp_path / "new"), *trusted]).exit_code == 0
    shown = json.loads(exported(tmp_path / "again", key, "--json").stdout)
    assert shown["signature"] == "manifest.json.sig"
    assert shown["signed_with"] == f"ED25519 {fingerprint}"
    assert shown["digest"] == bundle.digest


def test_a_key_is_tried_before_anything_is_made(exported, tmp_path):
    found = exported(tmp_path / "new", tmp_path / "none")
    assert isinstance(found.exception, tff_mf.InputError)
    assert "does not exist" in str(found.exception)
    assert exported.made == []
    assert not (tmp_path / "new").exists()


def test_a_bundle_that_could_not_be_signed_is_complete(exported, bundle, tmp_path, monkeypatch):
    """The key is taken away between the first signature, which tries it, and the second."""
    key = new_key(tmp_path / "own")
    tried = signatures.check_key

    def try_and_lose(path):
        tried(path)
        path.unlink()
        path.with_name(f"{path.name}.pub").unlink()

    monkeypatch.setattr(signatures, "check_key", try_and_lose)
    found = exported(tmp_path / "new", key)
    assert isinstance(found.exception, tff_mf.InputError)
    said = str(found.exception)
    assert "The bundle is complete, and not signed; to sign it: ssh-keygen -Y sign" in said
    assert bundles.refusals(tmp_path / "new", digest=bundle.digest) == []
    # What it says to do, done.
    new_key(key)
    words = said.partition("to sign it: ")[2].split()
    assert words[0] == "ssh-keygen"
    ssh_keygen("-q", *words[1:])
    (tmp_path / "allowed_signers").write_text(f"{NAME} {public(key)}\n")
    trust = signatures.Trust(signers=pathlib.Path(tmp_path / "allowed_signers"), identity=NAME)
    assert signatures.check(tmp_path / "new", trust).digest == bundle.digest


def test_a_full_disk_leaves_no_partial_signature(folder, tmp_path, monkeypatch):
    key = new_key(tmp_path / "own")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputValueError, match=r"No space left on device .*The bundle is complete"):
        signatures.sign(folder, key, digest=DIGEST)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
