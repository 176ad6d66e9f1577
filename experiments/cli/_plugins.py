"""`tff-mf --plugin`: modules that register mechanisms, imported before a command runs."""

import os

import click

VARIABLE = "TFF_MF_PLUGINS"


def _import(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> None:
    names = (*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)), *names)
    if context.resilient_parsing or not names:
        return
    # A second of import, which the help does not have to wait for.
    from tff_mf import registry

    for name in names:
        registry.import_plugin(name)
    # For the processes that a command starts, which may run in another folder.
    found = [os.path.abspath(name) if name.endswith(".py") else name for name in names]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(found))


plugin_option = click.option(
    "--plugin",
    metavar="MODULE",
    multiple=True,
    expose_value=False,
    callback=_import,
    help="Import a module, or a .py file, that registers mechanisms; may be repeated.",
)
