"""Calls OpenSSH's `ssh-keygen`, with a minimal environment and a time limit."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from tff_mf.errors import InputValueError, MissingDependencyError

_PROGRAM = "ssh-keygen"
_NEEDED = "OpenSSH 8.2 or newer (package openssh-client or openssh-clients on most systems)"
_LONGEST_REASON = 300
_SECONDS = 60
# Time to type a passphrase, or to touch a security key.
_SECONDS_TO_ANSWER = 300
_SECONDS_TO_END = 5
# Dates in a file of signers are in the local time zone, as in a shell.
_KEPT = ("TZ",)
_KEPT_TO_ASK = (
    *("HOME", "PATH", "TERM", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)


def run(
    arguments: Sequence[str], folder: pathlib.Path, *, content: bytes = b"", asks: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs `ssh-keygen` in a folder, without a shell, and returns its status and output.

    Args:
        arguments: Arguments of the program.
        folder: Folder in which it runs, so that arguments and messages name files without their folder.
        content: Its standard input.
        asks: Whether it may ask for a passphrase or use an agent: its input is then the terminal, if there is one, in
            place of `content`, and it gets the environment variables that OpenSSH needs for this.

    Raises:
        MissingDependencyError: If the program is missing, or too old for signatures.
        InputValueError: If it does not end in time.
    """
    program = _program()
    kept = (*_KEPT, *_KEPT_TO_ASK) if asks else _KEPT
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    seconds = _SECONDS_TO_ANSWER if asks else _SECONDS
    with _terminal() if asks else contextlib.nullcontext(subprocess.PIPE) as keyboard:
        process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env={**environment, "LC_ALL": "C"},
            stdin=keyboard,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(None if asks else content, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            waited = f"{_PROGRAM} did not end within {seconds} s"
            hint = ": add the key to an agent with ssh-add, which asks beforehand." if asks else "; try again."
            raise InputValueError(waited + hint) from error
        finally:
            _end(process)
    found = subprocess.CompletedProcess(arguments, process.returncode, _text(out), _text(err))
    if "option -- Y" in found.stderr:
        raise MissingDependencyError(f"{program} is too old for signatures: they need {_NEEDED}.")
    return found


def good_key(found: subprocess.CompletedProcess[str], namespace: str, identity: str | None = None) -> str | None:
    """Returns type and fingerprint of the key whose signature `ssh-keygen` verified; `None` if it verified none.

    Args:
        found: Its answer to `-Y verify`, or without an identity to `-Y check-novalidate`.
        namespace: Required namespace of the signature.
        identity: Identity that must have signed.
    """
    by = "" if identity is None else f" for {re.escape(identity)}"
    line = re.fullmatch(rf'Good "{re.escape(namespace)}" signature{by} with (\S+) key (SHA256:\S+)\n', found.stdout)
    return f"{line[1]} {line[2]}" if line and found.returncode == 0 else None


def said(found: subprocess.CompletedProcess[str]) -> str:
    """Returns what `ssh-keygen` wrote to standard error, in one line."""
    return "; ".join(filter(None, map(str.strip, found.stderr.splitlines())))[:_LONGEST_REASON]


def _program() -> str:
    # A relative entry of PATH might lead into the bundle that is being verified.
    places = [each for each in os.get_exec_path() if os.path.isabs(each)]
    found = shutil.which(_PROGRAM, path=os.pathsep.join(places))
    if found is None:
        raise MissingDependencyError(f"Signatures need {_PROGRAM}, which is not in PATH: install {_NEEDED}.")
    return found


@contextlib.contextmanager
def _terminal() -> Iterator[int]:
    """Yields the terminal of this process for reading, or an empty file if there is no terminal."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen) -> None:
    """Ends a program that still runs; kills it only as a last resort, since the terminal is then left without echo."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", errors="replace")
