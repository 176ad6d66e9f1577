"""`tff-mf --version`."""

import click


def _show(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    # A checkout asks git for it, which no other command has to wait for.
    import tff_mf

    click.echo(f"tff-mf, version {tff_mf.__version__}")
    context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show,
    help="Show the version, with the commit that it was built from, and exit.",
)
