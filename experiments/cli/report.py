"""`tff-mf report`: the privacy report of a run."""

import pathlib

import msgspec
import rich_click as click

from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError

from ..output.console import Markdown
from . import _options
from ._screens import Answer


@_options.command
@click.argument("run", metavar="RUN")
@click.option("--check", is_flag=True, help="Write nothing; compare the report with the files.")
@click.option(
    "--runs-before", type=int, help="Runs on the same clients before it, none with less noise; ε counts them."
)
@click.option("--end", is_flag=True, help="End a run whose newest checkpoint is lost: no round of it follows.")
def report(run: str, check: bool, runs_before: int | None, end: bool) -> Answer:
    """Write and print the privacy report of a run, from the files in its folder RUN, or check the one that is there.

    Writes report.json, report.md and report.html; of a run that has not begun, planned.json, planned.md and
    planned.html. With --check, every figure is computed again. Exit status 1 says that no ε can be stated, or that the
    report does not follow from the files. With --end, a run whose newest checkpoint is lost has ended: what it released
    has its ε, and its keys are deleted. With --runs-before K, ε of K more runs as this one was planned, and of this
    one, is stated too.
    """
    from .. import reports
    from ..runs import statements
    from ..runs.folders import readable_folder

    folder = readable_folder(pathlib.Path(run))
    if check and end:
        raise InputValueError("check=True does not go with end=True, which writes: leave one out.")
    if check and runs_before is not None:
        raise InputValueError(f"runs_before={runs_before} does not go with check=True, which takes the report's own.")
    before = 0 if runs_before is None else validation.whole("runs_before", runs_before)
    if end:
        _end(folder)
    if check:
        return _checked(folder)
    begun = reports.has_begun(folder)
    made = reports.write(folder, realised=begun, page=True, runs_before=before)
    if not begun:
        click.echo("by its files, nothing has run here: this is a plan", err=True)
    refused = begun and made.claim.state == statements.REFUSED
    return Answer(made.as_json(), [Markdown(reports.markdown(made, appendix=False))], failed=refused)


def _end(folder: pathlib.Path) -> None:
    from ..output import files
    from ..runs import folders, ledger, names

    if not (folder / names.LEDGER).is_file():
        raise InputValueError(f"run={str(folder)!r} has no {names.LEDGER}: no round of it has begun, so nothing ends.")
    with files.alone(folder), ledger.open_ledger(folder / names.LEDGER, ended=True) as book:
        if not book.record.ended:
            saved, released = checkpoint_files.saved_rounds(folder / names.CHECKPOINTS), book.record.last_released
            if released and saved and saved[-1] >= released:
                raise InputValueError(
                    f"run={str(folder)!r} can go on: its checkpoint of round {saved[-1]} is there, and --end would "
                    "delete it, and with it the only model. Go on, or end it with training.report(end=True), which "
                    f"keeps the model; or delete {names.CHECKPOINTS} yourself first."
                )
            book.end()
        folders.delete_keys(folder)


def _checked(folder: pathlib.Path) -> Answer:
    from .. import reports

    found = reports.check(folder)
    claim, sound = found.report.claim, not found.problems
    facts = {
        "sound": sound,
        "state": claim.state,
        "differs": list(found.differs),
        "reasons": [msgspec.to_builtins(reason) for reason in claim.reasons],
        "warnings": list(found.warnings),
    }
    verdict = f"The report {'differs from' if found.differs else 'follows from'} its files; ε is {claim.state}."
    lines = [
        *(f"- Differs: {name}" for name in found.differs),
        *(f"- Refused: {reason.field}: {reason.text}" for reason in claim.reasons),
        *(f"- Warning: {text}" for text in found.warnings),
    ]
    # A claim whose report does not follow from its files is not repeated.
    return Answer(facts, [verdict, "\n".join(lines), found.report.headline if sound else ""], failed=not sound)
