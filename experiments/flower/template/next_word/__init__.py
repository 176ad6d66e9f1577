"""Next-word prediction on Flower, with the noise of tff-mf."""
