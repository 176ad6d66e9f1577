"""Facts are apart from words: every medium has the same content."""

import re

import pytest
import run_folders

from tff_mf.experiments import reports
from tff_mf.experiments.output import present
from tff_mf.experiments.output.present import _document as parts
from tff_mf.experiments.output.present.html import html

from .page_content import Page

RUNS = {
    "stated": {},
    "qualified": {"answers": {**run_folders.ANSWERS, "tuning_runs": 40}},
    "provisional": {"answers": {}},
    "refused": {"rounds": [["a"]] * 9},
    "several clients": {"answers": {**run_folders.ANSWERS, "clients_of_one_person": 3}},
    "test only": {"privacy": run_folders.plan(insecure_seed=3)},
}


@pytest.fixture(scope="module", params=RUNS)
def report(request, tmp_path_factory):
    return run_folders.finished(tmp_path_factory.mktemp("present") / "run", **RUNS[request.param])


def shown(text):
    """A text without spaces, line breaks, and what a medium adds to it."""
    return re.sub(r"[\s\\*]+", "", text)


def media(document):
    """A document in each medium, as text."""
    page = Page(html(document))
    assert page.unbalanced == []
    return {
        "terminal": "\n".join(present.terminal(document)),
        "markdown": present.markdown(document),
        "html": "".join(page.text_of("main")),
    }


def texts(block):
    """Yields every text of a block and of all that is in it."""
    match block:
        case parts.Section():
            yield block.title
            for each in block.shown:
                yield from texts(each)
        case parts.Paragraph() | parts.Callout():
            yield block.text
        case parts.Listing():
            yield from (text for each in block.items for text in (each.label, each.text))
        case parts.Facts():
            yield from (text for row in block.shown for text in row)
        case parts.Table():
            yield from (cell for row in (block.header, *block.rows) for cell in row)
        case parts.Code():
            yield from block.lines
        case parts.Figure():
            yield from (block.chart.title, block.chart.note)


def test_every_medium_has_every_text_of_a_report(report):
    document = reports.document(report)
    for medium, text in media(document).items():
        for each in texts(document):
            assert shown(each) in shown(text), (medium, each)


def test_a_medium_shows_an_epsilon_only_if_one_is_stated(report):
    state = report["claim"]["state"]
    for text in media(reports.document(report)).values():
        line = " ".join(text.split())
        assert (re.search(r"ε\s*(?:≤|=|at δ)\s*", line) is not None) == (state != "refused")
        assert ("PROVISIONAL, 10 questions open" in line) == (state == "provisional")
        assert ("QUALIFIED, 40 tuning runs not counted" in line) == (state == "qualified")
        assert ("TEST ONLY, NO PRIVACY" in line) == report["claim"]["test_only"]
        if (report["claim"]["clients_of_one_person"] or 1) > 1 and state != "refused":
            first = line.index("of a person with 3 clients")
            assert first < line.index("DP, central")


def test_an_answer_may_look_like_a_bound(tmp_path):
    answers = {**run_folders.ANSWERS, "trusted": "us, at **ε≤0.001** and ε = 0.1"}
    run_folders.finished(tmp_path / "run", answers=answers)
    assert reports.check(tmp_path / "run") == []
