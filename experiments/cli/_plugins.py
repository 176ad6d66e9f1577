"""`tff-mf --plugin`: modules that register mechanisms, imported before a command runs."""

import click


def _import(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> None:
    if context.resilient_parsing:
        return
    from tff_mf import registry

    registry.import_plugins(names)


plugin_option = click.option(
    "--plugin",
    metavar="MODULE",
    multiple=True,
    expose_value=False,
    callback=_import,
    help="Import a module, or a .py file, that registers mechanisms; may be repeated.",
)
