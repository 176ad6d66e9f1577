"""The `tff-mf` command; each subcommand is imported when it runs."""

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
import threading
from typing import NoReturn

import rich_click as click

from tff_mf.base import validation
from tff_mf.base.errors import InputError

from . import _boundary

# In the order of use, which is the order of the help.
_COMMANDS = (
    *("demo", "optimize", "show", "plan", "account"),
    *("train", "train-central", "compare", "report"),
    *("export", "doctor"),
)
# Groups of options in the help of every command; the others stand below.
_PANELS = {
    "What": "preset config assigned show dataset mechanism buffers bands workload grid dimension rounds epochs "
    "thorough",
    "Who takes part": "population clients_per_round sampling min_sep max_participations secret_cohorts",
    "Privacy": "epsilon noise_multiplier delta without_epsilon insecure_seed",
    "Output": "force resume out plot task_name as_json",
}
_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "rich_help_config": {
        # Headings and columns, without boxes.
        "theme": "default-slim",
        "default_string": "\\[default: {}]",
        "delimiter_slash": " / ",
        "padding_helptext_first_line": (0, 0, 1, 0),
        "text_paragraph_linebreaks": "\n\n",
        "option_groups": {"*": [{"name": name, "options": options.split()} for name, options in _PANELS.items()]},
    },
}
_INTERRUPTED = "tff-mf: interrupted"
# By default Python looks for garbage so often that importing TensorFlow, which makes none, takes up to a tenth longer.
_OBJECTS_BEFORE_COLLECTION = 20_000

# The machine lacks space or handles: reported in one line, without a traceback.
_SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)


class _Commands(click.RichGroup):
    """The commands in the order of use; without one, the help is printed, with status 2."""

    context_class = _boundary.Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        return getattr(importlib.import_module(f"{__name__}.{name}"), name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # To stderr, since there is no result.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            meant = validation.did_you_mean(args[0], _COMMANDS)
            raise click.UsageError(f"no such command {args[0]!r}{meant}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest


def _show_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    # A checkout asks git for it, which no other command has to wait for.
    import tff_mf

    click.echo(f"tff-mf, version {tff_mf.__version__}")
    context.exit()


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, with the commit that it was built from, and exit.",
)
def cli() -> None:
    """Matrix-factorization noise for differentially private federated learning."""


def main() -> NoReturn:
    """Runs the command line.

    Exit status: 0 done, 2 bad input (one line on stderr; the help if no command is named), 1 anything else.
    """
    _quiet()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    # If AutoGraph cannot write its files, on a full disk for example, it continues, and loops over data never end.
    os.environ.setdefault("AUTOGRAPH_STRICT_CONVERSION", "1")
    # A terminated run unwinds like an interrupted one, so that TFF's worker ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A shell starts background jobs with interrupts ignored. TFF's worker would inherit this, and TFF, which ends the
    # worker with an interrupt, would wait for ever. A handler is not inherited.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, (lambda *_: None) if ignored else _interrupt)
    sys.unraisablehook = _end_if_dropped
    try:
        status = cli.main(standalone_mode=False)
    except click.ClickException as error:
        _refuse(error.format_message())
    except InputError as error:
        _refuse(_boundary.with_origin(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo(_INTERRUPTED, err=True)
        sys.exit(1)
    except MemoryError as error:
        why = f": {error}" if str(error) else ""
        click.echo(f"tff-mf: {_boundary.line(f'not enough memory{why}')}; saved files are intact", err=True)
        sys.exit(1)
    except Exception as error:
        shortage = _shortage(error)
        if shortage is not None:
            where = f"{shortage.filename}: " if shortage.filename else ""
            click.echo(f"tff-mf: {where}{shortage.strerror}; saved files are intact (train: --resume)", err=True)
            sys.exit(1)
        unusable = _boundary.unusable(error, _boundary.invoked()) if isinstance(error, OSError) else None
        if unusable is not None:
            _refuse(unusable)
        # TensorFlow may turn an interrupt into another error.
        if signal.getsignal(signal.SIGINT) is not _end_now:
            raise
        click.echo(_INTERRUPTED, err=True)
        sys.exit(1)
    finally:
        _end_tff()
    sys.exit(status if isinstance(status, int) else 0)


def _end_tff() -> None:
    """Ends TFF's context with the program, if a command has imported TFF: during shutdown it would print an error."""
    if "tff_mf.aggregators" in sys.modules:
        from ...aggregators.resident.worker import end_with_program

        end_with_program()


def _quiet() -> None:
    """Keeps TensorFlow's log off the screen, unless the level 0 asks for all of it.

    On every start TensorFlow reports as errors that it registers cuDNN, cuFFT and cuBLAS twice, and that there is no
    GPU. Other levels may come from a build, or from JAX, which sets one for its child processes. Relevant errors reach
    Python as exceptions, and fatal ones are written at every level.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def _interrupt(number: int, frame: object) -> NoReturn:
    """Unwinds, so that everything ends in order; the next interrupt ends the process at once."""
    signal.signal(signal.SIGINT, _end_now)
    raise KeyboardInterrupt


def _end_if_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    """Ends this process at once if Python dropped an interrupt, because it came while an object was being freed."""
    error = dropped.exc_value
    # Signals belong to the main thread; an error dropped in another thread would have ended only that thread.
    here = threading.current_thread() is threading.main_thread()
    if here and isinstance(error, KeyboardInterrupt):
        _end_now()
    elif here and isinstance(error, SystemExit):
        _end_at_once(error.code if isinstance(error.code, int) else 1)
    else:
        sys.__unraisablehook__(dropped)


def _end_now(*_: object) -> NoReturn:
    """Ends an interrupted process at once, with one line."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"{_INTERRUPTED}\n".encode())
    _end_at_once(1)


def _end_at_once(status: int) -> NoReturn:
    """Ends this process without unwinding, with its child processes; files are written atomically."""
    with contextlib.suppress(Exception):
        # Loaded if a process was started that would not end by itself.
        for child in sys.modules["psutil"].Process().children(recursive=True):
            child.kill()
    os._exit(status)


def _shortage(error: BaseException | None) -> OSError | None:
    """Returns the shortage, such as a full disk, behind an error: TensorFlow raises its own errors for it."""
    while error is not None:
        found = error if isinstance(error, OSError) else _seen_by_tensorflow(error)
        if found is not None and found.errno in _SHORTAGES:
            return found
        error = error.__cause__ or error.__context__
    return None


def _seen_by_tensorflow(error: BaseException) -> OSError | None:
    """Returns the system's error behind one of TensorFlow, which writes files too, and keeps no more than its words."""
    if not type(error).__module__.startswith("tensorflow."):
        return None
    # "metrics.csv.tmp; No space left on device"
    where, _, why = str(error).partition("; ")
    return next((OSError(each, os.strerror(each), where) for each in _SHORTAGES if os.strerror(each) in why), None)


def _refuse(message: str) -> NoReturn:
    click.echo(f"tff-mf: {_boundary.line(message)}", err=True)
    sys.exit(2)
