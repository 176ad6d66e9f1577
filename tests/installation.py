"""Installs as README says, line by line, with each Python on this machine, and tests the `tff_mf` layer there.

    python tests/installation.py [--quick] [--with-tff] [--results FOLDER]

Every Python from 3.11 on runs all tests of that layer; `--quick` runs a few tests on the newest, unless it is 3.11.
`--with-tff` makes Python 3.11 run the page's lines for TFF instead of the tests. Missing versions are named.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
NOT_OURS = (".venv*", "build", "dist", "runs", "__pycache__", "*.egg-info", ".*cache", ".hypothesis")
QUICK = ("blt", "guarantees", "layers", "missing_packages", "sensitivity")


def interpreters() -> dict[str, str]:
    """Returns an executable of every version that starts: a name on the path may belong to a missing version."""
    found = {}
    others = sorted(pathlib.Path.home().glob(".pyenv/versions/*/bin/python"))
    for version in VERSIONS:
        for path in (shutil.which(f"python{version}"), *map(str, others)):
            if path and version not in found and _answer(path) == version:
                found[version] = path
    return found


def lines(*, with_tff: bool) -> list[str]:
    """Returns README's commands for installation; those for TFF only on request."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^## Install\n\n```bash\n(.*?)^```", text, re.S | re.M)
    return [line for line in block.splitlines() if with_tff or "# Python 3.11:" not in line]


def _answer(path: str) -> str:
    program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    finished = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
    return finished.stdout.strip()


def _install_and_test(version: str, python: str, folder: pathlib.Path, options: argparse.Namespace) -> bool:
    checkout, environment = folder / "checkout", folder / "venv"
    shutil.copytree(HERE, checkout, ignore=shutil.ignore_patterns(*NOT_OURS))
    subprocess.run([python, "-m", "venv", environment], check=True)
    with_tff = options.with_tff and version == "3.11"
    names = [f"tff_mf/test_{name}.py" for name in QUICK] if options.quick else ["tff_mf"]
    results = pathlib.Path(options.results).resolve() / f"python{version}.xml"
    tests = f"cd tests && pytest -q -c ../pyproject.toml --rootdir=.. -n 2 --junitxml='{results}' {' '.join(names)}"
    checks = ["tff-mf --version"] if with_tff else ["pip check", 'pip install --quiet ".[test]"', "pip check", tests]
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for line in (*lines(with_tff=with_tff), *checks):
        started = time.monotonic()
        finished = subprocess.run(
            line,
            shell=True,
            cwd=checkout,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        print(
            f"Python {version}: {time.monotonic() - started:4.0f} s, status {finished.returncode}: {line}", flush=True
        )
        last = (finished.stdout.strip() or finished.stderr.strip()).splitlines()[-1:]
        print(*(f"    {each}" for each in last), sep="\n", flush=True)
        # Without TFF, doctor reports what is missing by its exit status.
        if finished.returncode and not (line.startswith("tff-mf doctor") and not with_tff):
            print(finished.stdout[-4000:], finished.stderr[-4000:], file=sys.stderr)
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--with-tff", action="store_true")
    parser.add_argument("--results", default="build/results")
    options = parser.parse_args()
    found = interpreters()
    wanted = [version for version in VERSIONS if version in found and not (options.quick and version == "3.11")]
    print("\n".join(f"Python {version}: not here, skipped" for version in VERSIONS if version not in found))
    failed = 0
    for version in wanted[-1:] if options.quick else wanted:
        with tempfile.TemporaryDirectory() as folder:
            failed += not _install_and_test(version, found[version], pathlib.Path(folder), options)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
