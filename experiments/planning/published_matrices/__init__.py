"""Reads the factorizations that Google Research published as TensorFlow tensors."""
