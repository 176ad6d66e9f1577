"""`tff-mf verify`: checks of a bundle."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tff_mf.errors import InputValueError

from . import _options, _screens

if TYPE_CHECKING:
    from ..bundles import Refusal, Verification
    from ..bundles.signatures import Signed, Trust

_MOST_ROUNDS = 10_000
_MOST_NAMED = 3
_UNPROTECTED = "nothing protects against someone who rewrites the whole bundle"
_TO_BE_PROTECTED = "give --digest as tff-mf export printed it, or --signers and --identity"


@click.command()
@click.argument("bundle", metavar="DIR")
@click.option("--digest", metavar="HEX", help="The digest that tff-mf export printed; a rewritten bundle has another.")
@click.option(
    "--signers",
    metavar="FILE",
    help="OpenSSH's file of allowed signers, whose signatures are trusted; it must not be in the bundle.",
)
@click.option("--identity", metavar="NAME", help="The identity in --signers that must have signed.")
@click.option(
    "--signature", metavar="FILE", help="File of the signature, if it is not manifest.json.sig in the bundle."
)
@click.option("--revoked", metavar="FILE", help="Keys that are no longer trusted: public keys, one per line, or a KRL.")
@click.option("--rounds", type=int, default=3, show_default=True, help="Rounds to run in TensorFlow and in TFF.")
@click.option(
    "--files-only", is_flag=True, help="Check the files against each other, and run nothing: does not need TensorFlow."
)
@_options.as_json
def verify(
    bundle: str,
    digest: str | None,
    signers: str | None,
    identity: str | None,
    signature: str | None,
    revoked: str | None,
    rounds: int,
    files_only: bool,
    as_json: bool,
) -> None:
    """Check a bundle: its author, its files, every graph against one that is built again, and some rounds against TFF.

    The first line says what protects against a rewritten bundle: a digest from elsewhere, a signature, or nothing. Exit
    status 1 if the bundle must not be deployed; the wrong file is named.
    """
    from tff_mf import validation

    from .. import bundles

    if validation.whole("rounds", rounds) > _MOST_ROUNDS:
        raise InputValueError(f"rounds={rounds} is more than {_MOST_ROUNDS}; three rounds already run every graph.")
    if digest is not None:
        validation.digest("digest", digest)
    folder = pathlib.Path(bundle)
    signed, found = _signed(folder, _trust(signers, identity, signature, revoked), digest)
    if found:
        result = _result(found, signed=signed)
    else:
        # The digest of the signed manifest: a manifest that is read from here on has the same, or is refused.
        held = digest if signed is None else signed.digest
        checked = _checked(folder, rounds, held, files_only=files_only)
        found = checked.refused
        matches = digest is not None and all(each.file != bundles.MANIFEST for each in found)
        result = _result(found, signed=signed, digest=matches, checked=checked)
    if as_json:
        click.echo(json.dumps(result))
    else:
        asked = digest is not None or signers is not None
        for text in _lines(folder, result, asked=asked, files_only=files_only):
            click.echo("\n".join(_screens.folded(text, indent="  ")))
    if found:
        raise SystemExit(1)


def _trust(signers: str | None, identity: str | None, signature: str | None, revoked: str | None) -> "Trust | None":
    if signers is None or identity is None:
        for flag, value in {"--identity": identity, "--signature": signature, "--revoked": revoked}.items():
            if value is not None and signers is None:
                raise click.UsageError(f"{flag} goes with --signers.")
        if signers is not None:
            raise click.UsageError("--identity is missing: --signers lists keys, and not who must have signed.")
        return None
    from ..bundles.signatures import Trust

    files = {"signature": signature, "revoked": revoked}
    paths = {name: pathlib.Path(value) for name, value in files.items() if value is not None}
    return Trust(signers=pathlib.Path(signers), identity=identity, **paths)


def _signed(folder: pathlib.Path, trust: "Trust | None", digest: str | None) -> "tuple[Signed | None, list[Refusal]]":
    """Returns the signature of a bundle, if one is required, and the reasons why it is refused."""
    from .. import bundles

    if trust is None:
        return None, []
    from ..bundles import signatures

    try:
        signed = signatures.check(folder, trust)
    except signatures.SignatureError as error:
        return None, [bundles.Refusal(file=error.file, reason=error.reason)]
    if digest in (None, signed.digest):
        return signed, []
    reason = f"the bundle's digest is {signed.digest}, not the {digest} that was given"
    return signed, [bundles.Refusal(file=bundles.MANIFEST, reason=reason)]


def _checked(folder: pathlib.Path, rounds: int, held: str | None, *, files_only: bool) -> "Verification":
    from .. import bundles
    from ..output import progress

    if files_only:
        return bundles.check_files(folder, digest=held)
    from ..bundles import verification

    with progress.bar("verify", 9 + 2 * rounds):
        return verification.verify(folder, rounds=rounds, digest=held)


def _result(
    found: "list[Refusal]",
    *,
    signed: "Signed | None",
    digest: bool = False,
    checked: "Verification | None" = None,
) -> dict[str, Any]:
    """Returns the result; `digest` is whether the bundle has the digest that was given."""
    return {
        "verified": not found,
        "protected_by": {
            "digest": digest,
            "signature": None if signed is None else {"identity": signed.identity, "key": signed.key},
        },
        "rests_on": {} if checked is None else dict(checked.rests_on),
        "rounds": 0 if checked is None else checked.rounds,
        "refused": [dataclasses.asdict(each) for each in found],
        # Those of the checked copy: the folder may have changed since.
        "headline": "" if found or checked is None else checked.headline,
        "digest": None if found or checked is None else checked.digest,
    }


def _lines(folder: pathlib.Path, result: Mapping[str, Any], *, asked: bool, files_only: bool) -> Iterator[str]:
    """Yields the lines of the text: what protects the bundle, the evidence for its files, and whether it is refused."""
    protection = _protection(folder, result["protected_by"], asked=asked)
    if protection:
        yield protection
    yield from _resting(result["rests_on"], files_only=files_only)
    for each in result["refused"]:
        yield f"refused: {each['file']}: {each['reason']}"
    if result["verified"]:
        yield f"guarantee: {result['headline']}"
        yield f"verified: its files {_ran(result['rounds'], files_only=files_only)}"
        yield f"digest: {result['digest']}"
    else:
        yield f"{folder} must not be deployed"


def _ran(rounds: int, *, files_only: bool) -> str:
    if rounds:
        return f"and {rounds} round{'s' if rounds > 1 else ''} in TensorFlow and in TFF"
    # Otherwise, graphs that could be built again were run.
    return f"only, nothing was run{'' if files_only else ': not all of them could be built again here'}"


def _protection(folder: pathlib.Path, by: Mapping[str, Any], *, asked: bool) -> str:
    from .. import bundles

    names = ["the digest that was given"] if by["digest"] else []
    if by["signature"]:
        names.append(f"a signature of {by['signature']['identity']}, {by['signature']['key']}")
    if names:
        return f"protected by {' and by '.join(names)}"
    if asked:
        # The required protection is refused, which a later line says.
        return ""
    unchecked = "; the signature in it was not checked" if os.path.lexists(folder / bundles.SIGNATURE) else ""
    return f"{_UNPROTECTED}: {_TO_BE_PROTECTED}{unchecked}"


def _resting(rests_on: Mapping[str, str], *, files_only: bool) -> Iterator[str]:
    """Yields a line for all files with the same evidence; files that could not be built again are named."""
    from .. import bundles

    for what in dict.fromkeys(rests_on.values()):
        files = [name for name, each in rests_on.items() if each == what]
        counted = len(files) > _MOST_NAMED and (files_only or what == bundles.REBUILT)
        shown = f"{len(files)} files" if counted else ", ".join(files)
        yield f"{what}: {shown}"
