"""The documentation site: every page is in its navigation, and its check finds what a page loads from elsewhere."""

import pathlib
import re
import runpy

import pytest

HERE = pathlib.Path(__file__).resolve().parent.parent
CHECK = runpy.run_path(str(HERE / "docs" / "site" / "check.py"))
NAVIGATION = (HERE / "mkdocs.yml").read_text().split("\nnav:\n")[1]
# Made by docs/site/hooks.py when the site is built.
GENERATED = {
    "index.md": "README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    named = set(re.findall(r": (\S+\.md)$", NAVIGATION, re.M))
    pages = {path.relative_to(HERE / "docs").as_posix() for path in (HERE / "docs").rglob("*.md")}
    pages |= {
        path.relative_to(HERE / "docs").with_suffix(".md").as_posix() for path in (HERE / "docs").rglob("*.ipynb")
    }
    generated = {name for name in named if name.startswith("reference/")} | set(GENERATED)
    # Proofs are linked from the pages that state what they show.
    proofs = {page for page in pages if page.startswith("proofs/")}
    assert named - generated == pages - proofs
    texts = [path.read_text() for path in (HERE / "docs").glob("*.md")]
    for proof in proofs:
        assert any(f"({proof})" in text for text in texts), proof
    assert all((HERE / source).is_file() for source in GENERATED.values())


def test_each_section_of_public_names_has_its_generated_page():
    sections = (HERE / "docs" / "api.md").read_text()
    modules = re.findall(r"^## `([\w.]+)`", sections, re.M)
    assert re.findall(r": reference/(\S+)\.md$", NAVIGATION, re.M) == modules


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://example.org/a.js"></script>'),
        ("page.html", '<img src="//example.org/a.png">'),
        ("page.html", '<link rel="stylesheet" href="https://example.org/a.css">'),
        ("page.html", '<link rel="preconnect" href="https://example.org" crossorigin>'),
        ("page.html", '<p style="background: url(https://example.org/a.png)">'),
        ("page.html", "<style>@import 'https://example.org/a.css';</style>"),
        ("page.css", "@font-face{src:url(https://example.org/a.woff2)}"),
        ("page.js", 'load("https://unpkg.com/a")'),
        ("page.svg", "<style>text{font-family:url(https://example.org/a.woff2)}</style>"),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(name, text, tmp_path):
    (tmp_path / "index.html").write_text('<script src="a.js"></script>')
    assert CHECK["main"](tmp_path) == []
    (tmp_path / name).write_text(text)
    assert len(CHECK["main"](tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<a href="https://example.org">a link</a><link rel="canonical" href="https://example.org">'),
        ("page.css", "/* https://example.org/licence */ a{background:url(a.svg)}"),
        ("page.js", '/* https://example.org */ load("http://www.w3.org/2000/svg")'),
    ],
)
def test_links_and_names_load_nothing(name, text, tmp_path):
    (tmp_path / "index.html").touch()
    (tmp_path / name).write_text(text)
    assert CHECK["main"](tmp_path) == []


def test_a_folder_without_a_site_does_not_pass(tmp_path):
    assert "is not a site" in CHECK["main"](tmp_path)[0]


def test_the_sources_have_no_markdown_that_the_site_reads_otherwise():
    """Python-Markdown needs an empty line before a list, and takes _ and * after some signs for emphasis."""
    for path in [*(HERE / "docs").rglob("*.md"), *(HERE / name for name in GENERATED.values())]:
        text = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(), flags=re.M | re.S)
        assert not re.findall(r"^[^\s|>*\d-][^\n]*\n- .*", text, re.M), path
        assert not re.findall(r"[\u0300-\u036f]_(?=\w)(?:(?!\n\n|\n- | \| ).)+?(?<!\\)_(?!\w)", text, re.S), path
        assert not re.findall(r"\w\*(?=[_)])[^*]*\w\*(?=[_)])", text), path
