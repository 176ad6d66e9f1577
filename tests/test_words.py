"""Words that the project does not use, with those to use in their place; see CONTRIBUTING.md."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SEARCHED = ("tff_mf", "aggregators", "experiments", "benchmarks", "docs", "tests")
ENDINGS = {".py", ".md", ".toml", ".sh", ".conf", ".nft", ".yaml"}
ALONE = (
    "README.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Makefile",
    "setup.py",
    "pyproject.toml",
    "CITATION.cff",
)
# Texts of earlier versions stay as they were.
LEFT_OUT = ("tests/test_words.py",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Word:
    """A pattern that no text has, the remedy, and the files that may have it all the same."""

    pattern: str
    instead: str
    allowed: tuple[str, ...] = ()
    case: bool = False

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """Yields the line and the text of each match; a space also stands for the end of a line, or of a comment's."""
        pattern = self.pattern.replace(" ", r"(?:\s|#)+")
        for match in re.finditer(pattern, text, 0 if self.case else re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match.group().split())


# They define, list or test former names, or read files that have them.
FORMER_NAMES = (
    "docs/api.md",
    "experiments/reports/_run_text.py",
    "tests/experiments/test_reports.py",
    "tff_mf/__init__.py",
    "tff_mf/queries/__init__.py",
    "tff_mf/optimize/former_results.py",
    "tests/tff_mf/test_public_names.py",
    "tests/tff_mf/test_former_names.py",
)
# The page of a report is compared byte by byte, also with those of earlier releases.
TEMPLATES = ("docs/report.md", "experiments/reports/_appendix.py", "experiments/reports/_run_text.py")
WORDS = {
    "floor": Word(pattern=r"\bfloors?\s?[0-9]|\b(?:this|that|each|a|the) floor(?:'s)?\b", instead="layer"),
    "room": Word(pattern=r"\brooms\b|\brooms? of (?:floor|layer)|\bin its room\b", instead="package"),
    "currency": Word(pattern=r"\bcurrenc(?:y|ies)\b", instead="privacy measure"),
    "made for": Word(pattern=r"\bMadeFor\b", instead="OptimizedFor", allowed=FORMER_NAMES, case=True),
    "structured": Word(
        pattern=r"\b(?:optimize_structured(?:_result)?|Structured(?:Query)?)\b",
        instead="BandedPlusLowRank, optimize_banded_plus_low_rank",
        allowed=FORMER_NAMES,
        case=True,
    ),
    "as run": Word(pattern=r"\bas_run\(", instead="cast_to_float32()", case=True),
    "separation, limit": Word(
        pattern=r"\b(?:participation|schema)\.(?:separation|limit)\b", instead="min_sep, max_participations"
    ),
    "whoever": Word(pattern=r"\bwho(?:m)?ever\b", instead="anyone who, or name the person", allowed=TEMPLATES),
    "what counts": Word(pattern=r"\bwhat counts\b", instead="name what is meant"),
    "nobody searched": Word(pattern=r"\bnobody searched\b", instead="was not optimized"),
    "no artifact": Word(pattern=r"\bis no artifact to rely on\b", instead="is not a valid artifact"),
    "held against": Word(pattern=r"\b(?:is|are) held against\b", instead="is compared with", allowed=TEMPLATES),
    "says another": Word(pattern=r"\bsays? another\b", instead="does not match"),
    "goes on with": Word(pattern=r"\bgo(?:es)? on with\b", instead="continues with"),
    "said of": Word(pattern=r"\b(?:is|are) said of\b", instead="about"),
    "none that": Word(pattern=r"\bis none that\b", instead="is unknown, or is not one that"),
}


def texts() -> list[pathlib.Path]:
    """Returns the files with words of the project's own."""
    found = [path for folder in SEARCHED for path in sorted((ROOT / folder).rglob("*")) if path.suffix in ENDINGS]
    named = {path: path.relative_to(ROOT).as_posix() for path in (*found, *(ROOT / name for name in ALONE))}
    return [path for path, name in named.items() if path.is_file() and not name.startswith(LEFT_OUT)]


@pytest.mark.parametrize("name", WORDS)
def test_no_text_has_the_word(name):
    word = WORDS[name]
    places = [
        f"{path.relative_to(ROOT)}:{line}: {match!r}: say {word.instead}"
        for path in texts()
        if path.relative_to(ROOT).as_posix() not in word.allowed
        for line, match in word.found(path.read_text(encoding="utf-8"))
    ]
    assert not places, "\n".join(["words that the project does not use:", *places])


def test_all_kinds_of_texts_are_read():
    names = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {"README.md", "docs/architecture.md", "tff_mf/__init__.py", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith(LEFT_OUT)]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("floor", "# the tests of\n# floor 1", 2),
        ("floor", "FLOOR1 := .venv", 1),
        ("whoever", "kept from\nWhoever reads it", 2),
        ("what counts", "a message for what\n    # counts", 1),
        ("currency", "other currencies", 1),
        ("made for", "from tff_mf import MadeFor", 1),
    ],
)
def test_a_word_is_found_in_its_line(name, text, line):
    assert [number for number, _ in WORDS[name].found(text)] == [line]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("floor", "math.floor(2.5); log₂ rounded to the lower integer"),
        ("room", "room for every rounding"),
        ("currency", "at most one call: concurrency"),
        ("made for", '"made_for" is the key in stored files'),
        ("as run", "sensitivity_as_run"),
    ],
)
def test_other_uses_are_not_found(name, text):
    assert list(WORDS[name].found(text)) == []
