"""The record of a run: its settings and claim, the files in its folder, and the words of what they state."""
