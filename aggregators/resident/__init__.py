"""Execution contexts: one whose server state stays in the worker between rounds, and TFF's own for a block.

`context` is what users enter; `values` are results that stay in a worker, and `workers` starts and ends its process.
"""
