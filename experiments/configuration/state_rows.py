"""How much noise state a mechanism keeps: rows of as many numbers as the model has parameters."""

_DEFAULT_BUFFERS = 4
_ROWLESS = ("identity", "banded-inverse", "dense")
_BANDED = ("banded", "banded-toeplitz")


def state_rows(name: str, *, rounds: int, bands: int | None = None, buffers: int | None = None) -> int | None:
    """Returns the rows of noise that are kept from round to round, or None if the name does not tell.

    Args:
        name: A name of `mechanism_names.names()`.
        rounds: Rounds that the mechanism is for.
        bands: Bands of the banded kinds.
        buffers: Buffers of a BLT; 4 if not given.

    Example:
        >>> state_rows("banded", rounds=2052, bands=342), state_rows("tree-full", rounds=2052)
        (341, 11)
    """
    if name in _ROWLESS:
        return 0
    if name == "blt":
        return buffers or _DEFAULT_BUFFERS
    if name in _BANDED:
        return None if bands is None else min(bands, rounds) - 1
    return rounds.bit_length() - 1 if name.startswith("tree-") else None
