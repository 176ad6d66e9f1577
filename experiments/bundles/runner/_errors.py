"""What is refused: a report of a device, by one of a few reasons, and input of the operator."""

# The reasons for which a report is refused. None of them contains text from a device.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)


class RefusedError(ValueError):
    """An input is wrong; the message names it and the remedy."""


class RefusedUpdateError(RefusedError):
    """An update that is not added to the sum; the message is one of `REASONS`."""
