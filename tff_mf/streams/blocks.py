"""Lengths of blocks of rounds, and of runs of a block, for sums of past rows: each row is read a few times in all."""

# Rows of memory per round of a block. At the start of a block its sums take twice their final memory: longer blocks
# would cost more memory and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11


def lengths(rows: int) -> tuple[int, int]:
    """Returns the number of rounds in a run, and in a block, which is a whole number of runs.

    At the start of a block, one matrix product computes what the rows so far contribute to each of its rounds. They are
    then read once per block instead of once per round. A run, a part of a block, does the same with the earlier rows of
    the block. A round itself reads only the rows of its own run.

    Args:
        rows: Number of past rows that a round depends on.

    Example:
        >>> lengths(341)
        (6, 30)
    """
    run = max(1, round((rows / _ROWS_A_ROUND) ** 0.5))
    return run, run * max(1, round(rows / _ROWS_A_ROUND / run))
