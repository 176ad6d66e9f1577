"""Numbers that never err on the unsafe side: Gaussian tails, exact normals, losses of composed releases."""
