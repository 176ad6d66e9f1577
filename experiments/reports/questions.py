"""Questions to the operator of a run: ε is provisional before all are answered."""

import dataclasses
import difflib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.base import strict_json
from tff_mf.base.errors import InputValueError

from ..output.typed import MOST_CLIENTS
from ..runs.names import ANSWERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question that is answered in `answers.json`, under its name.

    Attributes:
        fits: Whether a value answers the question.
        parse: From typed text to an answer; raises `ValueError` if it is not one.
        voids: Code of why an answer voids the guarantee; an empty text if it does not.
    """

    name: str
    text: str
    fits: Callable[[Any], bool]
    parse: Callable[[str], Any] = str
    voids: Callable[[Any], str] = lambda answer: ""


def _yes_or_no(typed: str) -> bool:
    found = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(typed.lower())
    if found is None:
        raise ValueError("answer yes or no")
    return found


def _asks_text(name: str, text: str) -> Question:
    return Question(name=name, text=text, fits=lambda answer: isinstance(answer, str) and bool(answer.strip()))


def _asks_truth(name: str, text: str, voids: Callable[[Any], str]) -> Question:
    return Question(name=name, text=text, voids=voids, parse=_yes_or_no, fits=lambda answer: isinstance(answer, bool))


def _asks_count(name: str, text: str, *, at_least: int) -> Question:
    def fits(answer: Any) -> bool:
        is_whole = isinstance(answer, int) and not isinstance(answer, bool)
        return is_whole and at_least <= answer <= MOST_CLIENTS

    return Question(name=name, text=text, parse=int, fits=fits)


QUESTIONS = (
    _asks_text("trusted", "Who sees raw updates and the server's state, and is trusted with them?"),
    _asks_text("unit", "What is one client: a device, a person, an account? What data does it hold?"),
    _asks_count(
        "clients_of_one_person",
        "How many clients can belong to one person at most? A whole number; above 1, ε of a group is stated.",
        at_least=1,
    ),
    _asks_count(
        "population",
        "How many clients can take part? A whole number; of a simulation, those simulated.",
        at_least=1,
    ),
    _asks_text(
        "enforcement",
        "What keeps clients from coming back sooner or more often: a server's sampler, a timer on the client?",
    ),
    _asks_truth(
        "participation_depends_on_data",
        "Does who takes part when depend on the clients' data? true or false.",
        voids=lambda answer: "depends_on_data" if answer else "",
    ),
    _asks_count(
        "tuning_runs",
        "How many earlier runs on these clients chose the settings? A whole number; they are not covered.",
        at_least=0,
    ),
    Question(
        name="pretraining",
        text="What data was the initial model trained on: none, public, or private to these clients?",
        fits=lambda answer: answer in ("none", "public", "private"),
        parse=str.lower,
        voids=lambda answer: "pretraining_private" if answer == "private" else "",
    ),
    _asks_text(
        "other_releases",
        "What else of these clients leaves the server without noise (training metrics, counts)? none, or what.",
    ),
    _asks_truth(
        "state_is_secret",
        "Is the server's state, with its keys and noise rows, seen by nobody but those trusted? true or false.",
        voids=lambda answer: "" if answer else "state_known",
    ),
)

# Optional: no guarantee depends on it.
ANSWERED_BY = _asks_text("answered_by", "Who answers these questions? A name or a role; it may stay open.")
ASKED = (*QUESTIONS, ANSWERED_BY)


def read_answers(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the answers in a run's folder, `None` for open questions."""
    path = folder / ANSWERS
    return checked(_loaded(path) if os.path.lexists(path) else {}, str(path), remedy(folder))


def remedy(folder: pathlib.Path) -> str:
    """Returns how to correct the answers in a folder, for an error message."""
    return f"correct the file; or remove it, and `tff-mf report {folder} --answer` asks anew on a terminal"


def checked(given: Any, source: str, mend: str = "correct it") -> dict[str, Any]:
    """Returns the answers, with `None` for open questions."""
    if not isinstance(given, Mapping):
        raise InputValueError(f"answers={source!r} must hold one JSON object with an answer for each question: {mend}.")
    by_name = {question.name: question for question in ASKED}
    for name, answer in given.items():
        if name not in by_name:
            nearest = difflib.get_close_matches(name, by_name, n=1, cutoff=0.0)[0]
            raise InputValueError(
                f"answers={source!r} has {name!r}, which is not a question; the nearest is {nearest!r}: {mend}."
            )
        if answer is not None and not by_name[name].fits(answer):
            raise InputValueError(
                f"answers={source!r}: {name}={answer!r:.80} does not answer: {by_name[name].text} "
                f"{mend[:1].upper()}{mend[1:]}."
            )
    return {name: given.get(name) for name in by_name}


def as_text(answers: Mapping[str, Any]) -> str:
    """Returns the text of `answers.json` for answers: every question, with `null` for the open ones."""
    content = {question.name: answers.get(question.name) for question in ASKED}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _loaded(path: pathlib.Path) -> Any:
    """Returns the content of a file with answers; raises if it is empty, damaged, or cannot be read."""
    mend = remedy(path.parent)
    try:
        content = path.read_text(encoding="utf-8")
        if not content.strip():
            raise InputValueError(f"answers={str(path)!r} is empty: {mend}.")
        return strict_json.loads(content)
    except OSError as error:
        raise InputValueError(f"answers={str(path)!r} cannot be read ({error.strerror}): {mend}.") from error
    except InputValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"answers={str(path)!r} is damaged ({error}): {mend}.") from error
