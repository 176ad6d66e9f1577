"""TFF's worker processes: starting one, and ending it with a block or the program.

Public modules: `processes` (ends workers), `worker` (starts one).
"""
