"""How files, figures, numbers and progress are written by all commands."""
