"""`tff-mf verify`: checks of a bundle."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click

from ..output.present import Callout, Facts, Paragraph, Section
from . import _options, _screens

if TYPE_CHECKING:
    from ..bundles import Verification

# They run every graph.
_ROUNDS = 3
_MOST_NAMED = 3
_PROTECTED = "protected by the digest that was given"
_UNPROTECTED = (
    "nothing protects against someone who rewrites the whole bundle: give --digest as tff-mf export printed it"
)


@_options.command()
@click.argument("bundle", metavar="DIR")
@_options.option("digest")
@click.option(
    "--files-only", is_flag=True, help="Check the files against each other, and run nothing: does not need TensorFlow."
)
@_options.as_json
def verify(
    bundle: str,
    digest: str | None,
    files_only: bool,
    as_json: bool,
) -> None:
    """Check a bundle: its files, every graph against one that is built again, and some rounds against TFF.

    The first line says what protects against a rewritten bundle: a digest from elsewhere, or nothing. Exit
    status 1 if the bundle must not be deployed; the wrong file is named.
    """
    from tff_mf.base import validation

    from .. import bundles

    if digest is not None:
        validation.digest("digest", digest)
    folder = pathlib.Path(bundle)
    checked = _checked(folder, digest, files_only=files_only)
    matches = digest is not None and all(each.file != bundles.MANIFEST for each in checked.refused)
    result = {
        "verified": not checked.refused,
        "protected_by": "digest" if matches else None,
        "rests_on": dict(checked.rests_on),
        "rounds": checked.rounds,
        "refused": [dataclasses.asdict(each) for each in checked.refused],
        # Both are of the checked copy: the folder may have changed since.
        "headline": checked.headline,
        "digest": checked.digest,
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        _screens.show_document(_document(folder, result, asked=digest is not None, files_only=files_only))
    if checked.refused:
        raise SystemExit(1)


def _checked(folder: pathlib.Path, digest: str | None, *, files_only: bool) -> "Verification":
    from .. import bundles
    from ..output import progress

    if files_only:
        return bundles.check_files(folder, digest=digest)
    from ..bundles import verification

    with progress.bar("verify", 9 + 2 * _ROUNDS):
        return verification.verify(folder, rounds=_ROUNDS, digest=digest)


def _document(folder: pathlib.Path, result: Mapping[str, Any], *, asked: bool, files_only: bool) -> Section:
    """Returns what protects a bundle, the evidence for its files, and whether it is refused, as a document."""
    # A refusal names a digest that was given and does not match.
    unprotected = "" if asked else _UNPROTECTED
    ran = f"its files {_ran(result['rounds'], files_only=files_only)}"
    refused = [(f"refused: {each['file']}", each["reason"]) for each in result["refused"]]
    verified = [("guarantee", result["headline"]), ("verified", ran), ("digest", result["digest"])]
    blocks = [
        Paragraph(_PROTECTED if result["protected_by"] else unprotected),
        Facts([*_resting(result["rests_on"], files_only=files_only)]),
        Facts(verified if result["verified"] else refused),
        None if result["verified"] else Callout(f"{folder} must not be deployed", bad=True),
    ]
    return Section("", blocks)


def _ran(rounds: int, *, files_only: bool) -> str:
    if rounds:
        return f"and {rounds} round{'s' if rounds > 1 else ''} in TensorFlow and in TFF"
    # Otherwise, graphs that could be built again were run.
    return f"only, nothing was run{'' if files_only else ': not all of them could be built again here'}"


def _resting(rests_on: Mapping[str, str], *, files_only: bool) -> Iterator[tuple[str, str]]:
    """Yields each kind of evidence with its files; files that could not be built again are named."""
    from .. import bundles

    for what in dict.fromkeys(rests_on.values()):
        files = [name for name, each in rests_on.items() if each == what]
        counted = len(files) > _MOST_NAMED and (files_only or what == bundles.REBUILT)
        shown = f"{len(files)} files" if counted else ", ".join(files)
        yield what, shown
