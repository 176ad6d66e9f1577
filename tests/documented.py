"""Command lines of pages and notebooks: what they name exists."""

from collections.abc import Sequence

import click

from tff_mf.experiments.cli import cli


def unknown(words: Sequence[str]) -> set[str]:
    """Returns the flags of a line after `tff-mf` that its command does not have, or the command if it is none."""
    words = list(words)
    context, command = click.Context(cli), cli
    missing = set()
    while words[0].startswith("--"):
        missing |= {words[0]} - {flag for each in cli.params for flag in each.opts}
        words = words[2:]
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return {name}
        command = found
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    return missing | {word for word in words if word.startswith("--")} - flags
