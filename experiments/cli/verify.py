"""`tff-mf verify`: whether a bundle is what it says."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping

import click

from tff_mf.errors import InputValueError

from . import _options

_MOST_ROUNDS = 10_000
_MOST_NAMES = 5


@click.command()
@click.argument("bundle", metavar="DIR")
@click.option(
    "--digest", metavar="HEX", help="The digest that tff-mf export printed: a bundle that was rewritten has another."
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Rounds to run in TensorFlow and in TFF.")
@click.option(
    "--files-only", is_flag=True, help="Check files against each other, and run nothing: needs no TensorFlow."
)
@_options.as_json
def verify(bundle: str, digest: str | None, rounds: int, files_only: bool, as_json: bool) -> None:
    """Check a bundle: its files, every graph against one that is built anew, and a few rounds against TFF.

    Exit status 1 if it must not be deployed; the file that is wrong is named.
    """
    from tff_mf import _validate

    from .. import bundles, progress

    if _validate.whole("rounds", rounds) > _MOST_ROUNDS:
        raise InputValueError(f"rounds={rounds} is more than {_MOST_ROUNDS}: three already go through every graph.")
    folder = pathlib.Path(bundle)
    if files_only:
        checked = bundles.check_files(folder, digest=digest)
    else:
        from ..bundles import verification

        with progress.bar("verify", 8 + 2 * rounds):
            checked = verification.verify(folder, rounds=rounds, digest=digest)
    found = checked.refused
    if as_json:
        refused = [dataclasses.asdict(each) for each in found]
        click.echo(json.dumps({"verified": not found, "refused": refused, "rests_on": dict(checked.rests_on)}))
    else:
        if found:
            _options.paragraphs(
                *(f"refused: {each.file}: {each.reason}" for each in found), f"{bundle} must not be deployed"
            )
        else:
            ran = "only, nothing was run" if files_only else f"and {rounds} rounds in TensorFlow and in TFF"
            click.echo(f"verified: its files {ran}")
            _options.show(_resting(checked.rests_on))
            click.echo(f"digest: {bundles.read_manifest(folder)[1]}")
    if found:
        raise SystemExit(1)


def _resting(rests_on: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns a row for each thing that files rest on, with the files, or how many there are."""
    rows = []
    for kind in dict.fromkeys(rests_on.values()):
        names = [name for name, value in rests_on.items() if value == kind]
        rows.append((kind, ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} files"))
    return rows
