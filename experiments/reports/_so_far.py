"""What the report of a run would state if the run stopped now."""

import dataclasses
import pathlib

from ..privacy import statements
from ..run_folder.run_record import read_record
from ._case import Case
from ._evidence import gather
from ._judgement import judge
from .questions import read_answers


def claim_so_far(folder: pathlib.Path) -> statements.Claim | None:
    """Returns what the headline of the final report would state if no further round followed.

    Formal guarantee: the guarantee is the headline's, for the observed rounds of each client, and at least the
    plan's, since the run would stop early: see `_figures.stated`. Open questions are taken to be answered with
    what voids nothing; until they are answered, the claim is provisional.

    Args:
        folder: The run's folder, whose ledger has the last round as released.

    Returns:
        The claim; `None` if no ε could be stated.

    Raises:
        InputValueError: If `run.json` or `answers.json` is missing or damaged.
    """
    record = read_record(folder)
    evidence = gather(folder, realised=True)
    if evidence.ledger is not None:
        # As if the run ended here: only then can a report know that no round is missing.
        evidence = dataclasses.replace(evidence, ledger=dataclasses.replace(evidence.ledger, ended=True))
    case = Case(record=record, evidence=evidence, answers=read_answers(folder), realised=True)
    claim = judge(folder, case, audited=False, summarised=False).claim
    return None if statements.state(claim) == statements.REFUSED else claim
