"""A bundle is signed and its signature verified by OpenSSH, with the lines of docs/deployment.md."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "deployment.md"

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH's ssh-keygen is not installed here")


def test_a_manifest_is_signed_and_verified_by_the_lines_of_the_page(tmp_path):
    def run(first_words):
        (line,) = re.findall(rf"^{first_words}(?:.*\\\n)*.*$", PAGE.read_text(encoding="utf-8"), re.M)
        # Of `tff-mf`, the arguments are printed.
        line = re.sub(r"^tff-mf", "echo", line)
        return subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=False)

    manifest = tmp_path / "bundle" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"digest": 64 * "a"}, indent=1))
    key = ["-t", "ed25519", "-N", "", "-f", "release-key"]
    subprocess.run(["ssh-keygen", *key], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert run("echo .*").returncode == run("ssh-keygen -Y sign").returncode == 0
    assert list(manifest.parent.iterdir()) == [manifest]
    verified = run("ssh-keygen -Y verify")
    assert verified.stdout.startswith(b'Good "tff-mf-bundle" signature for release@example.org'), verified.stderr
    assert run(r"tff-mf verify bundle --digest .\$").stdout == f"verify bundle --digest {64 * 'a'}\n".encode()
    manifest.write_text(json.dumps({"digest": 64 * "b"}, indent=1))
    assert run("ssh-keygen -Y verify").returncode != 0
