"""`tff-mf verify`: whether a bundle is what it says."""

import dataclasses
import json
import pathlib

import click

from tff_mf.errors import InputValueError

from . import _options

_MOST_ROUNDS = 10_000


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
    """Check a bundle: hashes, types, report, policy, and a few rounds of it against TFF.

    Exit status 1 if it must not be deployed; the file that is wrong is named.
    """
    from tff_mf import _requires, _validate

    from .. import bundles, progress

    if _validate.whole("rounds", rounds) > _MOST_ROUNDS:
        raise InputValueError(f"rounds={rounds} is more than {_MOST_ROUNDS}: three already go through every graph.")
    folder = pathlib.Path(bundle)
    if files_only:
        found = bundles.refusals(folder, digest=digest)
    else:
        # What is wrong with a file is said before TensorFlow is loaded.
        found = bundles.refusals(folder, digest=digest)
        if not found:
            _requires.packages("Verifying", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
            from ..bundles import verification

            with progress.bar("verify", 4 + 2 * rounds):
                found = verification.verify(folder, rounds=rounds, digest=digest)
    if as_json:
        click.echo(json.dumps({"verified": not found, "refused": [dataclasses.asdict(each) for each in found]}))
    else:
        if found:
            _options.paragraphs(
                *(f"refused: {each.file}: {each.reason}" for each in found), f"{bundle} must not be deployed"
            )
        else:
            ran = "only, nothing was run" if files_only else f"and {rounds} rounds in TensorFlow and in TFF"
            click.echo(f"verified: its files {ran}")
            click.echo(f"digest: {bundles.read_manifest(folder)[1]}")
    if found:
        raise SystemExit(1)
