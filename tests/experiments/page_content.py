"""What a web page of ours consists of: its elements, texts and everything that a browser would load."""

import html.parser
import re

EMPTY = {"br", "hr", "input", "meta"}
LOADS = {"src", "srcset", "href", "data", "action", "formaction", "poster", "background", "xlink:href", "ping"}


class Page(html.parser.HTMLParser):
    """The content of a page.

    Attributes:
        elements: Each tag with its attributes, in order.
        texts: The text of each element of a tag that is asked for, by `text_of`.
        unbalanced: Tags that do not match.
    """

    def __init__(self, text):
        super().__init__()
        self.elements, self.unbalanced, self._open, self._texts = [], [], [], []
        self.feed(text)
        self.close()
        self.unbalanced += [tag for tag, _ in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._texts.append([tag, dict(attrs), ""])
            self._open.append((tag, self._texts[-1]))

    def handle_endtag(self, tag):
        if self._open and self._open[-1][0] == tag:
            self._open.pop()
        else:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        for _, entry in self._open:
            entry[2] += data

    def named(self, tag):
        """The attributes of each element of a tag."""
        return [attributes for found, attributes in self.elements if found == tag]

    def text_of(self, tag, **wanted):
        """The texts of the elements of a tag that have some attributes."""
        return [
            text
            for found, attributes, text in self._texts
            if found == tag and all(attributes.get(name.rstrip("_")) == value for name, value in wanted.items())
        ]

    def loads(self):
        """Everything that a browser would load, or run when something happens."""
        found = [
            (tag, name)
            for tag, attributes in self.elements
            for name, value in attributes.items()
            # What a picture refers to is in the page.
            if name in LOADS - ({"href"} if tag == "use" and value.startswith("#") else set())
            or name.startswith("on")
            or name == "style"
        ]
        styles = "".join(self.text_of("style"))
        return (
            found
            + re.findall(r"url\(|@import|@font-face", styles)
            + [
                tag
                for tag, _ in self.elements
                if tag in ("link", "iframe", "img", "object", "embed", "base", "form", "a")
            ]
        )
