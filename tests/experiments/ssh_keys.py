"""Keys of OpenSSH for tests, made by its own `ssh-keygen`."""

import shutil
import subprocess

import pytest

NAME = "release@example.org"
needed = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's ssh-keygen is not installed here")


def ssh_keygen(*arguments, content=None):
    words = ["ssh-keygen", *map(str, arguments)]
    return subprocess.run(words, input=content, capture_output=True, check=True, timeout=60).stdout


def new_key(path, *, kind="ed25519", passphrase=""):
    """Makes a key, and returns the file of its private half."""
    ssh_keygen("-q", "-t", kind, *(["-b", 2048] if kind == "rsa" else []), "-N", passphrase, "-C", "", "-f", path)
    return path


def certified(authority, key, name):
    """Has one key vouch for another, and returns the file of the certificate."""
    ssh_keygen("-q", "-s", authority, "-I", "id", "-n", name, f"{key}.pub")
    return key.with_name(f"{key.name}-cert.pub")


def public(key):
    """Returns the public half of a key, as it stands in a file of signers."""
    return key.with_name(f"{key.name}.pub").read_text().strip()
