"""Execution contexts: one whose server state stays in the worker between rounds, and TFF's own for a block."""
