"""Every message that docs/troubleshooting.md quotes is in the code."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OURS = PAGE.split("\n## Messages of TFF, TensorFlow and pip")[0]
ROWS = [row for row in re.findall(r"^\| (`.*) \|$", OURS, re.M) if not row.startswith("|--")]
MESSAGES = [re.match(r"``(.+?)``|`([^`]+)`", row) for row in ROWS]
QUOTED = [match.group(1) or match.group(2) for match in MESSAGES if match]


@functools.cache
def texts():
    """All texts of the layers, with a mark for each value in them, and without the marks of code."""
    found = []
    for layer in ("tff_mf", "aggregators", "experiments"):
        for path in sorted((ROOT / layer).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
                    found.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(" ".join(text.replace("`", "").split()) for text in found)


def is_in_the_code(message):
    """Whether one text has the parts of a message, which are between its marks, in their order."""
    parts = [part.strip() for part in message.replace("`", "").split("…")]
    return re.search(".*".join(re.escape(part) for part in parts if part), texts()) is not None


def test_the_page_quotes_messages():
    assert len(QUOTED) == len(ROWS) >= 30
    assert all(row.count(" | ") == 2 for row in ROWS), "each message has a cause and a remedy"


@pytest.mark.parametrize("message", QUOTED, ids=lambda message: message[:40])
def test_a_quoted_message_is_in_the_code(message):
    assert is_in_the_code(message)


def test_a_message_that_nobody_prints_is_found():
    assert not is_in_the_code("out=… is not in use by process …")
    assert not is_in_the_code("two at once would release rounds twice. … is in use by process")
