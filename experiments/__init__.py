"""Floor 3."""
