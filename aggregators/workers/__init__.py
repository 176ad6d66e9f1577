"""TFF's worker processes: starting one, isolating it from other users, and ending it with a block or the program.

Public modules: `processes` (ends workers), `worker` (starts one). `_isolated_worker` is a program of its own.
"""
