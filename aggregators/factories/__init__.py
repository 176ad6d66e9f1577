"""TFF aggregation factories: the noised mean, the sums in it, and what is withheld or counted about clients.

Public modules: `factory`, `dp_ftrl`, `metrics`, `noise_rounds`, `record_sums` and `rejections`.
"""
