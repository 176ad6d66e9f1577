"""What only the user knows: asked for, and without an answer no finite ε is stated."""

import dataclasses
import difflib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.errors import InputValueError

from ..output import strict_json
from ..privacy.statements import ANSWERS as ANSWERS
from ..run_folder import field_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Something to answer in `answers.json`.

    Attributes:
        name: Key of the answer.
        text: The question, with the answers that there are.
        fits: Whether an answer is one.
        parse: The answer that somebody typed; raises `ValueError` for none.
        voids: What an answer would void, or empty.
    """

    name: str
    text: str
    fits: Callable[[Any], bool]
    parse: Callable[[str], Any] = str
    voids: Callable[[Any], str] = lambda answer: ""


def _text(answer: Any) -> bool:
    return isinstance(answer, str) and bool(answer.strip())


def _truth(answer: Any) -> bool:
    return isinstance(answer, bool)


def _count(at_least: int) -> Callable[[Any], bool]:
    return lambda answer: (
        isinstance(answer, int) and not isinstance(answer, bool) and at_least <= answer <= field_types.MOST_CLIENTS
    )


def _yes_or_no(typed: str) -> bool:
    found = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(typed.lower())
    if found is None:
        raise ValueError("no answer to yes or no")
    return found


QUESTIONS = (
    Question(name="trusted", text="Who sees raw updates and the server's state, and is trusted with them?", fits=_text),
    Question(
        name="unit", text="What is one client: a device, a person, an account? What data does it hold?", fits=_text
    ),
    Question(
        name="clients_of_one_person",
        text="How many clients can belong to one person at most? A whole number; above 1, ε of a group is stated.",
        fits=_count(1),
        parse=int,
    ),
    Question(
        name="population",
        text="How many clients can take part? A whole number; of a simulation, those simulated.",
        fits=_count(1),
        parse=int,
    ),
    Question(
        name="enforcement",
        text="What keeps clients from coming back sooner or more often: a server's sampler, a timer on the client?",
        fits=_text,
    ),
    Question(
        name="participation_depends_on_data",
        text="Does who takes part when depend on the clients' data? true or false.",
        fits=_truth,
        parse=_yes_or_no,
        voids=lambda answer: "patterns of participation must not depend on the data" if answer else "",
    ),
    Question(
        name="tuning_runs",
        text="How many earlier runs on these clients chose the settings? A whole number; they are not covered.",
        fits=_count(0),
        parse=int,
    ),
    Question(
        name="pretraining",
        text="What data was the initial model trained on: none, public, or private to these clients?",
        fits=lambda answer: answer in ("none", "public", "private"),
        parse=str.lower,
        voids=lambda answer: "pretraining on these clients' data has no guarantee here" if answer == "private" else "",
    ),
    Question(
        name="other_releases",
        text="What else of these clients leaves the server without noise (training metrics, counts)? none, or what.",
        fits=_text,
        voids=lambda answer: "" if answer.strip().lower() == "none" else f"released without noise: {answer}",
    ),
    Question(
        name="state_is_secret",
        text="Is the server's state, with its keys and noise rows, seen by nobody but those trusted? true or false.",
        fits=_truth,
        parse=_yes_or_no,
        voids=lambda answer: "" if answer else "whoever has the state can take the noise off",
    ),
)


def read_answers(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the answers in a run's folder, `None` for those that are missing.

    Raises:
        InputValueError: If the file is empty or no JSON object, or has a key or an answer that fits no question.
    """
    path = folder / ANSWERS
    return checked(_loaded(path) if os.path.lexists(path) else {}, str(path), remedy(folder))


def remedy(folder: pathlib.Path) -> str:
    """Returns what mends the answers in a folder, for an error message."""
    return f"`tff-mf report {folder} --answer` asks anew on a terminal; or correct the file, or remove it"


def checked(given: Any, source: str, mend: str = "correct it") -> dict[str, Any]:
    """Returns the answers, with `None` for those that are missing.

    Args:
        given: What a file says.
        source: The file.
        mend: What mends it.

    Raises:
        InputValueError: If it is no object, or has a key or an answer that fits no question.
    """
    if not isinstance(given, Mapping):
        raise InputValueError(f"answers={source!r} must hold one JSON object with an answer for each question: {mend}.")
    by_name = {question.name: question for question in QUESTIONS}
    for name, answer in given.items():
        if name not in by_name:
            nearest = difflib.get_close_matches(name, by_name, n=1, cutoff=0.0)[0]
            raise InputValueError(
                f"answers={source!r} has {name!r}, which is no question; the nearest is {nearest!r}: {mend}."
            )
        if answer is not None and not by_name[name].fits(answer):
            raise InputValueError(
                f"answers={source!r}: {name}={answer!r:.80} does not answer: {by_name[name].text} {_upper(mend)}."
            )
    return {name: given.get(name) for name in by_name}


def as_text(answers: Mapping[str, Any]) -> str:
    """Returns what `answers.json` holds for answers: every question, `null` where there is none."""
    return (
        json.dumps({question.name: answers.get(question.name) for question in QUESTIONS}, indent=1, ensure_ascii=False)
        + "\n"
    )


def _loaded(path: pathlib.Path) -> Any:
    """Returns what a file of answers says.

    Raises:
        InputValueError: If it is empty, damaged, or cannot be read.
    """
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


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
