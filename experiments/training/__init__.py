"""Training: the TFF learning process of a run, the loop over its rounds, checkpoints and resumption."""
