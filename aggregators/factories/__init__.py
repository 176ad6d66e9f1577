"""Aggregation factories: the noised mean, its sums, metrics that are withheld, and rejected updates."""
