"""What a test of an audit says."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """One thing that was tried.

    Attributes:
        name: A word for it.
        passed: Whether it came out as it must.
        value: What was measured.
        limit: What it was compared with.
        text: Both in words.
    """

    # Not a class of tests, whatever its name suggests to pytest.
    __test__ = False

    name: str
    passed: bool
    value: float
    limit: float
    text: str
