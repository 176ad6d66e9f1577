"""Parts that several pages have: sections, tables, lists to be ticked."""

from collections.abc import Collection, Iterable, Sequence

from ._charts import scrolled
from ._markup import Markup, element, together


def section(title: str, *content: Markup | str | None, name: str) -> Markup:
    """Returns a section with a heading; `name` is its id."""
    heading = element("h2", title, id=f"{name}-heading")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-heading")


def paragraphs(*texts: str | None) -> Markup:
    """Returns paragraphs; an empty text has none."""
    return element("div", *(element("p", each) for each in texts if each))


def bullets(texts: Iterable[object]) -> Markup:
    """Returns a list."""
    return element("ul", *(element("li", each) for each in texts))


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Returns names with a value beside each; those whose value is `None` are left out."""
    kept = [(name, value) for name, value in rows if value is not None]
    return element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in kept))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, name: str, words: Collection[str] = ()) -> Markup:
    """Returns a table; the first cell of a row is its heading, and the others are figures or names.

    Args:
        header: Headings of the columns.
        rows: The cells.
        name: What the table is, for those who do not see it.
        words: Headings of the columns of names.
    """
    kinds = ["name" if each in words else None for each in header]
    head = element(
        "tr", *(element("th", each, scope="col", class_=kind) for each, kind in zip(header, kinds, strict=True))
    )
    body = [
        element(
            "tr",
            element("th", first, scope="row"),
            *(element("td", each, class_=kind) for each, kind in zip(rest, kinds[1:], strict=True)),
        )
        for first, *rest in rows
    ]
    return scrolled(element("table", element("thead", head), element("tbody", *body)), name)


def checklist(items: Iterable[tuple[str, str]], *, name: str) -> Markup:
    """Returns a list to be ticked, with a count. The ticks are in the page alone, and gone when it is closed.

    Args:
        items: What each is called, and its text.
        name: A name for the ids.
    """
    entries = []
    for index, (title, text) in enumerate(items):
        own = f"{name}-{index}"
        # A browser would keep the tick over a reload.
        box = element("input", type="checkbox", id=own, autocomplete="off")
        entries.append(element("li", box, element("label", element("b", title), f": {text}", for_=own)))
    count = element("output", f"0 of {len(entries)} ticked", class_="count")
    return element("div", element("ul", *entries, class_="ticks"), element("p", count), class_="checklist")


def figures(*drawn: Markup) -> Markup:
    """Returns figures side by side, as many as the screen is wide enough for."""
    return element("div", *drawn, class_="figures")


def lines(title: str, texts: Iterable[str]) -> Markup:
    """Returns lines of text as they are, folded away below a title."""
    # Each is escaped by itself, so that it stays a line and keeps its indentation.
    shown = [part for each in texts for part in (_indented(each), Markup("\n"))]
    pre = element("pre", *shown, tabindex=0, role="region", aria_label=title)
    return element("details", element("summary", title), pre)


def _indented(line: str) -> Markup:
    # Columns of tables too.
    gaps = [part for word in line.split(" ") for part in (Markup("&#32;"), together(word))][1:]
    return Markup("".join(gaps))
