"""Checkpoints of TFF programs whose state holds the keys of noise, and releases that wait for them."""
