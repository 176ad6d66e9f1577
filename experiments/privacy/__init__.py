"""What a run guarantees, in words: claims, statements, and amplification by sampling."""
