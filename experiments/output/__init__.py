"""Output of all commands: files, pictures, numbers and progress."""
