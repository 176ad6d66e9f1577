"""Training: data, model and learning process of a run of `tff-mf train`."""
