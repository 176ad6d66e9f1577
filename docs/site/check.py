"""Fails if a page of the built site loads anything from elsewhere: `python docs/site/check.py build/site`.

Links that a reader clicks may lead elsewhere; scripts, styles, fonts, pictures and frames may not.
"""

import html.parser
import pathlib
import re
import sys

# What a browser loads by itself, by tag.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_FETCHED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
_ELSEWHERE = re.compile(r"^\s*(?:\w+:)?//")
# In styles and scripts: what is loaded, not names of licences and of XML.
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*['"]?\s*(?:https?:)?//[^'")\s]+""")
_IN_SCRIPTS = re.compile(r"https?://(?:unpkg|cdn|fonts|ajax|www\.google)[\w.-]*[^'\"`\s]*")


class _Loads(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        loaded = [values.get(_LOADED.get(tag, ""), "")]
        if tag == "link" and _FETCHED_LINKS & set(values.get("rel", "").split()):
            loaded.append(values.get("href", ""))
        self.found += [value for value in loaded if _ELSEWHERE.match(value)]
        self.found += _IN_STYLES.findall(values.get("style", ""))


def loaded_from_elsewhere(path: pathlib.Path) -> list[str]:
    """Returns the addresses outside of the site that a file of it makes a browser load."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".html":
        page = _Loads()
        page.feed(text)
        styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.S)
        return page.found + [found for style in styles for found in _IN_STYLES.findall(style)]
    return (_IN_SCRIPTS if path.suffix == ".js" else _IN_STYLES).findall(text)


def main(folder: pathlib.Path) -> list[str]:
    """Returns a line for each address outside of the site that is loaded."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in {".html", ".css", ".js", ".svg"}]
    if not any(path.name == "index.html" for path in files):
        return [f"{folder} is not a site: it has no index.html. Run `make docs`."]
    return [f"{path}: loads {found}" for path in files for found in loaded_from_elsewhere(path)]


if __name__ == "__main__":
    problems = main(pathlib.Path(sys.argv[1]))
    print("\n".join(problems), file=sys.stderr)
    sys.exit(bool(problems))
