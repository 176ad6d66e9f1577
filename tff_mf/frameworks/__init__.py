"""The front ends of central training: Keras, optax and PyTorch, and the order of examples that all three take."""
