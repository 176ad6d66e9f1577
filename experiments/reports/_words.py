"""The texts of a report that show recomputed figures, written from the facts of the report alone.

A check therefore writes them from the figures that are stored, after it has compared those with recomputed ones.
"""

from collections.abc import Mapping
from typing import Any

from ..privacy import statements
from . import _verdict


def recomputed_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the headline, the formal statement, and the strength of the protection in words.

    Args:
        facts: A report; only its kind and its claim are read.
    """
    claim, realised = facts["claim"], facts["kind"] == "realised"
    line = statements.line(claim)
    return {
        "headline": line if realised or claim["state"] == statements.REFUSED else f"Planned: {line}",
        "statement": _verdict.statement(claim, realised=realised),
        "tier": statements.tier(claim),
    }
