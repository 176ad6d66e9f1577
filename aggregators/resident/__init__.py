"""Execution of TFF computations whose server state stays in the worker from round to round."""
