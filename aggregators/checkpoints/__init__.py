"""Checkpoints of TFF programs whose state contains the keys of noise, and releases that wait for them.

Public modules: `manager` and `write_ahead`.
"""
