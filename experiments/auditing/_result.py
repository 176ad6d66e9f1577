"""The result of a test of an audit."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """The result of one test.

    Attributes:
        name: Name of the test.
        passed: Whether it passed.
        value: The measured value.
        limit: The value that it was compared with.
        text: Both in words.
    """

    # Not a class of tests, although its name suggests so to pytest.
    __test__ = False

    name: str
    passed: bool
    value: float
    limit: float
    text: str
