"""Installs the `tff_mf` layer with each Python of this machine that it is for, and runs its tests there."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
NOT_OURS = (".venv*", "build", "dist", "runs", "__pycache__", "*.egg-info", ".*cache", ".hypothesis")
LINE = (
    'pip install --quiet ".[test]" && pip check && cd tests && pytest -q -c ../pyproject.toml --rootdir=.. -n 2 tff_mf'
)


def interpreter(version: str) -> str | None:
    """Returns an executable of a version that starts: a name on the path may belong to a missing one."""
    others = pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for path in (shutil.which(f"python{version}"), *map(str, others)):
        if path and subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return path
    return None


def main() -> None:
    failed = []
    for version in VERSIONS:
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not here, skipped")
            continue
        with tempfile.TemporaryDirectory() as folder:
            checkout, environment = pathlib.Path(folder, "checkout"), pathlib.Path(folder, "venv")
            shutil.copytree(HERE, checkout, ignore=shutil.ignore_patterns(*NOT_OURS))
            subprocess.run([python, "-m", "venv", environment], check=True)
            path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(LINE, shell=True, cwd=checkout, env={**os.environ, "PATH": path})
            failed += [version] if done.returncode else []
    sys.exit(f"failed with Python {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
