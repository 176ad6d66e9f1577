"""`tff-mf verify`: checks of a bundle."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import rich_click as click

from ..output.present import Block, Callout, Facts
from . import _options
from ._screens import Answer

# They run every graph.
_ROUNDS = 3
_MOST_NAMED = 3
_PROTECTED = "by the digest that was given"
_UNPROTECTED = "not against someone who rewrites the whole bundle: give --digest as tff-mf export printed it"


@_options.command()
@click.argument("bundle", metavar="DIR")
@_options.option("digest")
@click.option(
    "--files-only", is_flag=True, help="Check the files against each other, and run nothing: does not need TensorFlow."
)
def verify(bundle: str, digest: str | None, files_only: bool) -> Answer:
    """Check a bundle: its files, every graph against one that is built again, and some rounds against TFF.

    A line says what protects against a rewritten bundle: a digest from elsewhere, or nothing. Exit status 1 if the
    bundle must not be deployed; the wrong file is named.
    """
    from tff_mf.base import validation

    from .. import bundles
    from ..output import progress

    if digest is not None:
        validation.digest("digest", digest)
    folder = pathlib.Path(bundle)
    if files_only:
        checked = bundles.check_files(folder, digest=digest)
    else:
        from ..bundles import verification

        with progress.bar("verify", 9 + 2 * _ROUNDS):
            checked = verification.verify(folder, rounds=_ROUNDS, digest=digest)
    matches = digest is not None and all(each.file != bundles.MANIFEST for each in checked.refused)
    result = {
        "verified": not checked.refused,
        "protected_by": "digest" if matches else None,
        "rests_on": dict(checked.rests_on),
        "rounds": checked.rounds,
        "files_only": files_only,
        "refused": [dataclasses.asdict(each) for each in checked.refused],
        # Both are of the checked copy: the folder may have changed since.
        "headline": checked.headline,
        "digest": checked.digest,
    }
    return Answer(result, words(result, folder), failed=not result["verified"])


def words(facts: Mapping[str, Any], folder: pathlib.Path) -> list[Block | None]:
    """Returns whether a bundle is refused, what protects it, and the evidence for its files."""
    ran, files_only = facts["rounds"], facts["files_only"]
    # Otherwise, graphs that could be built again were run.
    some = f"only, nothing was run{'' if files_only else ': not all of them could be built again here'}"
    checked = f"and {ran} round{'s' if ran > 1 else ''} in TensorFlow and in TFF" if ran else some
    evidence = [*_resting(facts["rests_on"], files_only=files_only)]
    if facts["refused"]:
        refused = [(f"refused: {each['file']}", each["reason"]) for each in facts["refused"]]
        return [Callout(f"{folder} must not be deployed", bad=True), Facts(refused), Facts(evidence)]
    rows = [
        ("protected", _PROTECTED if facts["protected_by"] else _UNPROTECTED),
        ("guarantee", facts["headline"]),
        ("digest", facts["digest"]),
    ]
    return [Callout(f"{folder}: verified, its files {checked}"), Facts(rows), Facts(evidence)]


def _resting(rests_on: Mapping[str, str], *, files_only: bool) -> Iterator[tuple[str, str]]:
    """Yields each kind of evidence with its files; files that could not be built again are named."""
    from .. import bundles

    for what in dict.fromkeys(rests_on.values()):
        files = [name for name, each in rests_on.items() if each == what]
        counted = len(files) > _MOST_NAMED and (files_only or what == bundles.REBUILT)
        shown = f"{len(files)} files" if counted else ", ".join(files)
        yield what, shown
