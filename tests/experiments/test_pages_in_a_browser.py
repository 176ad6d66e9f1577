"""Web pages in a real browser: nothing in its console, keyboard, width, sliders. Without Chromium they are skipped."""

import itertools
import json

import pytest

from . import browser, test_pages
from .page_content import Page

pytestmark = pytest.mark.skipif(browser.installed() is None, reason="no Chromium on this machine")
KINDS = test_pages.KINDS
WIDTHS = (380, 1400)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        text = test_pages.made(kind, folder)
        found[kind] = folder / "shown.html"
        found[kind].write_text(text, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def tab():
    with browser.opened() as found:
        yield found


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_loaded_complained_of_or_wider_than_the_screen(files, tab, kind):
    for width, scheme in itertools.product(WIDTHS, ("light", "dark")):
        tab.complaints.clear()
        tab.open(files[kind], width, scheme=scheme)
        tab.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.value("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)"
        )
        assert tab.complaints == []
        assert [each for each in tab.requests if each != files[kind].as_uri()] == []
        # A script of somebody else would have run by now.
        assert tab.value("document.querySelectorAll('img, iframe').length") == 0
    # Letters that are too small to read, at either width.
    for width in WIDTHS:
        tab.open(files[kind], width)
        scales = "Array.from(document.querySelectorAll('figure > svg')).map((e) => e.getBoundingClientRect().width)"
        assert all(12 * each / 380 >= 10 for each in tab.value(scales))


@pytest.mark.parametrize("kind", ["report", "comparison", "plan"])
def test_everything_can_be_reached_and_ticked_by_keyboard(files, tab, kind):
    tab.open(files[kind], 380)
    reachable = "Array.from(document.querySelectorAll('input, summary, button, [tabindex]'))"
    visible = f"{reachable}.filter((each) => each.checkVisibility({{contentVisibilityAuto: true}})).length"
    total = tab.value(visible)
    boxes = [
        each for each in Page(files[kind].read_text(encoding="utf-8")).named("input") if each["type"] == "checkbox"
    ]
    seen, ticked = set(), set()
    # A browser may also stop at what scrolls.
    for _ in range(2 * total):
        tab.press("Tab")
        here = "document.activeElement"
        name = tab.value(f"{here}.id || {here}.tagName + {here}.textContent.slice(0, 60)")
        if name.startswith("BODY") or name in ticked:
            break
        assert tab.value(f"getComputedStyle({here}).outlineStyle") != "none", name
        seen.add(name)
        if tab.value(f"{here}.type === 'checkbox'"):
            tab.press(" ")
            ticked.add(name)
            assert tab.value(f"{here}.checked")
    assert ticked == {each["id"] for each in boxes}
    assert len(seen) > len(ticked)
    counts = tab.value("Array.from(document.querySelectorAll('.count')).map((each) => each.textContent)")
    assert sum(int(each.split()[0]) for each in counts) == len(ticked)
    assert all(each.split()[0] == each.split()[2] for each in counts)
    # Ticks are kept in the page alone.
    assert tab.value("document.cookie") == ""
    tab.open(files[kind], 380)
    assert tab.value("document.querySelectorAll('input:checked').length") == 0


def test_sliders_show_the_computed_point_and_nothing_between(files, tab):
    tab.open(files["plan"], 380)
    page = Page(files["plan"].read_text(encoding="utf-8"))
    data = json.loads(page.text_of("script", type="application/json")[0])
    axes = data["axes"]
    cells = "Array.from(each.cells).map((cell) => cell.textContent)"
    rows = f"Array.from(document.querySelectorAll('#point-rows tr')).map((each) => {cells})"

    def expected(chosen):
        index = 0
        for axis, place in zip(axes, chosen, strict=True):
            index = index * len(axis["values"]) + place
        return data["points"][index]

    chosen = [axis["planned"] for axis in axes]
    assert tab.value(rows) == expected(chosen)["rows"]
    for number, axis in enumerate(axes):
        slider = f"document.getElementById('slider-{axis['name']}')"
        tab.value(f"{slider}.focus()")
        for key, place in (("Home", 0), ("ArrowRight", 1), ("End", len(axis["values"]) - 1), ("ArrowLeft", -2)):
            tab.press(key)
            chosen[number] = place % len(axis["values"])
            point = expected(chosen)
            assert tab.value(rows) == point["rows"]
            assert tab.value("document.getElementById('point-about').textContent") == point["about"]
            value = axis["values"][chosen[number]]
            assert tab.value(f"document.getElementById('value-{axis['name']}').textContent") == value
            assert tab.value(f"{slider}.getAttribute('aria-valuetext')") == value
        # What is between two positions becomes a position.
        tab.value(f"{slider}.value = 0.4; {slider}.dispatchEvent(new Event('input'))")
        assert tab.value(f"{slider}.value") == "0"
        chosen[number] = 0
        assert tab.value(rows) == expected(chosen)["rows"]
    tab.value("document.getElementById('planned').focus()")
    tab.press("Enter")
    assert tab.value(rows) == expected([axis["planned"] for axis in axes])["rows"]


@pytest.mark.parametrize("kind", ["report", "plan"])
def test_a_page_can_be_printed(files, tab, kind):
    tab.open(files[kind], 800, scheme="dark", media="print")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert len(tab.call("Page.printToPDF")["data"]) > 10_000
