"""What the report of a run would state if the run stopped now."""

import dataclasses
import pathlib

from ..privacy import statements
from ..run_folder.run_json import read_configuration
from . import _figures, _verdict
from ._assumptions import assess
from ._evidence import gather
from .questions import read_answers


def claim_so_far(folder: pathlib.Path) -> statements.Claim | None:
    """Returns what the headline of a run's realised report states if no round follows, or `None` if that is no ε.

    Formal guarantee: the guarantee is that of the headline, by whole patterns of the log, and for a run that stops
    early no less than what was planned: see `_figures.stated`. Questions that nobody has answered yet are taken to be
    answered with what voids nothing; until they are, a report states no ε.

    Args:
        folder: The run's folder, of which the ledger has the last round as released.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none.
    """
    configuration = read_configuration(folder)
    evidence = gather(folder, configuration, realised=True)
    if evidence.ledger is not None:
        # As it will be if the run stops: until then a report cannot know that no round is missing.
        evidence = dataclasses.replace(evidence, ledger=dataclasses.replace(evidence.ledger, ended=True))
    answers = read_answers(folder)
    planned = None if evidence.mechanism is None else _figures.planned(configuration, evidence.mechanism)
    seen = None if evidence.impossible else _figures.realised(configuration, evidence)
    figures = _figures.stated(configuration, evidence, planned, seen, realised=True)
    findings = _verdict.findings(
        configuration,
        evidence,
        answers,
        assess(configuration, evidence, answers, realised=True),
        figures,
        None,
        contradiction=_figures.contradiction(configuration, evidence, planned, seen),
    )
    claim = _verdict.claim(configuration, answers, figures, findings, True, evidence)
    claim = dataclasses.replace(claim, unanswered=())
    return None if statements.refusal(claim) else claim
