"""Analysis of TFF computations: their unplaced parts, secure sums, message sizes and errors.

Public modules: `clear_errors`, `forms`, `secure` and `transfers`.
"""
