"""Groups of commands: messages for a wrong or missing command, and the command to which an error belongs."""

import contextvars
import re
from collections.abc import Iterable
from typing import Any, NoReturn

import click

from tff_mf import validation

from . import _boundary

_latest: contextvars.ContextVar[click.Context | None] = contextvars.ContextVar("latest", default=None)


_HYPHEN = "\N{NON-BREAKING HYPHEN}"


class _Formatter(click.HelpFormatter):
    """Never breaks a line inside a flag."""

    def write_text(self, text: str) -> None:
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _unbroken(text)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


def _unbroken(text: str) -> str:
    return re.sub(r"--?\w[\w-]*", lambda flag: flag.group().replace("-", _HYPHEN), text)


class _Context(click.Context):
    formatter_class = _Formatter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _latest.set(self)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        _boundary.check(self)
        return super().invoke(*args, **kwargs)


class Group(click.Group):
    """A group that prints its help, with exit status 2, if no command is named, and suggests one for a wrong name."""

    context_class = _Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # To stderr, since there is no result.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            self._refuse(ctx, name)
        found = super().resolve_command(ctx, args)
        if found[1] is not None:
            found[1].context_class = _Context
        return found

    def _refuse(self, ctx: click.Context, name: str) -> NoReturn:
        meant = validation.did_you_mean(name, self.list_commands(ctx))
        see = f" See {ctx.command_path} --help." if meant == "." else ""
        raise click.UsageError(f"no such command {name!r}{meant}{see}", ctx)

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        """Returns a summary of each command."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {
            name: " ".join((command.help or "").split("\n\n")[0].split())
            for name, command in commands.items()
            if command
        }

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx).items()))


def refusal(error: click.ClickException) -> str:
    """Returns the message of an error of click, with the nearest flag for a wrong one."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        flags = [flag for each in error.ctx.command.params for flag in each.opts if flag.startswith("--")]
        return f"no such option {error.option_name!r}{validation.did_you_mean(error.option_name, flags)}"
    return error.format_message()


def invoked() -> click.Context | None:
    """Returns the context of the last invoked command, even after its end."""
    return _latest.get()
