"""Streams the correlated noise C⁻¹z: one module an engine, `noise.numpy` for any framework.

All run the recursion of any mechanism, with the same keys, states, limits and refusals: `_keyed.KeyedStream`. Another
engine is another subclass of it, which says what one has to implement.
"""
