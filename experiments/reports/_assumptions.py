"""The assumptions of a run's guarantee, and whether each of them holds."""

from collections.abc import Callable, Mapping

from ..run_folder import initial_model
from . import _arithmetic
from . import _assumptions_on_logs as logs
from . import _assumptions_on_settings as settings
from ._case import Case
from ._findings import ASSUMED, VIOLATED, Assumption, Judged
from .questions import QUESTIONS

_JUDGES: Mapping[str, Callable[[Case], Judged]] = {
    "participation": logs.participation,
    "sampler": logs.sampler,
    "log": logs.log,
    "one release a round": logs.releases,
    "mechanism": settings.mechanism,
    "randomness": settings.randomness,
    "released without noise": settings.without_noise,
    "divisor": settings.divisor,
    "cohort": settings.cohort,
    "clipping": settings.clipping,
    "restarts": logs.restarts,
    _arithmetic.ARITHMETIC: _arithmetic.judged,
    "choice of settings": settings.choice_of_settings,
}
# Assumed unless the answer to the question of this name voids them.
_NOT_CHECKED = {
    "participation_depends_on_data": "who takes part when does not depend on the clients' data",
    "state_is_secret": "only those who are trusted see the server's state, with its keys and noise rows",
}


def assess(case: Case) -> list[Assumption]:
    """Returns each assumption with its state, from `run.json`, the answers and, in a final report, the logs."""
    found = []
    for name, judge in _JUDGES.items():
        state, text = judge(case)
        found.append(Assumption(name=name, state=state, text=text))
    given = initial_model.of_settings(case.record.settings)
    if given or case.evidence.initial_model_sha256:
        state, text = settings.starts_from(case, given)
        found.append(Assumption(name="initial model", state=state, text=text))
    voided = dict(_voided(case))
    found += [Assumption(name=name, state=VIOLATED, text=text) for name, text in voided.items()]
    return found + [
        Assumption(name=name, state=ASSUMED, text=f"{text}; this cannot be checked here")
        for name, text in _NOT_CHECKED.items()
        if name not in voided
    ]


def _voided(case: Case) -> list[tuple[str, str]]:
    """Returns the questions with an answer that voids the guarantee, and why it does."""
    answered = [(each, case.answers[each.name]) for each in QUESTIONS if each.name != "other_releases"]
    found = [(each.name, "" if answer is None else each.voids(answer)) for each, answer in answered]
    return [(name, text) for name, text in found if text]
