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

# The machine lacks space or handles, which no other path mends.
SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)

# In the order of use, which is the order of the help.
_COMMANDS = (
    *("demo", "optimize", "show", "plan", "account"),
    *("train", "train-central", "compare", "report"),
    *("export", "check", "doctor"),
)
_IN_FILES_OF_OTHERS = {"demo": "compare", "show": "optimize", "check": "doctor", "train_central": "train"}
_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "rich_help_config": {
        # Headings and columns, without boxes.
        "theme": "default-slim",
        "text_paragraph_linebreaks": "\n\n",
    },
}
_INTERRUPTED = "interrupted"
# By default Python looks for garbage so often that importing TensorFlow, which makes none, takes up to a tenth longer.
_OBJECTS_BEFORE_COLLECTION = 20_000


class _Commands(click.RichGroup):
    """The commands in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in _COMMANDS:
            ctx.fail(f"No such command {cmd_name!r}{validation.did_you_mean(cmd_name, _COMMANDS)}")
        name = cmd_name.replace("-", "_")
        module = _IN_FILES_OF_OTHERS.get(name, name)
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(package_name="tff-mf")
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
        _end(2, error.format_message())
    except InputError as error:
        _end(2, str(error))
    except (KeyboardInterrupt, click.Abort):
        _end(1, _INTERRUPTED)
    except MemoryError as error:
        _end(1, f"not enough memory{f': {error}' if str(error) else ''}; saved files are intact")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            where = f"{error.filename}: " if error.filename else ""
            _end(1, f"{where}{error.strerror}; saved files are intact (train: --resume)")
        # TensorFlow may turn an interrupt into another error.
        if signal.getsignal(signal.SIGINT) is not _end_now:
            raise
        _end(1, _INTERRUPTED)
    finally:
        # During shutdown TFF's context would print an error, if a command has imported TFF.
        if "tff_mf.aggregators" in sys.modules:
            from ...aggregators.resident.worker import end_with_program

            end_with_program()
    sys.exit(status if isinstance(status, int) else 0)


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
        os.write(sys.stderr.fileno(), f"tff-mf: {_INTERRUPTED}\n".encode())
    _end_at_once(1)


def _end_at_once(status: int) -> NoReturn:
    """Ends this process without unwinding, with its child processes; files are written atomically."""
    with contextlib.suppress(Exception):
        # Loaded if a process was started that would not end by itself.
        for child in sys.modules["psutil"].Process().children(recursive=True):
            child.kill()
    os._exit(status)


def _end(status: int, message: str) -> NoReturn:
    click.echo(f"tff-mf: {' '.join(message.split())}", err=True)
    sys.exit(status)
